package cache

// index finds entries by hash: open addressing with linear probing. A slot
// holds the hash in its upper half and the number of the entry's first block in
// the lower; 0 is an empty one. Beside it stand the ghosts: 16 bits of the
// hashes of entries that were dropped before they were asked for twice. Each
// new ghost takes the place of the one that it falls on.
type index struct {
	slots  []uint64 // a power of two
	ghosts []uint16 // as many
	n      int
}

const (
	minSlots  = 16
	slotBytes = 8 + 2
)

func (x *index) bytes() int64 { return int64(len(x.slots)) * slotBytes }

// full reports whether one more entry needs a larger table.
func (x *index) full() bool { return (x.n+1)*5 > len(x.slots)*4 }

// grown is what the table takes when it is the next size.
func (x *index) grown() int64 { return int64(max(2*len(x.slots), minSlots)) * slotBytes }

func (x *index) grow() {
	old := x.slots
	ghosts := x.ghosts
	x.slots = make([]uint64, max(2*len(old), minSlots))
	x.ghosts = make([]uint16, len(x.slots))
	for i, g := range ghosts { // the lost bit of the position is a guess
		x.ghosts[i], x.ghosts[i+len(ghosts)] = g, g
	}
	for _, s := range old {
		if s != 0 {
			x.place(s)
		}
	}
}

// least is what the smallest table takes that holds what there is.
func (x *index) least() int64 {
	if x.n == 0 {
		return 0
	}
	slots := minSlots
	for x.n*5 > slots*4 {
		slots *= 2
	}
	return int64(slots) * slotBytes
}

// shrink makes the table the smallest one; the ghosts of one that shrinks go.
func (x *index) shrink() {
	if x.least() == x.bytes() {
		return
	}
	old := x.slots
	*x = index{slots: make([]uint64, x.least()/slotBytes), ghosts: make([]uint16, x.least()/slotBytes), n: x.n}
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

// position finds the slot of an entry that is there.
func (x *index) position(hash, id uint32) uint32 {
	mask, want := uint32(len(x.slots)-1), uint64(hash)<<32|uint64(id)
	i := hash & mask
	for x.slots[i] != want {
		i = (i + 1) & mask
	}
	return i
}

// remove closes the gap, so that no probe ends early.
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

// haunt remembers hash as dropped.
func (x *index) haunt(hash uint32) {
	x.ghosts[hash&uint32(len(x.ghosts)-1)] = ghost(hash)
}

// haunted reports whether hash was dropped not long ago, and forgets it.
func (x *index) haunted(hash uint32) bool {
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
