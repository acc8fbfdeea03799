package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"
)

// ErrSnapshot means that a snapshot is not one, is damaged, or is of another
// boot. What was read before the damage is kept: each part is checked before it
// is used.
var ErrSnapshot = errors.New("unusable snapshot")

// longAgo is when all answers have expired.
const longAgo = time.Duration(math.MaxInt64 / 4)

// ReadSnapshot adds what WriteSnapshot has written to the ids that are open, and
// returns the number of entries. now is the present. Answers have the age that
// they would have, had they been here all along; those that are too old, that
// the policy of their id would not keep, and those that the Store has an answer
// to by now, are left out.
func (s *Store) ReadSnapshot(r io.Reader, now Stamp) (int, error) {
	head := make([]byte, snapshotHeader)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, fmt.Errorf("read snapshot: %w", short(err))
	}
	rest, ok := bytes.CutPrefix(head, []byte(snapshotMagic))
	if !ok || [16]byte(rest[:16]) != now.Boot {
		return 0, fmt.Errorf("read snapshot: %w: of another version or boot", ErrSnapshot)
	}
	since := now.Since - time.Duration(binary.BigEndian.Uint64(rest[16:]))
	if since < 0 || since > longAgo {
		return 0, fmt.Errorf("read snapshot: %w: from the future", ErrSnapshot)
	}
	kept := 0
	for {
		payload, err := readChunk(r)
		if err != nil || payload == nil {
			return kept, err
		}
		n, err := s.restore(payload, since)
		if kept += n; err != nil {
			return kept, err
		}
	}
}

// readChunk returns a payload, or nil at the end.
func readChunk(r io.Reader) ([]byte, error) {
	var head [chunkHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", short(err))
	}
	if head == [chunkHeader]byte{} {
		return nil, nil
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxChunk {
		return nil, fmt.Errorf("read snapshot: %w: a part of %d octets", ErrSnapshot, n)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", short(err))
	}
	if crc32.Checksum(payload, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return nil, fmt.Errorf("read snapshot: %w: the checksum is wrong", ErrSnapshot)
	}
	return payload, nil
}

// short makes an early end an ErrSnapshot.
func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut short", ErrSnapshot)
	}
	return err
}

// restore adds the entries of a payload that was written since ago.
func (s *Store) restore(payload []byte, since time.Duration) (int, error) {
	damaged := fmt.Errorf("read snapshot: %w: a part is malformed", ErrSnapshot)
	if len(payload) < 2 {
		return 0, damaged
	}
	n := 2 + int(binary.BigEndian.Uint16(payload))
	if n > len(payload) {
		return 0, damaged
	}
	c := s.handle(string(payload[2:n]))
	if c == nil {
		return 0, nil
	}
	kept := 0
	for rest := payload[n:]; len(rest) > 0; {
		e, size, ok := c.parse(rest, since)
		if !ok {
			return kept, damaged
		}
		if rest = rest[size:]; c.adopt(e) {
			kept++
		}
	}
	return kept, nil
}

// handle returns the handle on an id that is open that was made last, or nil.
func (s *Store) handle(id string) *Cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[id]
	if sp == nil {
		return nil
	}
	return &Cache{store: s, space: sp, policy: sp.policy}
}

// restored is an entry from a snapshot.
type restored struct {
	Entry
	legacy
	key  []byte
	born time.Duration
}

// parse reads an entry and returns its length in the snapshot.
func (c *Cache) parse(b []byte, since time.Duration) (*restored, int, bool) {
	if len(b) < snapshotEntry {
		return nil, 0, false
	}
	size := snapshotEntry + int(binary.BigEndian.Uint16(b[18:]))
	if size > len(b) {
		return nil, 0, false
	}
	msg, state := b[snapshotEntry:size], b[16]
	age := time.Duration(min(binary.BigEndian.Uint64(b), uint64(longAgo)))
	e := &restored{born: c.store.elapsed() - age - since}
	e.ttl, e.rcode = binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint16(b[14:])
	e.legacy = legacy{hits: binary.BigEndian.Uint16(b[12:]), freq: state & stateFreq, main: state&stateMain != 0}
	e.kind, e.flags, e.msgLen = Kind(state&stateKind>>kindShift), b[17], uint16(len(msg))
	q := questionEnd(msg)
	if e.kind > Denial || e.ttl == 0 || e.ttl > math.MaxInt32 || e.rcode > 0xfff || q < 0 || len(msg) == math.MaxUint16 {
		return nil, 0, false
	}
	e.key = append(append([]byte(nil), msg[headerLen:q]...), e.flags)
	if !validKey(e.key) || binary.BigEndian.Uint16(msg[4:]) != 1 || !isLower(e.key[:len(e.key)-keyTail]) {
		return nil, 0, false
	}
	var ok bool
	e.buf, ok = appendTTLOffsets(append([]byte(nil), msg...), msg)
	return e, size, ok
}

func isLower(name []byte) bool {
	for _, b := range name {
		if lower(b) != b {
			return false
		}
	}
	return true
}

// adopt keeps e unless it is too old, there is an answer already, or others
// would have to go: what comes later is worth less.
func (c *Cache) adopt(e *restored) bool {
	if c.store.elapsed() >= e.born+e.TTL()+c.policy.staleFor || !c.policy.keeps(e.kind, e.key) {
		return false
	}
	hash := c.store.hash(e.key)
	set := c.set(hash)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()
	limit := c.policy.classes[e.kind].cap
	if set.find(Success, hash, e.key) != 0 || set.bins[e.kind].len() >= limit || !set.shard.hasRoom(blocksFor(len(e.buf))) {
		return false
	}
	return set.add(hash, &e.Entry, e.born, limit, e.legacy)
}
