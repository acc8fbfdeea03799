package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/migrate"
)

// defaultImage replaces node-cache's image.
const defaultImage = "ghcr.io/nodens-dns/nodens:latest"

// errRefused: part of a manifest will not work.
var errRefused = errors.New("migrate: change what is refused first")

const migrateUsage = `usage: nodens migrate [-image IMAGE] [-redirect off|auto|on] [-o yaml|report] FILE...

Reads the manifests of node-cache (NodeLocal DNSCache), including its ConfigMap,
and prints them for nodens. FILE - is standard input. The report, on standard
error, lists what stays, what changes and what is refused. With -o report, only
the report is printed, to standard output. With -redirect, the pods also get what
socket redirection needs. migrate does not contact a cluster.

Exit status: 0 everything will work; 1 something is refused, or an error;
2 a wrong command line.
`

// migrateFlags is the command line of migrate.
type migrateFlags struct {
	image, format, redirect string
	files                   []string
}

func parseMigrateFlags(e env) (*migrateFlags, error) {
	f := &migrateFlags{}
	fs := flag.NewFlagSet("migrate", flag.ContinueOnError)
	fs.SetOutput(e.stderr)
	fs.Usage = func() {}
	fs.StringVar(&f.image, "image", defaultImage, "")
	fs.StringVar(&f.format, "o", "yaml", "")
	fs.Func("redirect", "", func(s string) error {
		mode, err := config.ParseRedirectMode(s)
		if f.redirect = string(mode); mode == config.RedirectOff {
			f.redirect = migrate.RedirectOff
		}
		return err
	})
	err := fs.Parse(e.args[1:])
	f.files = fs.Args()
	if err != nil || len(f.files) == 0 || f.format != "yaml" && f.format != "report" || f.image == "" {
		fmt.Fprint(e.stderr, migrateUsage)
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, errUsage
	}
	return f, nil
}

// migrateManifests is the migrate command.
func migrateManifests(e env, stdin io.Reader) error {
	f, err := parseMigrateFlags(e)
	if err != nil {
		return helpIsNoError(err)
	}
	files, err := readManifests(f.files, stdin)
	if err != nil {
		return err
	}
	out, report, err := migrate.Run(migrate.Config{Image: f.image, Redirect: f.redirect, Check: checkStart}, files...)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if f.format == "report" {
		err = report.Write(e.stdout)
	} else {
		_, werr := io.WriteString(e.stdout, out)
		err = errors.Join(report.Write(e.stderr), werr)
	}
	if err == nil && len(report.Refused) > 0 {
		err = errRefused
	}
	return err
}

func readManifests(names []string, stdin io.Reader) ([]migrate.File, error) {
	var files []migrate.File
	for _, name := range names {
		var text []byte
		var err error
		if name == "-" {
			name = "standard input"
			text, err = io.ReadAll(stdin)
		} else {
			text, err = os.ReadFile(name)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, migrate.File{Name: name, Text: string(text)})
	}
	return files, nil
}

// checkStart returns why the daemon would not start. It uses a made-up cluster IP,
// because only the node knows the real one.
func checkStart(s migrate.Start) (warnings []error, err error) {
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
			LocalIPs: f.LocalIPs, DNSPort: f.DNSPort, ClusterDNS: netip.AddrFrom4([4]byte{10, 96, 0, 10}),
			ClusterDomain: f.ClusterDomain, PrometheusEndpoint: f.Prometheus,
		}
		if text, err = t.Render(s.Name, text); err != nil {
			return nil, err
		}
	}
	cfg, err := config.Parse(s.Name, text, config.Source{Getenv: func(name string) string { return s.Env[name] }})
	if err != nil {
		return nil, err
	}
	return cfg.Warnings, cfg.Overlap(f.DNSPort)
}
