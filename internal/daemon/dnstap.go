package daemon

import (
	"crypto/tls"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnstap"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// taps owns the connections to dnstap readers. A key is the settings of a directive. One
// goroutine calls its methods.
type taps struct {
	base
	limit    int64             // bytes of all queues
	reserve  func(bytes int64) // takes limit from another budget; negative: gives it back
	messages *prometheus.CounterVec
	byKey    map[string]*dnstap.Tap
}

func newTaps(b base, limit int64, reserve func(bytes int64)) *taps {
	t := &taps{
		base: b, limit: limit, reserve: reserve, byKey: make(map[string]*dnstap.Tap),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodens_dnstap_messages_total", Help: "Messages for dnstap readers. A message is dropped if the reader is too slow or away for too long.",
		}, []string{"reader", "result"}),
	}
	b.registry.MustRegister(t.messages)
	return t
}

// tapList has the readers of a block.
type tapList []*dnstap.Tap

// open returns the taps of block and their key. It marks them in keep.
func (t *taps) open(block *config.Block, keep map[string]bool) (list tapList, key string) {
	for _, d := range block.Dnstap {
		k := d.Key()
		if t.byKey[k] == nil {
			if len(t.byKey) == 0 {
				t.reserve(t.limit)
			}
			t.byKey[k] = dnstap.New(t.config(d), int(t.limit))
			t.divide()
		}
		keep[k] = true
		list, key = append(list, t.byKey[k]), key+k+"\n"
	}
	return list, key
}

// divide gives each tap an equal share of the limit.
func (t *taps) divide() {
	for _, tap := range t.byKey {
		tap.SetLimit(int(t.limit) / len(t.byKey))
	}
}

func (t *taps) config(d *config.Dnstap) dnstap.Config {
	host, _ := os.Hostname() // without a name, the field is empty
	text := func(given, otherwise string) []byte {
		if given == "" {
			given = otherwise
		}
		if given == "" {
			return nil
		}
		return []byte(given)
	}
	c := dnstap.Config{
		Network: d.Network, Address: d.Address, Full: d.Full, Logger: t.log,
		Identity: text(d.Identity, host), Version: text(d.Version, "nodens-"+t.opts.Version), Extra: text(d.Extra, ""),
		Sent: t.messages.WithLabelValues(d.Address, "sent"), Dropped: t.messages.WithLabelValues(d.Address, "dropped"),
	}
	if d.TLS {
		name, _, _ := net.SplitHostPort(d.Address) // the parser has checked it
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, InsecureSkipVerify: d.SkipVerify}
	}
	return c
}

// retain closes the taps that are not in keep.
func (t *taps) retain(keep map[string]bool) {
	var closing sync.WaitGroup
	before := len(t.byKey)
	for k, tap := range t.byKey {
		if !keep[k] {
			delete(t.byKey, k)
			closing.Go(tap.Close)
		}
	}
	closing.Wait()
	if before > 0 && len(t.byKey) == 0 {
		t.reserve(-t.limit)
	}
	t.divide()
}

// clients returns the Tap for messages of clients of a zone, or nil.
func (l tapList) clients(zone string) upstream.Tap {
	return l.tap(zone, dnstap.ClientQuery, dnstap.ClientResponse)
}

// forwarder returns the Tap for messages of upstreams of a zone, or nil.
func (l tapList) forwarder(zone string) upstream.Tap {
	return l.tap(zone, dnstap.ForwarderQuery, dnstap.ForwarderResponse)
}

func (l tapList) tap(zone string, query, reply dnstap.Type) upstream.Tap {
	if len(l) == 0 {
		return nil
	}
	wire, _ := dnsname.Pack(strings.ToLower(zone)) // zones are valid names
	return func(m upstream.TapMessage) {
		out := dnstap.Message{
			Type: query, Client: m.Client, Server: m.Server, Queried: m.Queried, Replied: m.Replied, Zone: wire, Wire: m.Wire,
		}
		switch {
		case m.TLS:
			out.Protocol = dnstap.TLS
		case m.TCP:
			out.Protocol = dnstap.TCP
		default:
			out.Protocol = dnstap.UDP
		}
		if !m.Replied.IsZero() {
			out.Type = reply
		}
		for _, t := range l {
			t.Send(&out)
		}
	}
}
