package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/migrate"
)

// errRefused: part of a manifest will not work.
var errRefused = errors.New("migrate: change what is refused first")

const migrateHelp = `usage: nodens migrate -image IMAGE [-redirect off|auto|on] [-assume-imports] [-o yaml|report] FILE...

Reads the manifests of node-cache (NodeLocal DNSCache), including its ConfigMap,
and prints them for nodens, JSON as JSON. FILE - is standard input. The report, on standard
error, lists what stays, what changes and what is refused. With -o report, only
the report is printed, to standard output. With -redirect, the pods also get what
socket redirection needs. migrate does not contact a cluster.

  -image IMAGE      the image of nodens, in a registry that your nodes can pull from.
                    None is published yet: build one with make image IMAGE=…, and
                    push it
  -assume-imports   accept files that the Corefile imports and that are missing here,
                    because another container makes them on the node

Exit status: 0 everything will work; 1 something is refused, or an error;
2 a wrong command line.
`

// migrateFlags is the command line of migrate.
type migrateFlags struct {
	image, redirect string
	assumeImports   bool
	reportOnly      bool
	files           []string
}

func (f *migrateFlags) set() *flag.FlagSet {
	fs := flag.NewFlagSet("migrate", flag.ContinueOnError)
	fs.StringVar(&f.image, "image", "", "`image` of nodens")
	fs.BoolVar(&f.assumeImports, "assume-imports", false, "accept files that the Corefile imports and that are missing here")
	fs.Func("o", "print the manifests as yaml, or the `report` only (default yaml)", func(s string) error {
		f.reportOnly = s == "report"
		if s != "yaml" && s != "report" {
			return errors.New("want yaml or report")
		}
		return nil
	})
	fs.Func("redirect", "add what socket redirection in this `mode` needs: off, auto or on (default off)", func(s string) error {
		mode, err := config.ParseRedirectMode(s)
		if f.redirect = string(mode); mode == config.RedirectOff {
			f.redirect = migrate.RedirectOff
		}
		return err
	})
	return fs
}

func migrateCommand(e env) *cli.Command {
	f := new(migrateFlags)
	return e.Command("migrate", "FILE...", "convert manifests of node-cache to nodens", migrateHelp, cmdline.Flags(f.set()), func(_ context.Context, c *cli.Command) error {
		switch {
		case c.NArg() == 0:
			return e.WrongUsage("%s", migrateHelp)
		case f.image == "":
			return e.WrongUsage("-image is missing: no image of nodens is published yet; build one (make image IMAGE=REGISTRY/nodens:TAG), push it, and name it here")
		}
		f.files = c.Args().Slice()
		return migrateManifests(e, f)
	})
}

// migrateManifests prints the manifests and the report.
func migrateManifests(e env, f *migrateFlags) error {
	files, err := migrate.ReadFiles(f.files, e.stdin)
	if err != nil {
		return err
	}
	out, report, err := migrate.Run(migrate.Config{Image: f.image, Redirect: f.redirect, Check: f.checkStart}, files...)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if f.reportOnly {
		err = report.Write(e.Stdout)
	} else {
		_, werr := io.WriteString(e.Stdout, out)
		err = errors.Join(report.Write(e.Stderr), werr)
	}
	if err == nil && len(report.Refused) > 0 {
		err = errRefused
	}
	return err
}

// checkStart returns why the daemon would not start. It uses a made-up cluster IP,
// because only the node knows the real one.
func (m *migrateFlags) checkStart(s migrate.Start) (warnings []error, err error) {
	var stderr strings.Builder
	f, err := parseFlags(s.Args, &stderr)
	if err != nil {
		return nil, errors.New(strings.TrimSpace(stderr.String()))
	}
	if s.Name == "" {
		return nil, nil
	}
	text := s.Corefile
	if s.Base {
		t := config.Template{
			LocalIPs: f.LocalIPs, DNSPort: f.DNSPort, ClusterDNS: netip.AddrFrom4([4]byte{192, 0, 2, 53}),
			ClusterDomain: f.ClusterDomain, PrometheusEndpoint: f.Prometheus,
		}
		if text, err = t.Render(s.Name, text); err != nil {
			return nil, err
		}
	}
	src := config.Source{Getenv: func(name string) string { return s.Env[name] }}
	if m.assumeImports {
		src.Files = migrate.RuntimeFiles{}
	}
	cfg, err := config.Parse(s.Name, text, src)
	if err != nil {
		return nil, err
	}
	warnings = cfg.Warnings
	if imports := cfg.Files[1:]; len(imports) > 0 {
		warnings = append(warnings, fmt.Errorf("it imports files that migrate did not see: %s", strings.Join(imports, ", ")))
	}
	return warnings, errors.Join(cfg.Overlap(f.DNSPort), cfg.Loops(f.DNSPort))
}
