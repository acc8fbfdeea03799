package main

import (
	"bytes"
	"flag"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/doctor"
)

func TestParseFlags(t *testing.T) {
	for _, form := range []string{"-localip 169.254.20.10,fd00::10 -conf a", "-localip=169.254.20.10,fd00::10 -conf=a", "--localip=169.254.20.10,fd00::10 --conf a"} {
		f, err := parseFlags(strings.Fields(form), &bytes.Buffer{})
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		want := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::10")}
		if f.Corefile != "a" || !slices.Equal(f.LocalIPs, want) {
			t.Errorf("%s: %+v", form, f)
		}
	}
	for _, args := range [][]string{{"-conf", "a", "-corefile", "b"}, {"-corefile", "b", "-conf", "a"}} {
		f, err := parseFlags(args, &bytes.Buffer{})
		if err == nil {
			f.resolve()
		}
		if err != nil || f.Sample || f.Corefile != "a" {
			t.Errorf("%v: Corefile %q, error %v", args, f.Corefile, err)
		}
	}
	if f := resolved(t, []string{"-corefile", "b"}); f.Sample || f.Corefile != "b" {
		t.Errorf("-corefile alone: %q", f.Corefile)
	}
	if f := resolved(t, []string{"-localip", "10.0.0.1"}); f.Sample || f.Corefile != "/etc/Corefile" {
		t.Errorf("neither: %q", f.Corefile)
	}
	if f := resolved(t, []string{"-basecorefile", "/nonexistent"}); !f.Sample || len(f.LocalIPs) != 1 {
		t.Errorf("nothing given: %+v", f)
	}
	if f, _ := parseFlags([]string{"-p", "1053", "-cache-size", "10M"}, &bytes.Buffer{}); f.DNSPort != 1053 || f.CacheSize != 10<<20 {
		t.Errorf("%+v", f)
	}
}

func resolved(t *testing.T, args []string) *flags {
	t.Helper()
	f, err := parseFlags(args, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	f.resolve()
	return f
}

func TestParseFlagsErrors(t *testing.T) {
	for arg, want := range map[string]string{
		"-localip=1.2.3":                     `"1.2.3" is not an IP address`,
		"-localip=10.0.0.1, 10.0.0.2":        `" 10.0.0.2" is not an IP address; the list has commas and no spaces`,
		"-localip=":                          `"" is not an IP address`,
		"-localip=0.0.0.0":                   `"0.0.0.0" is not the address of a host`,
		"-localip=fe80::1":                   `"fe80::1" is link-local`,
		"-node-ip=10.0.0.1,10.0.0.2":         "want at most one address of each family",
		"-node-ip=10.0.0.1,fd00::1,fd00::2":  "want at most one address of each family",
		"-dns.port=0":                        "a port is a number from 1 to 65535",
		"-dns.port=dns":                      "a port is a number from 1 to 65535",
		"-cache-size=12T":                    `"12T" is not a size`,
		"-cache-size=-1":                     `"-1" is not a size`,
		"-cache-size=9223372036854775807G":   "is not a size",
		"-clients=some":                      "want inside or all",
		"-max-misses=0":                      "want a number from 1",
		"-max-misses-per-client=many":        "want a number from 1",
		"-max-tcp-connections=-1":            "want a number from 1",
		"-nonsense":                          "unknown flag -nonsense: run nodens help for the flags",
		"-syncinterval=-5":                   "want a number of seconds",
		"-syncinterval=0":                    "want a number of seconds",
		"-syncinterval=5ms":                  "want at least a second",
		"-health-port=http":                  "a port is a number from 1 to 65535",
		"-metrics-listen-address=9353":       "want host:port, or 0 for none",
		"-metrics-listen-address=:0":         "want host:port, or 0 for none",
		"surplus":                            `unexpected argument "surplus": run nodens help`,
		"-setupinterface=perhaps":            `invalid value "perhaps" for flag -setupinterface: want true or false`,
		"-cache-size=9999999999999999999999": "is not a size",
	} {
		var stderr bytes.Buffer
		_, err := parseFlags([]string{arg}, &stderr)
		if err != cmdline.ErrUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: error %v, stderr %q, want %q", arg, err, stderr.String(), want)
		}
	}
}

func TestSyncInterval(t *testing.T) {
	for arg, want := range map[string]time.Duration{
		"60": time.Minute, "60s": time.Minute, "1ns": time.Second, "30ns": 30 * time.Second, "10s": 10 * time.Second, "1m": time.Minute,
	} {
		f, err := parseFlags([]string{"-syncinterval", arg}, &bytes.Buffer{})
		if err != nil || f.SyncInterval != want {
			t.Errorf("%s: %v, %v, want %v", arg, f.SyncInterval, err, want)
		}
	}
	if f, _ := parseFlags(nil, &bytes.Buffer{}); f.SyncInterval != time.Minute {
		t.Errorf("default %v", f.SyncInterval)
	}
}

// TestHelpHasEveryFlag checks that each flag is in one group, and that the flags of
// the groups exist.
func TestHelpHasEveryFlag(t *testing.T) {
	fs := newFlags().set()
	seen := make(map[string]int)
	for _, g := range cmdline.Daemon {
		for _, n := range g.Names {
			seen[n]++
			if fs.Lookup(n) == nil {
				t.Errorf("group %s names -%s, which is not a flag", g.Title, n)
			}
		}
	}
	fs.VisitAll(func(f *flag.Flag) {
		if seen[f.Name] != 1 {
			t.Errorf("-%s is in %d groups", f.Name, seen[f.Name])
		}
	})
	for line := range strings.Lines(helpOfDaemon(newFlags())) {
		if strings.Contains(line, "%!") {
			t.Errorf("help: %s", line)
		}
	}
}

func TestEndpointsOf(t *testing.T) {
	for s, ok := range map[string]bool{
		"kube-system/coredns": true, "a/b.c-d1": true,
		"": false, "kube-dns": false, "/x": false, "x/": false, "a/b/c": false, "a/..": false, "A/b": false, "a/b?c": false,
	} {
		if _, err := parseFlags([]string{"-endpoints-of", s}, io.Discard); (err == nil) != ok {
			t.Errorf("-endpoints-of %q: %v", s, err)
		}
	}
}

// TestFlagsReach checks that the daemon gets the flags whose effect no other test
// checks.
func TestFlagsReach(t *testing.T) {
	if c := resolved(t, []string{"-syncinterval", "7"}).HostConfig(); c.SyncInterval != 7*time.Second {
		t.Errorf("-syncinterval 7: the host is checked every %v", c.SyncInterval)
	}
	if f := resolved(t, nil); f.Status != (daemon.StatusOptions{Address: "127.0.0.1:9354"}) || f.CheckStatus() != nil {
		t.Errorf("default: %+v", f.Status)
	}
	if f := resolved(t, []string{"-status-address", ":80", "-status-token-file=/t"}); f.Status != (daemon.StatusOptions{Address: ":80", TokenFile: "/t"}) {
		t.Errorf("%+v", f.Status)
	}
	for arg, want := range map[string]bool{"-hedge=false": false, "-hedge": true} {
		if f := resolved(t, []string{arg}); f.Hedge != want {
			t.Errorf("%s: hedge %t, want %t", arg, f.Hedge, want)
		}
	}
}

// A removed flag gets an error that names the directive and its option.
func TestRemovedFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-redirect", "auto"}, `the flag -redirect was removed: write "redirect auto" into a server block of the Corefile, see docs/cilium.md`},
		{[]string{"--redirect=on"}, `the flag -redirect was removed: write "redirect auto"`},
		{[]string{"-redirect-fallback", "10.0.2.7"}, `the flag -redirect-fallback was removed: write "redirect auto { fallback … }"`},
		{[]string{"-localip", "169.254.20.10", "-redirect-heartbeat=400ms"}, `the flag -redirect-heartbeat was removed: write "redirect auto { heartbeat … }"`},
	} {
		for _, parse := range []func(io.Writer) error{
			func(w io.Writer) error { _, err := parseFlags(tc.args, w); return err },
			func(w io.Writer) error {
				return run(t.Context(), env{args: append([]string{"doctor"}, tc.args...), Env: terminal(nil, w)})
			},
		} {
			var stderr bytes.Buffer
			if err := parse(&stderr); err != cmdline.ErrUsage || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("%q: %v, %q, want %q", tc.args, err, stderr.String(), tc.want)
			}
		}
	}
	newFlags().set().VisitAll(func(f *flag.Flag) {
		if cmdline.InsteadOf(f.Name) != "" {
			t.Errorf("-%s was removed and is a flag", f.Name)
		}
	})
}

// What doctor found in the network cannot change the terminal.
func TestReportIsPrintable(t *testing.T) {
	const evil = "a\x1b[2Jb\u009bc"
	var out bytes.Buffer
	r := &doctor.Report{Facts: []doctor.Fact{{View: "node", What: evil}},
		Findings: []doctor.Finding{{Severity: doctor.Fault, What: evil, Why: evil, Do: evil}}, Unexamined: []string{evil}}
	if err := writeReport(&out, examined{flags: newFlags()}, r); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, "a?[2Jb?c\n") != 5 || strings.ContainsAny(text, "\x1b\u009b") {
		t.Errorf("%q", text)
	}
}
