package cache

// Stats describe a Store.
type Stats struct {
	// Bytes is the memory that entries and the index use, or have used and not
	// returned to the host. Budget bounds it.
	Bytes, Budget int64
	Entries       int
}

// Evictions count the entries evicted since the cache was opened: for the cap on
// entries of a kind, and for the byte budget.
type Evictions struct{ Cap, Budget uint64 }

// KindStats describe the entries of one kind. Bytes excludes the index.
type KindStats struct {
	Entries int
	Bytes   int64
	Evicted Evictions
}

// CacheStats describe the entries of one id, including expired ones that are
// still in memory.
type CacheStats struct{ Success, Denial, Failure KindStats }

// Stats returns the state of the store. It locks one shard at a time.
func (s *Store) Stats() Stats {
	var st Stats
	for _, sh := range s.shards {
		sh.stats(&st)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Budget = s.budget
	return st
}

func (sh *shard) stats(st *Stats) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	st.Bytes += sh.resident()
	st.Entries += sh.index.n
}

// Stats returns the state of the cache. It locks one shard at a time.
func (c *Cache) Stats() CacheStats {
	var st CacheStats
	for _, set := range c.space.sets {
		set.shard.mu.Lock()
		st.Success.add(&set.bins[Success])
		st.Denial.add(&set.bins[Denial])
		st.Failure.add(&set.bins[Failure])
		set.shard.mu.Unlock()
	}
	return st
}

func (s *KindStats) add(b *bin) {
	s.Entries += b.entries
	s.Bytes += int64(b.blocks) * blockBytes
	s.Evicted.Cap += b.evicted.Cap
	s.Evicted.Budget += b.evicted.Budget
}
