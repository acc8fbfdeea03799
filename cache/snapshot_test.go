package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var (
	someBoot = [16]byte{1, 2, 3}
	written  = Stamp{someBoot, 1000 * time.Second}
)

func snapshotOf(t testing.TB, s *Store, limit int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := s.WriteSnapshot(&buf, written, limit); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func later(d time.Duration) Stamp { return Stamp{someBoot, written.Since + d} }

// Ages keep counting, also between the two processes. Answers that can no longer
// be served, failures, and answers that the new process already has are skipped.
func TestSnapshot(t *testing.T) {
	p := Policy{ServFail: time.Minute, StaleFor: 100 * time.Second, Prefetch: Prefetch{Amount: 3, Percentage: 100}}
	old := newFixture(t, p)
	young, known := success(t, "young.example. 60 IN A 192.0.2.1"), success(t, "known.example. 60 IN A 192.0.2.1")
	stale, gone := success(t, "stale.example. 10 IN A 192.0.2.1"), success(t, "gone.example. 1 IN A 192.0.2.1")
	denied, failed := nxdomain(t, "no.example.", soa60of300), servfail("broken.example.")
	for _, m := range []*dns.Msg{stale, gone} {
		old.put(t, keyOf(m), m)
	}
	old.clock.advance(90 * time.Second)
	for _, m := range []*dns.Msg{young, known, denied} {
		old.put(t, keyOf(m), m)
	}
	old.putFailure(t, keyOf(failed), failed)
	for range 3 {
		old.get(keyOf(young))
	}
	old.clock.advance(10 * time.Second)
	other := old.store.Cache("other", Policy{})
	mustPut(t, other, young)
	snapshot := snapshotOf(t, old.store, 1<<20)

	f := newFixture(t, p)
	f.clock.advance(time.Hour)
	better := success(t, "known.example. 60 IN A 192.0.2.2")
	mine := f.put(t, keyOf(better), better)
	n, err := f.store.ReadSnapshot(bytes.NewReader(snapshot), later(5*time.Second))
	if n != 3 || err != nil {
		t.Fatalf("restored %d, %v", n, err)
	}
	checkAccounts(t, f.store)
	if h := f.get(keyOf(young)); h.State != Fresh || h.Age != 15 || !h.Refresh {
		t.Errorf("young: %+v", h)
	} else if got := unpackAged(t, h.Entry, h.Age); got.Answer[0].String() != "young.example.\t45\tIN\tA\t192.0.2.1" {
		t.Errorf("young: %v", got)
	}
	if h := f.get(keyOf(denied)); h.State != Fresh || h.Entry.Kind() != Denial || h.Entry.Rcode() != dns.RcodeNameError {
		t.Errorf("denied: %+v", h)
	}
	if h := f.get(keyOf(stale)); h.State != Stale {
		t.Errorf("stale: %+v", h)
	}
	if h := f.get(keyOf(known)); !same(h.Entry, mine) {
		t.Errorf("known: %+v", h)
	}
	for _, m := range []*dns.Msg{gone, failed} {
		if h := f.get(keyOf(m)); h.State != Miss {
			t.Errorf("%s: %+v", m.Question[0].Name, h)
		}
	}
	f.clock.advance(45 * time.Second)
	if h := f.get(keyOf(young)); h.State != Stale {
		t.Errorf("young, a minute old: %+v", h)
	}
}

func TestSnapshotOfManyEntries(t *testing.T) {
	clk := newClock()
	old := New(Options{Shards: 4, Now: clk.Now})
	c := old.Cache("zone", Policy{})
	const n = 20_000
	for i := range n {
		mustPut(t, c, numbered(i))
		if i%4 == 0 {
			c.Get(keyOf(numbered(i)), clk.now)
		}
	}
	all := snapshotOf(t, old, 64<<20)
	for _, tt := range []struct {
		what      string
		limit     int64
		o         Options
		p         Policy
		low, high int
	}{
		{"all", 64 << 20, Options{Shards: 3}, Policy{}, n, n},
		{"a quarter of the bytes", int64(len(all)) / 4, Options{}, Policy{}, n / 5, n / 3},
		{"into a small cap", 64 << 20, Options{Shards: 2}, Policy{Success: Class{Entries: 1000}}, 1000, 1000},
		{"into a small budget", 64 << 20, Options{Bytes: 1 << 20}, Policy{}, 2000, 6000},
		{"into a disabled cache", 64 << 20, Options{}, Policy{Success: Class{Disabled: true}}, 0, 0},
	} {
		tt.o.Now = clk.Now
		s := New(tt.o)
		s.Cache("zone", tt.p)
		snapshot := snapshotOf(t, old, tt.limit)
		got, err := s.ReadSnapshot(bytes.NewReader(snapshot), later(0))
		if st := s.Stats(); err != nil || got < tt.low || got > tt.high || st.Entries != got || st.Bytes > st.Budget {
			t.Errorf("%s: restored %d, %v, %+v", tt.what, got, err, st)
		}
		checkAccounts(t, s)
	}
}

// Entries with lookups come first.
func TestSnapshotOrder(t *testing.T) {
	clk := newClock()
	old := New(Options{Shards: 1, Now: clk.Now})
	c := old.Cache("zone", Policy{Success: Class{Entries: 1000}})
	for i := range 3000 {
		mustPut(t, c, numbered(i))
		if i < 100 {
			c.Get(keyOf(numbered(i)), clk.now)
		}
	}
	s := New(Options{Now: clk.Now})
	warm := s.Cache("zone", Policy{})
	if _, err := s.ReadSnapshot(bytes.NewReader(snapshotOf(t, old, 1)), later(0)); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if warm.Get(keyOf(numbered(i)), clk.now).State != Fresh {
			t.Fatalf("popular name %d is missing; %+v", i, s.Stats())
		}
	}
}

func TestSnapshotWithWrongStamp(t *testing.T) {
	f := newFixture(t, Policy{})
	m := success(t, "www.example. 60 IN A 192.0.2.1")
	f.put(t, keyOf(m), m)
	snapshot := snapshotOf(t, f.store, 1<<20)
	for what, now := range map[string]Stamp{
		"another boot": {[16]byte{1}, written.Since}, "the past": later(-1), "zero time": {Boot: someBoot}, "long ago": later(longAgo),
	} {
		s := New(Options{})
		s.Cache("zone", Policy{})
		if n, err := s.ReadSnapshot(bytes.NewReader(snapshot), now); n != 0 || !errors.Is(err, ErrSnapshot) && what != "long ago" {
			t.Errorf("%s: restored %d, %v", what, n, err)
		}
	}
}

// Damage is detected at every offset, and damaged entries are not used.
func TestDamagedSnapshot(t *testing.T) {
	f := newFixture(t, Policy{})
	for i := range 3 {
		f.put(t, keyOf(numbered(i)), numbered(i))
	}
	whole := snapshotOf(t, f.store, 1<<20)
	read := func(b []byte) (int, error) {
		s := New(Options{Shards: 1, Bytes: 1 << 20})
		s.Cache("zone", Policy{})
		return s.ReadSnapshot(bytes.NewReader(b), later(0))
	}
	if n, err := read(whole); n != 3 || err != nil {
		t.Fatalf("undamaged: %d, %v", n, err)
	}
	for i := range whole {
		if n, err := read(whole[:i]); !errors.Is(err, ErrSnapshot) || n != 0 && i < len(whole)-chunkHeader {
			t.Errorf("cut at %d: restored %d, %v", i, n, err)
		}
		b := slices.Clone(whole)
		b[i] ^= 0x10
		inTime := i >= len(snapshotMagic)+16 && i < snapshotHeader
		if n, err := read(b); !inTime && (!errors.Is(err, ErrSnapshot) || n != 0 && i < len(whole)-chunkHeader) {
			t.Errorf("byte %d changed: restored %d, %v", i, n, err)
		}
	}
	failing := io.MultiReader(bytes.NewReader(whole[:100]), iotestErr{})
	s := New(Options{})
	if _, err := s.ReadSnapshot(failing, later(0)); !errors.Is(err, errTest) {
		t.Errorf("error of the reader: %v", err)
	}
}

var errTest = errors.New("test")

type iotestErr struct{}

func (iotestErr) Read([]byte) (int, error) { return 0, errTest }

// FuzzReadSnapshot reads any payload with a correct checksum and then uses the
// cache.
func FuzzReadSnapshot(f *testing.F) {
	s := New(Options{Shards: 1})
	c := s.Cache("zone", Policy{})
	for i, m := range []*dns.Msg{numbered(1), nxdomain(f, "no.example.", soa60of300), large(f)} {
		mustPut(f, c, m)
		b := snapshotOf(f, s, 1<<20)
		payload := b[snapshotHeader+chunkHeader : len(b)-chunkHeader]
		f.Add(payload)
		f.Add(payload[:len(payload)-i-1])
		payload = slices.Clone(payload)
		payload[len(payload)/2] ^= 0x81
		f.Add(payload)
	}
	f.Add([]byte("\x00\x04zone"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := append([]byte(snapshotMagic), someBoot[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(written.Since))
		b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
		b = append(append(b, payload...), make([]byte, chunkHeader)...)
		s := New(Options{Shards: 1, Bytes: 256 << 10})
		c := s.Cache("zone", Policy{StaleFor: time.Hour})
		n, err := s.ReadSnapshot(bytes.NewReader(b), later(time.Second))
		if err != nil && !errors.Is(err, ErrSnapshot) {
			t.Error(err)
		}
		checkAccounts(t, s)
		useAll(t, s, c, n)
	})
}

// useAll uses each of n entries as the server does.
func useAll(t *testing.T, s *Store, c *Cache, n int) {
	t.Helper()
	sh, used := s.shards[0], 0
	for _, k := range []Kind{Success, Denial} {
		for _, main := range []bool{false, true} {
			for id := c.space.sets[0].bins[k].queue(main).oldest; id != 0; id = sh.slab.slot(id).next {
				var e Entry
				sh.slab.read(id, &e)
				key := append(slices.Clone(e.Msg()[headerLen:questionEnd(e.Msg())]), e.flags)
				if h := c.Get(key, time.Now()); h.State == Miss || !same(h.Entry, &e) {
					t.Errorf("not found: %+v", e)
				}
				msg := slices.Clone(e.Msg())
				e.AgeTTLs(msg, 1)
				e.Truncate(msg, 60)
				used++
			}
		}
	}
	if used != n {
		t.Errorf("%d entries of %d", used, n)
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := New(Options{Bytes: 64 << 20, Shards: 8})
	c := s.Cache("zone", Policy{})
	e, err := NewEntry(numbered(0))
	if err != nil {
		b.Fatal(err)
	}
	for i := range 100_000 {
		putNumbered(c, e, i)
	}
	var buf bytes.Buffer
	b.Run("write", func(b *testing.B) {
		for range b.N {
			buf.Reset()
			if err := s.WriteSnapshot(&buf, written, 64<<20); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(int64(buf.Len()))
	})
	b.Run("read", func(b *testing.B) {
		for range b.N {
			s := New(Options{Bytes: 64 << 20, Shards: 8})
			s.Cache("zone", Policy{})
			if n, err := s.ReadSnapshot(bytes.NewReader(buf.Bytes()), later(0)); n != 100_000 || err != nil {
				b.Fatal(n, err)
			}
		}
		b.SetBytes(int64(buf.Len()))
	})
}
