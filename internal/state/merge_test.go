package state

import (
	"reflect"
	"testing"
	"time"
)

func TestMerge(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := &State{
		Version: "1", Node: "a", Started: start, Time: start.Add(time.Minute), Ready: true,
		Requests: 10, Hits: 6, Misses: 4, Failures: 1, Rcodes: map[string]uint64{"NOERROR": 10},
		Cache: Cache{1, 2}, Redirection: Redirection{Mode: "on", State: "on"}, Fastpath: Fastpath{Mode: "off", State: "off", Answers: 3},
		Zones:     []Zone{{Name: ".", Requests: 10, MissLatency: Latency{4, 1, 2, 3}}},
		Upstreams: []Upstream{{Zone: ".", Address: "192.0.2.1:53", Protocol: "udp", Healthy: true, Queries: 4}},
		Top: map[string]TopLists{"1m": {Covers: 60, Queries: 10,
			Names: []Entry{{Key: "x.", Zone: ".", Count: 6, Error: 1}, {Key: "y.", Zone: ".", Count: 2}},
			Slow:  []Entry{{Key: "y.", Zone: ".", Count: 2, Seconds: 1}}}},
	}
	b := &State{
		Version: "2", Node: "b", Started: start.Add(time.Second), Time: start.Add(time.Second), Problems: []string{"cold"},
		Requests: 20, Hits: 15, Misses: 5, Rcodes: map[string]uint64{"NOERROR": 19, "NXDOMAIN": 1},
		Cache: Cache{3, 4}, Redirection: Redirection{Mode: "on", State: "fallback"}, Fastpath: Fastpath{Mode: "off", State: "off"},
		Zones:     []Zone{{Name: "cluster.local."}, {Name: ".", Requests: 20, MissLatency: Latency{5, 2, 2, 2}}},
		Upstreams: []Upstream{{Zone: ".", Address: "192.0.2.1:53", Protocol: "udp", Queries: 5, Failures: 5}},
		Top: map[string]TopLists{"1m": {Covers: 1, Queries: 20,
			Names: []Entry{{Key: "z.", Zone: ".", Count: 9, Error: 2}, {Key: "y.", Zone: ".", Count: 5}},
			Slow:  []Entry{{Key: "z.", Zone: ".", Count: 1, Seconds: 5}}}},
	}
	m := Merge([]*State{a, b})
	top := m.Top["1m"]
	m.Top = nil
	want := &State{
		Version: "1, 2", Node: "2 nodes", Started: start, Time: start.Add(time.Minute), Problems: []string{"b: cold"},
		Requests: 30, Hits: 21, Misses: 9, Failures: 1, Rcodes: map[string]uint64{"NOERROR": 29, "NXDOMAIN": 1},
		Cache: Cache{4, 6}, Redirection: Redirection{Mode: "on", State: "fallback, on"}, Fastpath: Fastpath{Mode: "off", State: "off", Answers: 3},
		Zones:     []Zone{{Name: ".", Requests: 30, MissLatency: Latency{9, 2, 2, 3}}, {Name: "cluster.local."}},
		Upstreams: []Upstream{{Zone: ".", Address: "192.0.2.1:53", Protocol: "udp", Queries: 9, Failures: 5}},
	}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
	// The other list may have up to 5 and 2 queries for z. and x.
	names := []Entry{{Key: "z.", Zone: ".", Count: 9, Error: 4}, {Key: "y.", Zone: ".", Count: 7}}
	slow := []Entry{{Key: "z.", Zone: ".", Count: 1, Seconds: 5, Error: 2}}
	if want := (TopLists{Covers: 60, Queries: 30, Names: names, Slow: slow}); !reflect.DeepEqual(top, want) {
		t.Errorf("got  %+v\nwant %+v", top, want)
	}
}
