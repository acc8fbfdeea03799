package cache

// SetBudget changes the byte budget, up to the one that the Store was made with. If
// the entries exceed it, SetBudget evicts some, compacts the rest, and returns the
// memory to the host before it returns. A lookup waits while its shard is resized.
func (s *Store) SetBudget(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget = min(max(bytes, 0), s.maxBudget)
	for _, sh := range s.shards {
		sh.resize(s.budget / int64(len(s.shards)))
	}
}

func (sh *shard) resize(share int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	shrinks := share < sh.share
	if sh.share = share; !shrinks {
		return
	}
	for sh.index.n > 0 && int64(sh.slab.used)*blockBytes+sh.index.minBytes() > share {
		if b, small := sh.nextVictim(); sh.evictOrKeep(b, small) {
			b.evicted.Budget++
		}
	}
	sh.index.shrink()
	limit := uint32(max(share-sh.index.bytes(), 0) / blockBytes)
	if limit = max(limit, sh.slab.used); sh.slab.top-1 > limit {
		sh.compact(limit)
	}
}

// compact moves all entries into blocks 1 to limit, which must suffice, and
// returns the memory behind them to the host.
func (sh *shard) compact(limit uint32) {
	sh.slab.dropFreeAbove(limit)
	for i, s := range sh.index.slots {
		if s == 0 {
			continue
		}
		id := uint32(s)
		if id > limit {
			id = sh.slab.move(id)
			sh.index.slots[i] = s&^0xffffffff | uint64(id)
			sl := sh.slab.slot(id)
			sh.binOf(sl).queue(sl.inMain()).relink(&sh.slab, id)
		}
		for link := &sh.slab.slot(id).more; *link != 0; link = &sh.slab.block(*link).more {
			if *link > limit {
				*link = sh.slab.move(*link)
			}
		}
	}
	sh.slab.truncate(limit + 1)
}

// dropFreeAbove removes the blocks above limit from the free list.
func (s *slab) dropFreeAbove(limit uint32) {
	for link := &s.free; *link != 0; {
		if *link > limit {
			*link = s.block(*link).more
		} else {
			link = &s.block(*link).more
		}
	}
}

// move copies a block to a free one and returns the new number.
func (s *slab) move(id uint32) uint32 {
	to := s.free
	s.free = s.block(to).more
	*s.block(to) = *s.block(id)
	return to
}
