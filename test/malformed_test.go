package test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	malformedPackets = 10_000
	malformedBatch   = 100 // between two checks that nodens still answers
	malformedTCP     = 300 // packets that are also sent over TCP
)

// TestMalformed sends packets that no stub sends. The expected rcodes are in
// their kind (see kinds) or, for mutations, come from judge.
func TestMalformed(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name    string
		packets []packet
		tcp     int
	}{
		{"truncations", truncations(t), 1000},
		{"packets", packets(t, malformedPackets), malformedTCP},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			n, ip := c.addUpstream(t)
			lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
				return lab.Denial(q, dns.RcodeNameError, ".")
			})
			d := c.start(t, `. {
				cache 30
				bind `+localIP+`
				forward . `+ip+`
				`+admin+`
			}`)
			m := &malformer{t: t, c: c, conn: c.pod.Dial(t, "udp", localAddr)}
			m.sendUDP(s.packets)
			m.sendTCP(s.packets[:min(len(s.packets), s.tcp)])
			m.sendTCP(s.packets[max(0, len(s.packets)-s.tcp):])
			got, _ := c.node.Scrape(t, metrics).Sum("nodens_server_discarded_total")
			if int(got) != m.silent {
				t.Errorf("%v messages discarded, want %d", got, m.silent)
			}
			d.CheckLog(t)
		})
	}
}

// packet is one message and the expected rcodes.
type packet struct {
	kind   string
	msg    []byte
	rcodes []int // any of them; empty: no reply
}

// id identifies the reply. Packets shorter than an ID have none.
func (p packet) setID(id uint16) {
	if len(p.msg) >= 2 {
		binary.BigEndian.PutUint16(p.msg, id)
	}
}

// malformer sends packets and checks the replies.
type malformer struct {
	t      *testing.T
	c      *cluster
	conn   net.Conn
	silent int // number of packets sent that must get no reply
}

// sentinelID is the ID of the correct query that follows each batch.
const sentinelID = 0xffff

// sendUDP sends the packets over UDP in batches.
func (m *malformer) sendUDP(all []packet) {
	m.t.Helper()
	for batch := range slices.Chunk(all, malformedBatch) {
		for i, p := range batch {
			p.setID(uint16(i))
			if len(p.rcodes) == 0 {
				m.silent++
			}
			if _, err := m.conn.Write(p.msg); err != nil {
				m.t.Fatalf("%s: %v", p.kind, err)
			}
		}
		m.collect(batch)
	}
}

// collect sends a correct query after a batch and reads replies until that query
// and all packets that need a reply have one. Replies that need no upstream come
// in order, so an unexpected one has come by then.
func (m *malformer) collect(batch []packet) {
	m.t.Helper()
	sentinel := lab.Query("still.here.example.", dns.TypeA)
	sentinel.Id = sentinelID
	b, err := sentinel.Pack()
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := m.conn.Write(b); err != nil {
		m.t.Fatal(err)
	}
	due := map[uint16]bool{sentinelID: true}
	for i, p := range batch {
		if len(p.rcodes) > 0 {
			due[uint16(i)] = true
		}
	}
	buf := make([]byte, dns.MaxMsgSize)
	for len(due) > 0 {
		_ = m.conn.SetReadDeadline(time.Now().Add(lab.QueryTimeout))
		n, err := m.conn.Read(buf)
		if err != nil {
			m.missing(batch, due, err)
			return
		}
		m.judgeReply(batch, due, buf[:n])
	}
}

func (m *malformer) missing(batch []packet, due map[uint16]bool, err error) {
	m.t.Helper()
	for id := range due {
		if id == sentinelID {
			m.t.Errorf("no reply to the correct query after the batch: %v", err)
			continue
		}
		m.t.Errorf("no reply to %s %x: %v", batch[id].kind, batch[id].msg, err)
	}
}

func (m *malformer) judgeReply(batch []packet, due map[uint16]bool, reply []byte) {
	m.t.Helper()
	if len(reply) < 12 {
		m.t.Errorf("a reply of %d bytes", len(reply))
		return
	}
	id := binary.BigEndian.Uint16(reply)
	if !due[id] {
		m.t.Errorf("unexpected or second reply with ID %d: %x", id, reply)
		return
	}
	delete(due, id)
	if id == sentinelID {
		if r, err := unpack(reply); err != nil || r.Rcode != dns.RcodeNameError {
			m.t.Errorf("the correct query after the batch: %v %v", r, err)
		}
		return
	}
	if err := batch[id].check(reply); err != nil {
		m.t.Errorf("%s: %v\nquery %x\nreply %x", batch[id].kind, err, batch[id].msg, reply)
	}
}

// check compares a reply with the expectations of the packet.
func (p packet) check(reply []byte) error {
	if reply[2]>>3&0xf != p.msg[2]>>3&0xf {
		return errors.New("the opcode is not the query's")
	}
	if reply[2]&0x80 == 0 || reply[3]&0x80 == 0 {
		return errors.New("QR or RA is not set")
	}
	r, err := unpack(reply)
	if err != nil {
		return err
	}
	rcode := r.Rcode
	if o := r.IsEdns0(); o != nil && o.Version() != 0 {
		return fmt.Errorf("EDNS version %d in the reply", o.Version())
	}
	if !slices.Contains(p.rcodes, rcode) {
		return fmt.Errorf("%s (%d), want one of %d", dns.RcodeToString[rcode], rcode, p.rcodes)
	}
	return nil
}

// unpack parses a complete message. The rcode includes the upper bits from OPT.
func unpack(b []byte) (*dns.Msg, error) {
	r := new(dns.Msg)
	if err := r.Unpack(b); err != nil {
		return nil, fmt.Errorf("parse reply: %w", err)
	}
	if n := int(binary.BigEndian.Uint16(b[10:])); n != len(r.Extra) {
		return nil, fmt.Errorf("%d additional records, the header has %d", len(r.Extra), n)
	}
	return r, nil
}

// sendTCP sends each packet on its own connection. nodens closes the connection
// of a packet that must get no reply.
func (m *malformer) sendTCP(all []packet) {
	m.t.Helper()
	for i, p := range all {
		p.setID(uint16(i))
		reply, err := m.once(p.msg)
		switch {
		case len(p.rcodes) == 0:
			m.silent++
			if err == nil {
				m.t.Errorf("%s over TCP: a reply %x to %x", p.kind, reply, p.msg)
			} else if !errors.Is(err, io.EOF) {
				m.t.Errorf("%s over TCP: %v; want the connection closed", p.kind, err)
			}
		case err != nil:
			m.t.Errorf("%s over TCP: %v for %x", p.kind, err, p.msg)
		default:
			if err := p.check(reply); err != nil {
				m.t.Errorf("%s over TCP: %v\nquery %x\nreply %x", p.kind, err, p.msg, reply)
			}
		}
	}
}

// once sends one frame and reads one.
func (m *malformer) once(msg []byte) ([]byte, error) {
	m.t.Helper()
	c, err := m.c.pod.DialContext(m.t.Context(), "tcp", localAddr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(lab.QueryTimeout))
	if _, err := c.Write(frame(msg)); err != nil {
		return nil, err
	}
	var prefix [2]byte
	if _, err := io.ReadFull(c, prefix[:]); err != nil {
		return nil, err
	}
	reply := make([]byte, binary.BigEndian.Uint16(prefix[:]))
	_, err = io.ReadFull(c, reply)
	return reply, err
}

func frame(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
}

// truncations are all proper prefixes of valid queries: no reply if the header is
// incomplete, otherwise FORMERR (RFC 1035 §4.1.1).
func truncations(t *testing.T) []packet {
	var all []packet
	for _, q := range validQueries() {
		whole := pack(t, q)
		for n := range len(whole) {
			p := packet{kind: fmt.Sprintf("%d of %d bytes", n, len(whole)), msg: bytes.Clone(whole[:n])}
			if n >= 12 {
				p.rcodes = []int{dns.RcodeFormatError}
			}
			all = append(all, p)
		}
	}
	return all
}

// validQueries are the base of truncations and mutations.
func validQueries() []*dns.Msg {
	plain := lab.Query("a.b.example.org.", dns.TypeA)
	edns := lab.Query("a.b.example.org.", dns.TypeAAAA).SetEdns0(1232, true)
	options := lab.Query("www.example.", dns.TypeHTTPS).SetEdns0(4096, false)
	options.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IP{192, 0, 2, 0}},
	}
	return []*dns.Msg{plain, edns, options, lab.Query(".", dns.TypeNS)}
}

func pack(t *testing.T, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// packets makes the same n packets in each run: the kinds of the table in turn,
// mutations of valid queries, and noise.
func packets(t *testing.T, n int) []packet {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 1035))
	var seeds [][]byte
	for _, q := range validQueries() {
		seeds = append(seeds, pack(t, q))
	}
	table := kinds(t)
	all := make([]packet, n)
	for i := range all {
		if i%2 == 0 {
			k := table[i/2%len(table)]
			all[i] = packet{k.name, k.make(r), k.rcodes}
			continue
		}
		if i%8 == 1 {
			msg := noise(r, r.IntN(600))
			all[i] = packet{"noise", msg, judge(msg)}
			continue
		}
		msg := mutate(r, bytes.Clone(seeds[r.IntN(len(seeds))]))
		all[i] = packet{"mutation", msg, judge(msg)}
	}
	return all
}
