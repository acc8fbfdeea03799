package cache

// queue is a linked list of entries in the order of arrival.
type queue struct {
	oldest, newest uint32
	n              int
}

// push appends id at the newest end.
func (q *queue) push(s *slab, id uint32) {
	sl := s.slot(id)
	sl.prev, sl.next = q.newest, 0
	if q.newest != 0 {
		s.slot(q.newest).next = id
	} else {
		q.oldest = id
	}
	q.newest = id
	q.n++
}

func (q *queue) remove(s *slab, id uint32) {
	sl := s.slot(id)
	q.link(s, sl.prev, sl.next)
	q.n--
}

// link makes next follow prev; 0 stands for an end.
func (q *queue) link(s *slab, prev, next uint32) {
	if prev != 0 {
		s.slot(prev).next = next
	} else {
		q.oldest = next
	}
	if next != 0 {
		s.slot(next).prev = prev
	} else {
		q.newest = prev
	}
}

// relink updates the links to an entry after its first block moved to id.
func (q *queue) relink(s *slab, id uint32) {
	sl := s.slot(id)
	if sl.prev != 0 {
		s.slot(sl.prev).next = id
	} else {
		q.oldest = id
	}
	if sl.next != 0 {
		s.slot(sl.next).prev = id
	} else {
		q.newest = id
	}
}
