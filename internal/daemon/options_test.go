package daemon

import (
	"io"
	"net/netip"
	"os"
	"reflect"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
)

// optionsOf has options of a directive, and a function that builds from its block.
type optionsOf struct {
	directive string
	build     func(b *config.Block) (any, error)
	options   []string
}

// of builds from a block whose directive has option, or no option if it is empty.
func (o optionsOf) of(t *testing.T, option string) any {
	t.Helper()
	text := ". {\n" + o.directive + "\n}\n"
	if option != "" {
		text = ". {\n" + o.directive + " {\n" + option + "\n}\n}\n"
	}
	cfg, err := config.Parse("Corefile", text, config.Source{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := o.build(cfg.Blocks[0])
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestOptionsReach checks that each option of a directive changes what the daemon
// builds from it.
func TestOptionsReach(t *testing.T) {
	o := &Options{LocalIPs: []netip.Addr{netip.MustParseAddr("169.254.20.10")}, DNSPort: 53, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	o.Redirect.NodeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.7")}
	builder := &builder{base: newBase(o), resolvConf: "/nonexistent"}
	for _, tc := range []optionsOf{
		{"forward . 192.0.2.1", func(b *config.Block) (any, error) { return poolConfig(b.Forwards[0]) }, []string{
			"except a.example", "force_tcp", "prefer_udp", "policy sequential", "policy round_robin", "max_fails 7",
			"expire 3s", "health_check 1s", "health_check 500ms no_rec", "health_check 500ms domain a.example",
			"max_concurrent 5", "tls_servername a.example",
		}},
		{"forward . 192.0.2.1", func(b *config.Block) (any, error) { return b.Forwards[0].Key(), nil }, []string{
			"except a.example", "force_tcp", "prefer_udp", "policy sequential", "policy round_robin", "max_fails 7",
			"expire 3s", "health_check 1s", "health_check 500ms no_rec", "health_check 500ms domain a.example",
			"max_concurrent 5", "tls_servername a.example", "tls /a /b", "tls /a /b /c", "tls /c", "kubernetes_endpoints",
		}},
		{"hosts", func(b *config.Block) (any, error) { return b.Hosts.Key(), nil }, []string{
			"192.0.2.1 a.example", "192.0.2.1 b.example", "ttl 7", "no_reverse", "reload 0", "fallthrough", "fallthrough a.example", "fallthrough\nfallthrough_unsupported",
		}},
		{"cache 30", func(b *config.Block) (any, error) { return cachePolicy(b.Cache), nil }, []string{
			"success 100", "success 9984 60", "success 9984 3600 7", "denial 100", "denial 9984 60", "denial 9984 60 7",
			"prefetch 2", "prefetch 2 2m", "prefetch 2 1m 20%", "serve_stale", "serve_stale 2h", "serve_stale 1h verify",
			"servfail 1s", "disable success", "disable denial", "disable success a.example", "keepttl",
		}},
		{"cache", func(b *config.Block) (any, error) { return cachePolicy(b.Cache), nil }, []string{"success 9984 60", "denial 9984 60"}},
		{"errors", func(b *config.Block) (any, error) { return builder.errorLog(b), nil }, []string{
			"consolidate 1s a", "consolidate 1s b", "consolidate 2s a", "consolidate 1s a warning", "consolidate 1s a show_first",
		}},
		{"log a.example", func(b *config.Block) (any, error) { return builder.queryLog(b), nil }, []string{
			"class success", "class denial", "class error", "class denial error",
		}},
		{"normalize a.example", func(b *config.Block) (any, error) {
			return builder.normalise(&app{cfg: source{Config: &config.Config{}}}, b)
		}, []string{
			"mode off", "mode observe", "signature bare", "sibling_timeout 100ms", "ttl 1s", "except b.a.example", "repair off",
		}},
		{"dns64", func(b *config.Block) (any, error) { return buildActions(b) }, []string{
			"prefix 2001:db8:64::/96", "translate_all", "allow_ipv4",
		}},
		{"loadbalance", func(b *config.Block) (any, error) { return buildActions(b) }, []string{"prefer 10.0.0.0/8"}},
		{"redirect on", func(b *config.Block) (any, error) {
			return planRedirect(o, source{Config: &config.Config{Blocks: []*config.Block{b}}}), nil
		}, []string{
			"target :20153", "service 10.96.0.10", "fallback 10.0.2.7", "opt_out a/b", "uplink eth0", "heartbeat 300ms",
		}},
		{"bind lo", func(b *config.Block) (any, error) { return bindAddrs(b) }, []string{"except 127.0.0.1"}},
	} {
		t.Run(tc.directive, func(t *testing.T) {
			seen := map[string]any{"no option": tc.of(t, "")}
			if again := tc.of(t, ""); !reflect.DeepEqual(seen["no option"], again) {
				t.Fatalf("two builds of the same directive differ: %+v", again)
			}
			for _, option := range tc.options {
				got := tc.of(t, option)
				for other, made := range seen {
					if reflect.DeepEqual(got, made) {
						t.Errorf("%s has the same effect as %s: %+v", option, other, got)
					}
				}
				seen[option] = got
			}
		})
	}
}

// TestHedgeReaches checks that upstream pools send second queries only if hedging is
// on.
func TestHedgeReaches(t *testing.T) {
	for _, hedge := range []bool{true, false} {
		o := &Options{Hedge: hedge, Limits: LimitOptions{Everybody: true}, Stdout: io.Discard, Stderr: io.Discard, Getenv: os.Getenv, Root: os.DirFS("/")}
		d, err := newDaemon(t.Context(), newBase(o), nil, source{Config: &config.Config{}})
		if err != nil {
			t.Fatal(err)
		}
		if d.active.pools.NoHedge == hedge {
			t.Errorf("Hedge %t: pools have NoHedge %t", hedge, d.active.pools.NoHedge)
		}
	}
}
