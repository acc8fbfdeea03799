package querystats

import (
	"slices"
	"sync"
)

// maxZones bounds the zones with their own number. Further zones share the last one.
const maxZones = 64

// Zone is the number of a zone.
type Zone uint8

// zoneNames are the names by number.
type zoneNames struct {
	mu    sync.Mutex
	names []string
}

// Zone returns the number of a zone. It does not change.
func (s *Stats) Zone(name string) Zone {
	z := &s.zones
	z.mu.Lock()
	defer z.mu.Unlock()
	if i := slices.Index(z.names, name); i >= 0 {
		return Zone(i)
	}
	switch len(z.names) {
	case maxZones:
		return maxZones - 1
	case maxZones - 1:
		name = "" // of several zones
	}
	z.names = append(z.names, name)
	return Zone(len(z.names) - 1)
}

// zoneNames returns the names by number.
func (s *Stats) zoneNames() []string {
	s.zones.mu.Lock()
	defer s.zones.mu.Unlock()
	return slices.Clone(s.zones.names)
}
