package cache

// index finds entries by hash, with open addressing and linear probing. A slot
// holds the hash in its upper half and the number of the entry's first block in
// its lower half; 0 is empty. The ghosts are 16 bits of the hash of entries that
// were evicted before their second lookup. A new ghost overwrites the old one in
// its place.
type index struct {
	slots  []uint64 // the length is a power of two
	ghosts []uint16 // as many as slots
	n      int      // entries
}

const (
	minSlots  = 16
	slotBytes = 8 + 2
)

func (x *index) bytes() int64 { return int64(len(x.slots)) * slotBytes }

// full reports whether another entry needs a larger table.
func (x *index) full() bool { return (x.n+1)*5 > len(x.slots)*4 }

// grownBytes is the size of the next larger table.
func (x *index) grownBytes() int64 { return int64(max(2*len(x.slots), minSlots)) * slotBytes }

func (x *index) grow() {
	old := x.slots
	ghosts := x.ghosts
	x.slots = make([]uint64, max(2*len(old), minSlots))
	x.ghosts = make([]uint16, len(x.slots))
	for i, g := range ghosts { // one bit of the position is unknown: fill both
		x.ghosts[i], x.ghosts[i+len(ghosts)] = g, g
	}
	for _, s := range old {
		if s != 0 {
			x.place(s)
		}
	}
}

// minBytes is the size of the smallest table for the present entries.
func (x *index) minBytes() int64 {
	if x.n == 0 {
		return 0
	}
	slots := minSlots
	for x.n*5 > slots*4 {
		slots *= 2
	}
	return int64(slots) * slotBytes
}

// shrink replaces the table with the smallest one. Shrinking loses the ghosts.
func (x *index) shrink() {
	if x.minBytes() == x.bytes() {
		return
	}
	old := x.slots
	*x = index{slots: make([]uint64, x.minBytes()/slotBytes), ghosts: make([]uint16, x.minBytes()/slotBytes), n: x.n}
	for _, s := range old {
		if s != 0 {
			x.place(s)
		}
	}
}

func (x *index) place(s uint64) {
	mask := uint32(len(x.slots) - 1)
	i := uint32(s>>32) & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = s
}

func (x *index) add(hash, id uint32) {
	x.place(uint64(hash)<<32 | uint64(id))
	x.n++
}

// position returns the slot of an entry, which must exist.
func (x *index) position(hash, id uint32) uint32 {
	mask, want := uint32(len(x.slots)-1), uint64(hash)<<32|uint64(id)
	i := hash & mask
	for x.slots[i] != want {
		i = (i + 1) & mask
	}
	return i
}

// remove moves later slots into the gap, so that no probe ends early.
func (x *index) remove(hash, id uint32) {
	mask := uint32(len(x.slots) - 1)
	gap := x.position(hash, id)
	for i := (gap + 1) & mask; x.slots[i] != 0; i = (i + 1) & mask {
		home := uint32(x.slots[i]>>32) & mask
		if (i-home)&mask >= (i-gap)&mask {
			x.slots[gap] = x.slots[i]
			gap = i
		}
	}
	x.slots[gap] = 0
	x.n--
}

// addGhost records that the entry of hash was evicted.
func (x *index) addGhost(hash uint32) {
	x.ghosts[hash&uint32(len(x.ghosts)-1)] = ghost(hash)
}

// takeGhost reports whether hash has a ghost, and removes it.
func (x *index) takeGhost(hash uint32) bool {
	if len(x.ghosts) == 0 {
		return false
	}
	g := &x.ghosts[hash&uint32(len(x.ghosts)-1)]
	if *g != ghost(hash) {
		return false
	}
	*g = 0
	return true
}

func ghost(hash uint32) uint16 { return uint16(hash>>16) | 1 }
