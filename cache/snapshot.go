package cache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"time"
)

// A snapshot transfers the entries of a Store to a Store of another process on
// the same machine. All numbers are big endian.
//
//	"nodens cache 1\n"
//	16 octets boot, 8 octets nanoseconds since boot    see Stamp
//	chunks: 4 octets length of the payload, 4 octets its CRC-32C, the payload
//	a chunk without payload
//
// A payload is 2 octets length of an id, the id, and entries of that id:
//
//	8 octets age in nanoseconds, 4 octets TTL in seconds, 2 octets hits,
//	2 octets rcode, 1 octet state, 1 octet flags of the key,
//	2 octets length of the message, the message
const snapshotMagic = "nodens cache 1\n"

const (
	snapshotHeader = len(snapshotMagic) + 16 + 8
	chunkHeader    = 8
	chunkBytes     = 64 << 10 // a chunk ends when it reaches this size
	maxChunk       = chunkBytes + 1<<16 + snapshotEntry + 1<<16
	snapshotEntry  = 20 // size of an entry without its message
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Stamp is a point in time that all processes on a machine agree on, independent
// of the wall clock: the id of the boot and the time since it.
type Stamp struct {
	Boot  [16]byte
	Since time.Duration
}

// WriteSnapshot writes the answers and denials of all ids, popular ones first,
// until it has written about limit bytes. now is the current time. Entries that
// are put meanwhile may be included or not.
func (s *Store) WriteSnapshot(w io.Writer, now Stamp, limit int64) error {
	head := append([]byte(snapshotMagic), now.Boot[:]...)
	head = binary.BigEndian.AppendUint64(head, uint64(now.Since))
	if _, err := w.Write(head); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	s.mu.Lock()
	spaces := maps.Clone(s.spaces)
	s.mu.Unlock()
	sw := &snapshotWriter{w: w, store: s, now: s.elapsed(), left: limit}
	for _, main := range []bool{true, false} {
		for _, id := range slices.Sorted(maps.Keys(spaces)) {
			if err := sw.space(id, spaces[id], main); err != nil {
				return fmt.Errorf("write snapshot: %w", err)
			}
		}
	}
	if _, err := w.Write(make([]byte, chunkHeader)); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

type snapshotWriter struct {
	w     io.Writer
	store *Store
	now   time.Duration
	left  int64
	chunk bytes.Buffer
	entry Entry
}

// space writes the main or the small queues of an id.
func (sw *snapshotWriter) space(id string, sp *space, main bool) error {
	if len(id) >= 1<<16 {
		return nil
	}
	for _, set := range sp.sets {
		for _, k := range []Kind{Success, Denial} {
			if err := sw.queue(id, set, k, main); err != nil {
				return err
			}
		}
	}
	return nil
}

// queue writes a queue from its newest end. It locks the shard for one chunk at a
// time; the queue may change in between.
func (sw *snapshotWriter) queue(id string, set *binSet, k Kind, main bool) error {
	next, seq := uint32(0), uint32(0)
	for started := false; sw.left > 0 && (!started || next != 0); started = true {
		sw.chunk.Reset()
		sw.chunk.Write(make([]byte, chunkHeader))
		_ = binary.Write(&sw.chunk, binary.BigEndian, uint16(len(id)))
		sw.chunk.WriteString(id)
		empty := sw.chunk.Len()
		set.shard.mu.Lock()
		if started {
			next = set.resume(k, main, seq)
		} else {
			next = set.bins[k].queue(main).newest
		}
		for next != 0 && sw.chunk.Len() < chunkBytes {
			sw.append(set.shard, next)
			next = set.shard.slab.slot(next).prev
		}
		if next != 0 {
			seq = set.shard.slab.slot(next).seq
		}
		set.shard.mu.Unlock()
		if sw.chunk.Len() == empty {
			return nil
		}
		if err := sw.flush(); err != nil {
			return err
		}
	}
	return nil
}

// resume returns the newest entry whose sequence number is not after seq, or 0.
func (s *binSet) resume(k Kind, main bool, seq uint32) uint32 {
	if s.retired {
		return 0
	}
	slab := &s.shard.slab
	for id := s.bins[k].queue(main).newest; id != 0; id = slab.slot(id).prev {
		if int32(slab.slot(id).seq-seq) <= 0 {
			return id
		}
	}
	return 0
}

func (sw *snapshotWriter) append(sh *shard, id uint32) {
	sl := sh.slab.slot(id)
	sh.slab.read(id, &sw.entry)
	b := sw.chunk.AvailableBuffer()
	b = binary.BigEndian.AppendUint64(b, uint64(max(int64(sw.now)-sl.born, 0)))
	b = binary.BigEndian.AppendUint32(b, sl.ttl)
	b = binary.BigEndian.AppendUint16(b, sl.hits)
	b = binary.BigEndian.AppendUint16(b, sl.rcode)
	b = append(b, sl.state&^(stateRefreshing|stateCut), sl.key)
	b = binary.BigEndian.AppendUint16(b, sl.msgLen)
	sw.chunk.Write(append(b, sw.entry.Msg()...))
}

func (sw *snapshotWriter) flush() error {
	b := sw.chunk.Bytes()
	binary.BigEndian.PutUint32(b, uint32(len(b)-chunkHeader))
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[chunkHeader:], castagnoli))
	sw.left -= int64(len(b))
	_, err := sw.w.Write(b)
	return err
}
