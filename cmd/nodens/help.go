package main

import (
	"flag"
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/internal/cmdline"
)

const daemonHelp = `nodens is a DNS cache for the nodes of a Kubernetes cluster.

  nodens [flags]       serve; without -conf and -localip, serve an embedded sample
  nodens check FILE    validate a Corefile and print its settings, with defaults
  nodens status        print what a daemon has set up on the host, and whether it is complete
  nodens doctor        examine how queries of the node and of a pod reach nodens
  nodens top           show the top names and clients, zones and upstreams
  nodens migrate FILE… convert manifests of node-cache to nodens
  nodens teardown      remove from the host everything that nodens has set up
  nodens lookup NAME   query a DNS server and print its answer
  nodens version       print the version
  nodens completion    print a completion script for bash, zsh or fish
  nodens help COMMAND  explain a command

Exit status of the daemon: 0 after SIGTERM or SIGINT; 1 after an error; 2 a wrong
command line. A flag is written -flag value, -flag=value or --flag=value.

`

const completionHelp = `usage: nodens completion bash|zsh|fish

Prints a script that completes commands and flags.

  bash   source <(nodens completion bash)
  zsh    source <(nodens completion zsh)
  fish   nodens completion fish | source
`

// helpOfDaemon returns the commands and the flags by group.
func helpOfDaemon(f *flags) string {
	fs := f.set()
	var b strings.Builder
	b.WriteString(daemonHelp)
	for _, g := range cmdline.Daemon {
		fmt.Fprintf(&b, "%s:\n", g.Title)
		for _, name := range g.Names {
			f := fs.Lookup(name)
			arg, text := flag.UnquoteUsage(f)
			if f.DefValue != "" && f.DefValue != "false" {
				text += " (default " + f.DefValue + ")"
			}
			fmt.Fprintf(&b, "  -%s\n      %s\n", strings.TrimSpace(f.Name+" "+arg), text)
		}
		b.WriteString("\n")
	}
	return b.String()
}
