package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// maxVerified is a sixth of what a kernel accepts, so that a kernel whose verifier
// follows more states accepts the program, too.
const maxVerified = 150_000

func openTestFastpath(t testing.TB, entries int) *Fastpath {
	t.Helper()
	spec, err := loadFast()
	check(t, err)
	return openTestSpec(t, entries, spec)
}

func openTestSpec(t testing.TB, entries int, spec *ebpf.CollectionSpec) *Fastpath {
	t.Helper()
	lab.NeedRoot(t)
	f, err := openFastpath(FastpathConfig{Entries: entries}, spec)
	if errors.Is(err, ErrKernel) && beforeLinux(t, 6, 6) {
		t.Skip("the fast path needs Linux 6.6")
	}
	check(t, err)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// beforeLinux reports whether the kernel is older than major.minor.
func beforeLinux(t testing.TB, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	check(t, unix.Uname(&u))
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		t.Fatal(err)
	}
	return a < major || a == major && b < minor
}

func TestFastpathIsCheapToVerify(t *testing.T) {
	f := openTestFastpath(t, 16)
	info, err := f.objs.Fastpath.Info()
	check(t, err)
	n, ok := info.VerifiedInstructions()
	t.Logf("the verifier processes %d instructions", n)
	if !ok || n > maxVerified {
		t.Errorf("the verifier processes %d instructions, more than %d", n, maxVerified)
	}
}

// packets makes queries and knows the right replies. It uses nothing of the code
// under test.
type packets struct {
	*rand.Rand
	listeners []netip.AddrPort
	answers   []modelAnswer
	byKey     map[string]*modelAnswer
}

// modelAnswer is an answer that the program has.
type modelAnswer struct {
	listener netip.AddrPort
	name     []byte // lower case
	tail     []byte // type and class
	flags    byte   // DO 1, CD 2, AD 4
	header   [10]byte
	body     []byte
	ttls     []int // offsets in body
	born     time.Time
	keepTTL  bool
	judged   int
	list     int
}

func (m *modelAnswer) key() string {
	return fmt.Sprint(m.listener, m.name, m.tail, m.flags)
}

func newPackets(seed uint64, n int) *packets {
	p := &packets{Rand: rand.New(rand.NewPCG(seed, 1)), byKey: make(map[string]*modelAnswer), listeners: []netip.AddrPort{
		netip.MustParseAddrPort("169.254.20.10:53"), netip.MustParseAddrPort("10.96.0.10:53"),
		netip.MustParseAddrPort("[fd00::10]:53"), netip.MustParseAddrPort("10.0.0.1:20053"),
	}}
	for len(p.answers) < n {
		a := p.answer()
		if _, dup := p.byKey[a.key()]; !dup {
			p.answers = append(p.answers, a)
			p.byKey[a.key()] = &p.answers[len(p.answers)-1]
		}
		if len(p.answers) == cap(p.answers) { // the slice will move
			p.answers = append(make([]modelAnswer, 0, 2*cap(p.answers)+8), p.answers...)
			for i := range p.answers {
				p.byKey[p.answers[i].key()] = &p.answers[i]
			}
		}
	}
	return p
}

// name returns a random name in wire format. It has at most limit bytes, and usually at
// least least.
func (p *packets) name(least, limit int) []byte {
	var name []byte
	for {
		n := 1 + p.IntN(20)
		if len(name)+n+2 > limit || len(name) > least && p.IntN(4) == 0 {
			return append(name, 0)
		}
		name = append(name, byte(n))
		for range n {
			name = append(name, "abcdefghijklmnopqrstuvwxyz0123456789-_\x80\x01"[p.IntN(40)])
		}
	}
}

func (p *packets) answer() modelAnswer {
	types := []uint16{1, 28, 65, 33, 6, 16, 257, 0x4141}
	least, limit := 0, 4+p.IntN(117)
	if p.IntN(16) == 0 { // the program's table takes 120
		least, limit = 100, 255
	}
	a := modelAnswer{
		listener: p.listeners[p.IntN(len(p.listeners))], name: p.name(least, limit),
		tail:  binary.BigEndian.AppendUint16(nil, types[p.IntN(len(types))]),
		flags: byte(p.IntN(8)), keepTTL: p.IntN(8) == 0,
		born:   time.Now().Add(-time.Duration(p.IntN(100)) * time.Second / 7),
		judged: p.IntN(int(fastLimitsFAST_JUDGED)), list: p.IntN(2 * LeaseLists),
	}
	if a.flags&1 != 0 {
		a.flags &^= 4
	}
	a.tail = append(a.tail, 0, 1)
	flags := uint16(0x8080) | uint16(p.IntN(2)*3) | uint16(a.flags&2)<<3 | uint16(p.IntN(2)<<5)
	binary.BigEndian.PutUint16(a.header[:], flags)
	binary.BigEndian.PutUint16(a.header[2:], 1)
	for n := p.IntN([]int{3, 20}[p.IntN(2)]); n > 0; n-- {
		rdata := p.IntN(40)
		a.body = append(a.body, 0xc0, 12)
		a.body = append(a.body, a.tail...)
		a.ttls = append(a.ttls, len(a.body))
		a.body = binary.BigEndian.AppendUint32(a.body, []uint32{0, 1, 7, 30, 3600, 1<<31 - 1}[p.IntN(6)])
		a.body = binary.BigEndian.AppendUint16(a.body, uint16(rdata))
		for range rdata {
			a.body = append(a.body, byte(p.Uint32()))
		}
		a.header[4+2*p.IntN(3)+1]++
	}
	return a
}

// TestFastpathBytes: the budget has the memory that the kernel charges for the maps. Counters and
// scratch memory exist for each possible CPU.
func TestFastpathBytes(t *testing.T) {
	spec, err := loadFast()
	check(t, err)
	cfg := FastpathConfig{Entries: 64}
	least := 126 * int64(fastLimitsFAST_ZONES) * int64(unsafe.Sizeof(fastZoneStats{}))
	if few, many := cfg.bytes(spec, 2), cfg.bytes(spec, 128); many-few < least {
		t.Errorf("%d bytes with 2 CPUs, %d with 128, want at least %d more", few, many, least)
	}
	f, charged := openTestFastpath(t, cfg.Entries), uint64(0)
	for _, m := range []*ebpf.Map{
		f.objs.Buckets, f.objs.Control, f.objs.SmallCells, f.objs.LargeCells, f.objs.Leases, f.objs.HitsOfLeases, f.objs.Notes,
		f.objs.Stats, f.objs.Passed, f.objs.Scratches,
	} {
		info, err := m.Info()
		check(t, err)
		n, _ := info.Memlock()
		charged += n
	}
	if pages := uint64(10 * 2 * os.Getpagesize()); charged > uint64(cfg.Bytes())+pages { // each map has a part of a page, and a head
		t.Errorf("the kernel charges %d bytes, and the budget has %d", charged, cfg.Bytes())
	}
}

// put gives the program the model's answers. It returns those that fit.
func (p *packets) put(t testing.TB, f *Fastpath) {
	generation := f.Listen(p.listeners)
	held := 0
	for i := range p.answers {
		if p.answers[i].put(f, generation) {
			held++
		} else {
			delete(p.byKey, p.answers[i].key())
		}
	}
	if held < len(p.answers)/2 || f.Entries() != held {
		t.Fatalf("the program holds %d of %d answers, of which %d were accepted", f.Entries(), len(p.answers), held)
	}
}

func (m *modelAnswer) put(f *Fastpath, generation uint32) bool {
	a := Answer{
		Generation: generation, Listener: m.listener, Header: m.header, Body: m.body, KeepTTL: m.keepTTL,
		Question: append(append(bytes.Clone(m.name), m.tail...), m.flags),
		Age:      time.Since(m.born), Left: time.Hour, Refresh: time.Hour, Judged: m.judged, List: m.list,
	}
	for _, off := range m.ttls {
		a.TTLs = binary.BigEndian.AppendUint16(a.TTLs, uint16(12+len(m.name)+4+off))
	}
	return f.Put(&a)
}

var testClients = []netip.Addr{netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("fd00:1::7")}

// query is a packet from one of testClients, mostly well-formed.
func (p *packets) query() []byte {
	m := &p.answers[p.IntN(len(p.answers))]
	name := bytes.Clone(m.name)
	for i, c := range name {
		if c >= 'a' && c <= 'z' && p.IntN(3) == 0 {
			name[i] = c - 32
		}
	}
	msg := binary.BigEndian.AppendUint16(nil, uint16(p.Uint32()))
	flags := uint16(p.IntN(2) << 8)
	flags |= uint16(m.flags&2) << 3
	if m.flags&4 != 0 || m.flags&1 != 0 && p.IntN(2) == 0 {
		flags |= 1 << 5
	}
	opt := m.flags&1 != 0 || p.IntN(2) == 0
	msg = binary.BigEndian.AppendUint16(msg, flags)
	msg = append(msg, 0, 1, 0, 0, 0, 0, 0, 0)
	msg = append(append(msg, name...), m.tail...)
	if opt {
		msg[11] = 1
		msg = append(msg, 0, 0, 41)
		msg = binary.BigEndian.AppendUint16(msg, []uint16{0, 512, 600, 1232, 4096, 65535}[p.IntN(6)])
		msg = append(msg, byte(p.IntN(50)/49), byte(p.IntN(50)/49), m.flags&1<<7, byte(p.IntN(3)))
		switch p.IntN(6) {
		case 0, 1:
			msg = append(msg, 0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, byte(p.Uint32()))
		case 2:
			msg = append(msg, 0, 8, 0, 8, 0, 4, 0, 1, 0, 0)
		default:
			msg = append(msg, 0, 0)
		}
	}
	packet := frame(msg, testClients[boolIndex(m.listener.Addr().Is6())], m.listener, uint16(1024+p.IntN(60000)))
	switch p.IntN(8) {
	case 0:
		packet[p.IntN(len(packet))] ^= 1 << p.IntN(8)
	case 1:
		packet[p.IntN(len(packet))] = byte(p.Uint32())
	case 2:
		packet = packet[:14+p.IntN(len(packet)-13)]
	case 3:
		packet = append(packet, make([]byte, p.IntN(20))...)
	}
	return packet
}

func boolIndex(b bool) int {
	if b {
		return 1
	}
	return 0
}

// frame is an Ethernet frame with a UDP datagram, with right checksums.
func frame(payload []byte, from netip.Addr, to netip.AddrPort, port uint16) []byte {
	f := []byte{2, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}
	n := 8 + len(payload)
	if from.Is4() {
		f = append(f, 8, 0, 0x45, 7, byte((n+20)>>8), byte(n+20), 0x12, 0x34, 0x40, 0, 63, 17, 0, 0)
	} else {
		f = append(f, 0x86, 0xdd, 0x60, 1, 2, 3, byte(n>>8), byte(n), 17, 63)
	}
	f = append(append(f, from.AsSlice()...), to.Addr().AsSlice()...)
	f = binary.BigEndian.AppendUint16(f, port)
	f = binary.BigEndian.AppendUint16(f, to.Port())
	f = binary.BigEndian.AppendUint16(f, uint16(n))
	f = append(append(f, 0, 0), payload...)
	l4 := 54
	if from.Is4() {
		l4 = 34
		binary.BigEndian.PutUint16(f[24:], ^sum16(f[14:34], 0))
	}
	binary.BigEndian.PutUint16(f[l4+6:], udpSum(f, l4))
	return f
}

func sum16(b []byte, start uint32) uint16 {
	for i, c := range b {
		start += uint32(c) << (8 * (1 - i&1))
	}
	for start > 0xffff {
		start = start&0xffff + start>>16
	}
	return uint16(start)
}

// udpSum is the right checksum of the datagram at l4, which must have 0 in its place.
func udpSum(f []byte, l4 int) uint16 {
	addrs := f[26:34]
	if l4 == 54 {
		addrs = f[22:54]
	}
	sum := ^sum16(f[l4:], uint32(sum16(addrs, uint32(17+len(f)-l4))))
	if sum == 0 {
		return 0xffff
	}
	return sum
}

// expect returns the right reply to a packet, without TTLs counted down, and the
// answer in it. nil: the program must pass the packet.
func (p *packets) expect(f []byte) ([]byte, *modelAnswer) {
	l4 := 34
	switch {
	case len(f) < 54:
		return nil, nil
	case f[12] == 8 && f[13] == 0:
		if f[14] != 0x45 || int(f[16])<<8|int(f[17]) != len(f)-14 || f[20]&^0x40 != 0 || f[21] != 0 || f[23] != 17 {
			return nil, nil
		}
	case f[12] == 0x86 && f[13] == 0xdd:
		l4 = 54
		if len(f) < 74 || f[14]>>4 != 6 || int(f[18])<<8|int(f[19]) != len(f)-54 || f[20] != 17 {
			return nil, nil
		}
	default:
		return nil, nil
	}
	src, dst := f[l4-8:l4-4], f[l4-4:l4]
	if l4 == 54 {
		src, dst = f[22:38], f[38:54]
	}
	from, _ := netip.AddrFromSlice(src)
	to, _ := netip.AddrFromSlice(dst)
	udp, msg := f[l4:], f[l4+8:]
	if from != testClients[0] && from != testClients[1] || int(udp[4])<<8|int(udp[5]) != len(udp) || udp[6]|udp[7] == 0 {
		return nil, nil
	}
	if msg[2]&0xf8 != 0 || msg[4] != 0 || msg[5] != 1 || binary.BigEndian.Uint32(msg[6:]) != 0 || msg[10] != 0 || msg[11] > 1 {
		return nil, nil
	}
	end, off := 0, 12
	for off < len(msg) && msg[off] != 0 {
		if msg[off] > 63 {
			return nil, nil
		}
		off += 1 + int(msg[off])
	}
	if end = off + 5; end > len(msg) {
		return nil, nil
	}
	limit, do, optLen := 512, byte(0), 0
	if opt := msg[end:]; msg[11] == 1 {
		plain := len(opt) == 11 && opt[9] == 0 && opt[10] == 0
		cookie := len(opt) == 23 && bytes.Equal(opt[9:15], []byte{0, 12, 0, 10, 0, 8})
		if !plain && !cookie || opt[0] != 0 || opt[1] != 0 || opt[2] != 41 || opt[6] != 0 {
			return nil, nil
		}
		limit, do, optLen = min(max(int(opt[3])<<8|int(opt[4]), 512), 1232), opt[7]>>7, 11
	} else if len(opt) != 0 {
		return nil, nil
	}
	flags := do | msg[3]>>4&1<<1
	if do == 0 {
		flags |= msg[3] >> 5 & 1 << 2
	}
	want := modelAnswer{
		listener: netip.AddrPortFrom(to, binary.BigEndian.Uint16(udp[2:])), flags: flags,
		name: bytes.Clone(msg[12 : end-4]), tail: msg[end-4 : end],
	}
	for i, c := range want.name {
		if c >= 'A' && c <= 'Z' {
			want.name[i] = c + 32
		}
	}
	m := p.byKey[want.key()]
	if m == nil || end+len(m.body)+optLen > limit {
		return nil, nil
	}
	reply := append(bytes.Clone(msg[:2]), m.header[:]...)
	reply[2] |= msg[2] & 1
	reply = append(append(reply, msg[12:end]...), m.body...)
	if optLen > 0 {
		reply[11]++
		reply = append(reply, 0, 0, 41, 1232>>8, 1232&0xff, 0, 0, do<<7, 0, 0, 0)
	}
	out := frame(reply, to, netip.AddrPortFrom(from, binary.BigEndian.Uint16(udp)), want.listener.Port())
	copy(out, append(bytes.Clone(f[6:12]), f[:6]...))
	return out, m
}

// checkReply compares the program's packet with the right one. from and to are when the
// program ran.
func (m *modelAnswer) checkReply(got, want []byte, from, to time.Time) error {
	l4, ip := 34, 20
	if want[12] == 0x86 {
		l4, ip = 54, 40
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes, want %d", len(got), len(want))
	}
	// The headers that the program chooses.
	want = bytes.Clone(want)
	if ip == 20 {
		want[15], want[18], want[19], want[22] = 0, 0, 0, 64
		want[24], want[25] = 0, 0
		binary.BigEndian.PutUint16(want[24:], ^sum16(want[14:34], 0))
	} else {
		want[15], want[16], want[17], want[21] = 0, 0, 0, 64
	}
	if !m.keepTTL {
		const lag = time.Second // of the coarse clock: a tick, and more in an emulated machine
		low, high := int((from.Sub(m.born)-lag)/time.Second), int(to.Sub(m.born)/time.Second)
		body := want[l4+8+12+len(m.name)+4:]
		if !m.agedBy(body, got[len(want)-len(body):], low, high) {
			return fmt.Errorf("wrong TTLs, want an age of %d to %d s:\n% x, want\n% x", low, high, got, want)
		}
	}
	want[l4+6], want[l4+7] = 0, 0
	binary.BigEndian.PutUint16(want[l4+6:], udpSum(want, l4))
	if !bytes.Equal(got, want) {
		return fmt.Errorf("got\n% x, want\n% x", got, want)
	}
	return nil
}

// agedBy reports whether the TTLs in got are those of body, less a number of seconds
// between low and high. Then it makes those of body equal.
func (m *modelAnswer) agedBy(body, got []byte, low, high int) bool {
	for age := max(low, 0); age <= high; age++ {
		right := true
		for _, off := range m.ttls {
			ttl := binary.BigEndian.Uint32(m.body[off:])
			ttl -= min(ttl, uint32(age))
			right = right && binary.BigEndian.Uint32(got[off:]) == ttl
			binary.BigEndian.PutUint32(body[off:], ttl)
		}
		if right {
			return true
		}
	}
	return false
}

// counts are those of answers, by client and list, and by result of normalize.
type counts struct {
	asked  map[netip.Addr]*[LeaseLists]uint32 // of each eighth query, by port and ID
	judged [fastLimitsFAST_JUDGED]uint64
}

func newCounts() *counts {
	c := &counts{asked: make(map[netip.Addr]*[LeaseLists]uint32)}
	for _, addr := range testClients {
		c.asked[addr] = new([LeaseLists]uint32)
	}
	return c
}

// add counts the answer m to a query.
func (c *counts) add(query []byte, m *modelAnswer) {
	c.judged[m.judged]++
	l4, client := 34, testClients[0]
	if query[12] == 0x86 {
		l4, client = 54, testClients[1]
	}
	if (query[l4+1]^query[l4+9])&7 == 0 {
		c.asked[client][min(m.list, LeaseLists-1)] += 8
	}
}

// check compares the program's counts with c.
func (c *counts) check(t *testing.T, f *Fastpath) {
	t.Helper()
	got := newCounts()
	f.asked = func(list int, client netip.Addr, n uint32) { got.asked[client][list] += n }
	f.LeaseTable.Report()
	for _, addr := range testClients {
		if *got.asked[addr] != *c.asked[addr] {
			t.Errorf("answers of %v by list: %v, want %v", addr, *got.asked[addr], *c.asked[addr])
		}
	}
	n, err := f.Counts(0)
	check(t, err)
	if n.Judged != c.judged {
		t.Errorf("results: %v, want %v", n.Judged, c.judged)
	}
}

// TestFastpathFuzz sends packets through the program and compares each reply with
// the one that an independent implementation makes. A packet that is passed must be
// unchanged. The program's counts must be those of the replies. NODENS_FASTPATH_FUZZ sets
// the number of packets.
func TestFastpathFuzz(t *testing.T) {
	f := openTestFastpath(t, 16384)
	count := 200_000
	if n, err := strconv.Atoi(os.Getenv("NODENS_FASTPATH_FUZZ")); err == nil {
		count = n
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	p := newPackets(seed, 2000)
	p.put(t, f)
	out := make([]byte, 2048)
	answered, passed, want := 0, 0, newCounts()
	for i := range count {
		if i%10_000 == 0 {
			for _, c := range testClients {
				f.Lease(1, c, time.Hour)
			}
		}
		in := p.query()
		reply, m := p.expect(in)
		before := time.Now()
		code, got := runPacket(t, f.objs.Fastpath, in, out)
		switch {
		case code == tcRedirect && m != nil:
			answered++
			want.add(in, m)
			// A changed IP or UDP checksum of the query does not matter here: the stack
			// drops such a query, and a changed sum makes the reply's wrong as well.
			if err := m.checkReply(got, reply, before, time.Now()); err != nil && checksumsHold(in) {
				t.Fatalf("packet %d: %v\nquery\n% x", i, err, in)
			}
		case code == tcNext && m == nil:
			passed++
			if !bytes.Equal(got, in) {
				t.Fatalf("packet %d is passed, but changed:\n% x, was\n% x", i, got, in)
			}
		default:
			t.Fatalf("packet %d: result %d, want an answer: %t\n% x", i, code, m != nil, in)
		}
	}
	t.Logf("%d answered, %d passed", answered, passed)
	want.check(t, f)
	if answered < count/4 || passed < count/20 {
		t.Error("the packets do not cover both cases")
	}
}

// checksumsHold reports whether the UDP checksum of a query is right.
func checksumsHold(f []byte) bool {
	l4 := 34
	if f[12] == 0x86 {
		l4 = 54
	}
	f = bytes.Clone(f)
	have := binary.BigEndian.Uint16(f[l4+6:])
	f[l4+6], f[l4+7] = 0, 0
	return have == udpSum(f, l4)
}

const (
	tcNext     = ^uint32(0)
	tcShot     = 2
	tcRedirect = 7
)

// runPacket runs the program once. The packet is on interface 1.
func runPacket(t testing.TB, prog *ebpf.Program, in, out []byte) (uint32, []byte) {
	t.Helper()
	if len(in) < 14 {
		return tcNext, in
	}
	opts := ebpf.RunOptions{Data: in, DataOut: out}
	code, err := prog.Run(&opts)
	if errors.Is(err, unix.EINVAL) { // too short for an IP header
		return tcNext, in
	}
	check(t, err)
	return code, opts.DataOut
}
