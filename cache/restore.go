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

// ErrSnapshot means that the input is no snapshot, is damaged, or is from another
// boot. Entries read before the damage stay: each chunk is checked before use.
var ErrSnapshot = errors.New("unusable snapshot")

// longAgo is an age at which every answer has expired.
const longAgo = time.Duration(math.MaxInt64 / 4)

// ReadSnapshot adds the entries that WriteSnapshot has written to the ids that
// are open, and returns their number. now is the current time. Answers keep
// aging between write and read. ReadSnapshot skips answers that have expired,
// that the policy of their id excludes, and whose key the Store has already.
func (s *Store) ReadSnapshot(r io.Reader, now Stamp) (int, error) {
	head := make([]byte, snapshotHeader)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, fmt.Errorf("read snapshot: %w", truncated(err))
	}
	rest, ok := bytes.CutPrefix(head, []byte(snapshotMagic))
	if !ok || [16]byte(rest[:16]) != now.Boot {
		return 0, fmt.Errorf("read snapshot: %w: it is from another version or boot", ErrSnapshot)
	}
	since := now.Since - time.Duration(binary.BigEndian.Uint64(rest[16:]))
	if since < 0 || since > longAgo {
		return 0, fmt.Errorf("read snapshot: %w: it is from the future", ErrSnapshot)
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

// readChunk returns the payload of a chunk, or nil at the end.
func readChunk(r io.Reader) ([]byte, error) {
	var head [chunkHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", truncated(err))
	}
	if head == [chunkHeader]byte{} {
		return nil, nil
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxChunk {
		return nil, fmt.Errorf("read snapshot: %w: a chunk has %d bytes", ErrSnapshot, n)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", truncated(err))
	}
	if crc32.Checksum(payload, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return nil, fmt.Errorf("read snapshot: %w: the checksum is wrong", ErrSnapshot)
	}
	return payload, nil
}

// truncated turns an early end of the input into an ErrSnapshot.
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is truncated", ErrSnapshot)
	}
	return err
}

// restore adds the entries of a payload that was written the time since ago.
func (s *Store) restore(payload []byte, since time.Duration) (int, error) {
	damaged := fmt.Errorf("read snapshot: %w: a chunk is malformed", ErrSnapshot)
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
		if rest = rest[size:]; c.restoreEntry(e) {
			kept++
		}
	}
	return kept, nil
}

// handle returns a handle with the latest policy of an open id, or nil.
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
	inherited
	key  []byte
	born time.Duration
}

// parse reads one entry and returns its length in the snapshot.
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
	e.inherited = inherited{hits: binary.BigEndian.Uint16(b[12:]), freq: state & stateFreq, main: state&stateMain != 0}
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
	e.buf, ok = appendOffsets(append([]byte(nil), msg...), nil)
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

// restoreEntry stores e unless it has expired, the key has an answer already, or
// another entry would be evicted. Later entries of a snapshot are less popular.
func (c *Cache) restoreEntry(e *restored) bool {
	if c.store.elapsed() >= e.born+e.TTL()+c.policy.staleFor || !c.policy.keeps(e.kind, e.key) {
		return false
	}
	hash, set := c.locate(e.key)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()
	limit := c.policy.classes[e.kind].cap
	if set.find(Success, hash, e.key) != 0 || set.bins[e.kind].entries >= limit || !set.shard.hasRoom(blocksFor(len(e.buf))) {
		return false
	}
	return set.add(hash, &e.Entry, e.born, limit, e.inherited)
}
