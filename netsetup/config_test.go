package netsetup

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

func TestNewRefusesConfig(t *testing.T) {
	ip := netip.MustParseAddr("169.254.20.10")
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"generation with a space", Config{Generation: "a b"}, `generation "a b"`},
		{"long name", Config{Generation: "g", Interface: "nodelocaldns0123"}, "longer than 15 bytes"},
		{"zero address", Config{Generation: "g", Addrs: []netip.Addr{{}}}, "not an IP address"},
		{"zone", Config{Generation: "g", Addrs: []netip.Addr{netip.MustParseAddr("fe80::1%lo")}}, "zone"},
		{"wildcard", Config{Generation: "g", Addrs: []netip.Addr{ip, netip.IPv6Unspecified()}}, "not a unicast"},
		{"multicast", Config{Generation: "g", Addrs: []netip.Addr{netip.MustParseAddr("224.0.0.1")}}, "not a unicast"},
	} {
		h, err := New(tt.cfg)
		if err == nil {
			_ = h.Close()
			t.Errorf("%s: accepted", tt.name)
		} else if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// A Host without a generation changes nothing, because it has no mark.
func TestReaderChangesNothing(t *testing.T) {
	ns := newNamespace(t)
	writer, reader := newHost(t, ns.config(onLo, "g1")), newHost(t, ns.config(onLo, ""))
	must(t, writer.ensureBoth)
	ns.waitLocalRoutes(t, nstest.LocalIPs...)
	before := ns.snapshot(t)
	if err := reader.ensureBoth(t.Context()); !errors.Is(err, owner.ErrNoGeneration) {
		t.Errorf("ensure: %v", err)
	}
	must(t, reader.removeBoth)
	if after := ns.snapshot(t); after != before {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
	wantOK(t, reader)
}

func FuzzParseIfAddr(f *testing.F) {
	head := []byte{unix.AF_INET, 32, 0, 0, 1, 0, 0, 0}
	f.Add(append(head, 8, 0, unix.IFA_LOCAL, 0, 169, 254, 20, 10))
	f.Add(append(head, 7, 0, unix.IFA_LOCAL, 0, 169, 254, 20, 0))
	f.Add([]byte{unix.AF_INET6, 200, 0, 0, 1, 0, 0, 0, 8, 0, unix.IFA_CACHEINFO, 0, 1, 2, 3, 4})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, m []byte) {
		a, err := parseIfAddr(m)
		if err == nil && a.prefix.IsValid() && !a.prefix.Addr().IsValid() {
			t.Errorf("%x: valid prefix of no address", m)
		}
	})
}

func FuzzParseProcAddrPort(f *testing.F) {
	f.Add("0100007F:0035")
	f.Add("00000000000000000000000001000000:1F90")
	f.Add("0100007F")
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := parseProcAddrPort(s); err == nil && !a.Addr().IsValid() {
			t.Errorf("%q: %v", s, a)
		}
	})
}

func TestParseProcAddrPort(t *testing.T) {
	for in, want := range map[string]string{
		"0100007F:0035":                         "127.0.0.1:53",
		"00000000000000000000000001000000:1F90": "[::1]:8080",
	} {
		if got, err := parseProcAddrPort(in); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v, want %s", in, got, err, want)
		}
	}
}
