package kube

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestChoose(t *testing.T) {
	const (
		notReady    = `{"addresses":["10.0.0.8"],"conditions":{"ready":false}}`
		terminating = `{"addresses":["10.0.0.7"],"conditions":{"ready":false,"serving":true,"terminating":true}}`
		unknown     = `{"addresses":["10.0.0.6"],"conditions":{}}`
		inA         = `{"addresses":["10.0.0.3"],"zone":"a","hints":{"forZones":[{"name":"a"}]}}`
		inB         = `{"addresses":["10.0.0.2"],"zone":"b","hints":{"forZones":[{"name":"b"}]}}`
		inAForB     = `{"addresses":["10.0.0.4"],"zone":"a","hints":{"forZones":[{"name":"b"},{"name":"c"}]}}`
		noHints     = `{"addresses":["10.0.0.5"],"zone":"a"}`
		v6InB       = `{"addresses":["fd00::2"],"zone":"b","hints":{"forZones":[{"name":"b"}]}}`
		v6InA       = `{"addresses":["fd00::3"],"zone":"a","hints":{"forZones":[{"name":"a"}]}}`
	)
	ports := func(p string) string {
		return `{"addressType":"IPv4","endpoints":[` + ready("10.0.0.1") + `],"ports":[` + p + `]}`
	}
	v4 := func(e ...string) string { return slice("v4", "1", "IPv4", e...) }
	v6 := func(e ...string) string { return slice("v6", "1", "IPv6", e...) }
	for _, tt := range []struct {
		name   string
		slices []string
		zone   string
		want   []string
	}{
		{"nothing", nil, "a", nil},
		{"ready and unknown", []string{v4(notReady, terminating, unknown, ready("10.0.0.1"))}, "", []string{"10.0.0.1:53", "10.0.0.6:53"}},
		{"only terminating", []string{v4(notReady, terminating)}, "", []string{"10.0.0.7:53"}},
		{"only not ready", []string{v4(notReady)}, "", nil},
		{"hints", []string{v4(inA, inB, inAForB)}, "b", []string{"10.0.0.2:53", "10.0.0.4:53"}},
		{"hints for other zones only", []string{v4(inA, inB)}, "d", []string{"10.0.0.2:53", "10.0.0.3:53"}},
		{"hints, zone unknown", []string{v4(inA, inB)}, "", []string{"10.0.0.2:53", "10.0.0.3:53"}},
		{"one without hints: own zone first", []string{v4(inA, inB, noHints)}, "a", []string{"10.0.0.3:53", "10.0.0.5:53", "10.0.0.2:53"}},
		{"families separately", []string{v4(inA, inB), v6(v6InB, v6InA)}, "a", []string{"10.0.0.3:53", "[fd00::3]:53"}},
		{"one family has hints", []string{v4(inA, noHints), v6(v6InB, v6InA)}, "b", []string{"[fd00::2]:53", "10.0.0.3:53", "10.0.0.5:53"}},
		{"duplicate", []string{v4(ready("10.0.0.1")), slice("other", "1", "IPv4", ready("10.0.0.1"))}, "", []string{"10.0.0.1:53"}},
		{"host names", []string{slice("f", "1", "FQDN", `{"addresses":["dns.example"]}`)}, "", nil},
		{"no address", []string{v4(`{"addresses":[]}`, `{"addresses":["x"]}`, `{"addresses":["fe80::1%eth0"]}`)}, "", nil},
		{"other port", []string{ports(`{"name":"dns","port":5353,"protocol":"UDP"},{"name":"dns-tcp","port":5353,"protocol":"TCP"}`)}, "", []string{"10.0.0.1:5353"}},
		{"unnamed", []string{ports(`{"port":53,"protocol":"UDP"},{"port":53,"protocol":"TCP"}`)}, "", []string{"10.0.0.1:53"}},
		{"two ports", []string{ports(`{"name":"dns","port":53,"protocol":"UDP"},{"name":"dns-tcp","port":54,"protocol":"TCP"}`)}, "", nil},
		{"no UDP", []string{ports(`{"name":"dns","port":53,"protocol":"TCP"}`)}, "", nil},
		{"ambiguous UDP", []string{ports(`{"name":"a","port":53,"protocol":"UDP"},{"name":"b","port":54,"protocol":"UDP"}`)}, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := make(map[string]endpointSlice)
			for i, text := range tt.slices {
				var s endpointSlice
				if err := json.Unmarshal([]byte(text), &s); err != nil {
					t.Fatal(err)
				}
				all[string(rune('a'+i))] = s
			}
			if got := texts(choose(all, tt.zone)); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
