package main

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/miekg/dns"
	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/doctor"
)

const lookupHelp = `usage: nodens lookup NAME [TYPE] [SERVER]

Queries SERVER (default: the first of /etc/resolv.conf) for NAME, and prints the
answer. The image has no other program for this, and helm test runs it.

Exit status: 0 NOERROR; 1 another answer, or none; 2 a wrong command line.
`

func lookupCommand(e env) *cli.Command {
	return e.Command("lookup", "NAME [TYPE] [SERVER]", "query a DNS server and print its answer", lookupHelp, nil, func(ctx context.Context, c *cli.Command) error {
		qtype := dns.TypeA
		if text := c.Args().Get(1); text != "" {
			qtype = dns.StringToType[strings.ToUpper(text)]
		}
		if c.NArg() < 1 || c.NArg() > 3 {
			return e.WrongUsage("%s", lookupHelp)
		}
		if qtype == dns.TypeNone {
			return e.WrongUsage("unknown type %q: want a name such as AAAA; the server comes after the type", c.Args().Get(1))
		}
		server := c.Args().Get(2)
		if server == "" {
			conf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
			if err != nil || len(conf.Servers) == 0 {
				return fmt.Errorf("lookup: no server in /etc/resolv.conf: %w", err)
			}
			server = conf.Servers[0]
		}
		if _, _, err := net.SplitHostPort(server); err != nil {
			server = net.JoinHostPort(server, "53")
		}
		return doctor.Lookup(ctx, e.Stdout, new(dns.Msg).SetQuestion(dns.Fqdn(c.Args().First()), qtype), server)
	})
}
