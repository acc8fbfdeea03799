package upstream

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestParseResolvConf(t *testing.T) {
	tests := []struct {
		name, text string
		servers    []string
		search     []string
	}{
		{"plain", "nameserver 192.0.2.1\nsearch a.example b.example\n", []string{"192.0.2.1"}, []string{"a.example", "b.example"}},
		{"no final newline", "nameserver 192.0.2.1", []string{"192.0.2.1"}, nil},
		{"CRLF and tabs", "nameserver\t192.0.2.1\r\nsearch\ta.example\r\n", []string{"192.0.2.1"}, []string{"a.example"}},
		{"four", "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n",
			[]string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}, nil},
		{"IPv6", "nameserver 2001:db8::1\nnameserver fe80::1%eth0\nnameserver ::ffff:192.0.2.1\n",
			[]string{"2001:db8::1", "fe80::1%eth0", "192.0.2.1"}, nil},
		{"comments", "# nameserver 192.0.2.8\n; nameserver 192.0.2.9\nnameserver 192.0.2.1 # first\nnameserver 192.0.2.2;x\n",
			[]string{"192.0.2.1", "192.0.2.2"}, nil},
		{"junk", "nameserver\nnameserver dns.example\n nameserver 192.0.2.9\nNAMESERVER 192.0.2.9\nnameserverx 192.0.2.9\n" +
			"options ndots:5\nsortlist 1\nnameserver 192.0.2.1\n\x00\xff\n", []string{"192.0.2.1"}, nil},
		{"last search counts", "domain a.example x\nnameserver 192.0.2.1\nsearch b.example\nsearch c.example d.example\n",
			[]string{"192.0.2.1"}, []string{"c.example", "d.example"}},
		{"domain after search", "search b.example\ndomain a.example\nnameserver 192.0.2.1\n",
			[]string{"192.0.2.1"}, []string{"a.example"}},
		{"a long line", "#" + strings.Repeat("x", 1<<17) + "\nnameserver 192.0.2.1\n", []string{"192.0.2.1"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, search, err := ParseResolvConf(strings.NewReader(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			var want []netip.Addr
			for _, s := range tt.servers {
				want = append(want, netip.MustParseAddr(s))
			}
			if !slices.Equal(got, want) || !slices.Equal(search, tt.search) {
				t.Errorf("%v %v, want %v %v", got, search, want, tt.search)
			}
		})
	}
}

func TestParseResolvConfErrors(t *testing.T) {
	for _, text := range []string{"", "search a.example\n", "nameserver bad\n"} {
		if _, _, err := ParseResolvConf(strings.NewReader(text)); !errors.Is(err, ErrNoNameserver) {
			t.Errorf("%q: %v, want ErrNoNameserver", text, err)
		}
	}
	broken := iotest.ErrReader(errors.New("disk on fire"))
	if _, _, err := ParseResolvConf(broken); err == nil || errors.Is(err, ErrNoNameserver) {
		t.Errorf("read error: %v", err)
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 192.0.2.1\nsearch a b\n")
	f.Add("nameserver fe80::1%eth0 # x\r\ndomain d\n;c\n")
	f.Fuzz(func(t *testing.T, text string) {
		servers, search, err := ParseResolvConf(strings.NewReader(text))
		if (len(servers) == 0) != errors.Is(err, ErrNoNameserver) {
			t.Fatalf("%d nameservers, error %v", len(servers), err)
		}
		// The parsed values, written as a plain file, parse to the same values.
		var b strings.Builder
		for _, s := range servers {
			b.WriteString("nameserver " + s.String() + "\n")
		}
		if len(search) > 0 {
			b.WriteString("search " + strings.Join(search, " ") + "\n")
		}
		again, searchAgain, _ := ParseResolvConf(strings.NewReader(b.String()))
		if !slices.Equal(servers, again) || !slices.Equal(search, searchAgain) {
			t.Fatalf("%v %v became %v %v", servers, search, again, searchAgain)
		}
	})
}
