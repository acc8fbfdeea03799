package upstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/miekg/dns"
)

// HostsEntry is an inline line of hosts: an address and its names.
type HostsEntry struct {
	Addr  netip.Addr
	Names []string
}

// HostsConfig is the hosts directive. Zones and Fallthrough are fully
// qualified.
type HostsConfig struct {
	Path        string // of the hosts file; empty: inline entries only
	Inline      []HostsEntry
	Zones       []string // names outside are for other sources; empty: "."
	TTL         uint32   // of all answers, in seconds
	NoReverse   bool     // do not answer PTR questions
	Fallthrough []string // unknown names at or below are for other sources
	// FallthroughUnsupported makes questions for types other than A, AAAA and
	// PTR fall through as well, for known names too.
	FallthroughUnsupported bool

	ReadFile func(path string) ([]byte, error) // nil: os.ReadFile
	Logger   *slog.Logger                      // nil: discarded
}

// Hosts answers A, AAAA and PTR questions from a hosts file, as CoreDNS's
// hosts plugin does. Its methods may be called concurrently.
type Hosts struct {
	cfg   HostsConfig
	table atomic.Pointer[hostsTable] // never modified

	reload  sync.Mutex // one Reload at a time
	missing bool       // the file did not exist; guarded by reload
}

// NewHosts reads the hosts file. If the file does not exist, it logs that and
// answers from the inline entries.
func NewHosts(c HostsConfig) (*Hosts, error) {
	if len(c.Zones) == 0 {
		c.Zones = []string{"."}
	}
	if c.ReadFile == nil {
		c.ReadFile = os.ReadFile
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, e := range c.Inline {
		if !e.Addr.IsValid() {
			return nil, fmt.Errorf("hosts: inline entry for %q has no address", e.Names)
		}
	}
	h := &Hosts{cfg: c}
	text, err := h.read()
	if errors.Is(err, fs.ErrNotExist) {
		h.missing = true
		c.Logger.Warn("hosts file does not exist", "file", c.Path)
	} else if err != nil {
		return nil, fmt.Errorf("hosts: %w", err)
	}
	h.table.Store(h.build(text))
	return h, nil
}

// Reload reads the file again. On error the old entries stay. A file that is still
// missing is no error. A file that has disappeared is an error once.
func (h *Hosts) Reload() error {
	h.reload.Lock()
	defer h.reload.Unlock()
	text, err := h.read()
	wasMissing := h.missing
	h.missing = errors.Is(err, fs.ErrNotExist)
	if h.missing && wasMissing {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reload hosts: %w", err)
	}
	h.table.Store(h.build(text))
	return nil
}

func (h *Hosts) read() ([]byte, error) {
	if h.cfg.Path == "" {
		return nil, nil
	}
	return h.cfg.ReadFile(h.cfg.Path)
}

// build makes a table of the file's text and the inline entries.
func (h *Hosts) build(text []byte) *hostsTable {
	t := newHostsTable(h.cfg.Zones, !h.cfg.NoReverse)
	t.parse(text)
	for _, e := range h.cfg.Inline {
		t.add(e.Addr, e.Names)
	}
	return t
}

// Exchange answers m with AA set. A name that has addresses of the other family
// only gets an empty NOERROR without SOA. An unknown name that does not fall
// through is an *Error, since there is no SOA for an NXDOMAIN.
func (h *Hosts) Exchange(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
	q, err := newQuestion(m)
	if err != nil {
		return nil, &Error{EDE: edeOther, Err: err}
	}
	t := h.table.Load()
	name := dns.CanonicalName(q.Name)
	if q.Qclass != dns.ClassINET {
		return nil, ErrNotMine
	}
	if q.Qtype == dns.TypePTR {
		if names := t.names[reverseAddr(name)]; len(names) > 0 {
			return q.reply(h.ptr(q.Name, names)), nil
		}
		return nil, ErrNotMine
	}
	if !within(h.cfg.Zones, name) {
		return nil, ErrNotMine
	}
	if h.cfg.FallthroughUnsupported && q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA && within(h.cfg.Fallthrough, name) {
		return nil, ErrNotMine
	}
	addrs := t.find(name)
	if len(addrs) == 0 {
		if within(h.cfg.Fallthrough, name) {
			return nil, ErrNotMine
		}
		return nil, &Error{EDE: edeOther, Text: "not in the hosts file",
			Err: fmt.Errorf("hosts: %s is not in the table", q.Name)}
	}
	return q.reply(h.addresses(q, addrs)), nil
}

// reply makes an authoritative answer.
func (q *question) reply(answer []dns.RR) *dns.Msg {
	return &dns.Msg{
		MsgHdr: dns.MsgHdr{
			Response: true, Authoritative: true,
			RecursionDesired: q.rd, CheckingDisabled: q.cd,
		},
		Question: []dns.Question{q.Question},
		Answer:   answer,
	}
}

func (h *Hosts) addresses(q *question, addrs []netip.Addr) []dns.RR {
	var out []dns.RR
	for _, a := range addrs {
		hdr := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: h.cfg.TTL}
		switch {
		case q.Qtype == dns.TypeA && a.Is4():
			out = append(out, &dns.A{Hdr: hdr, A: a.AsSlice()})
		case q.Qtype == dns.TypeAAAA && a.Is6():
			out = append(out, &dns.AAAA{Hdr: hdr, AAAA: a.AsSlice()})
		}
	}
	return out
}

func (h *Hosts) ptr(owner string, names []string) []dns.RR {
	out := make([]dns.RR, len(names))
	for i, n := range names {
		out[i] = &dns.PTR{
			Hdr: dns.RR_Header{Name: owner, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: h.cfg.TTL},
			Ptr: n,
		}
	}
	return out
}

// within reports whether name is at or below one of the zones.
func within(zones []string, name string) bool {
	return slices.ContainsFunc(zones, func(z string) bool { return dns.IsSubDomain(z, name) })
}
