package config

import (
	"errors"
	"slices"
)

// Overlap reports the zones that two blocks, or one block twice, serve on the same
// address and port. Zones without a port are served on port. Parse makes the same
// check without knowing port: it compares zones without a port only with each other.
//
// Addresses are compared as text. A block without bind is on all addresses.
func (c *Config) Overlap(port uint16) error {
	var errs []error
	served := make(servedZones)
	for _, b := range c.Blocks {
		errs = append(errs, served.add(b, port)...)
	}
	return errors.Join(errs...)
}

// servedZones maps a zone and port to the blocks that serve it.
type servedZones map[Zone][]servedBy

type servedBy struct {
	block *Block
	line  int
}

// add returns an error for each zone of b that b or an earlier block already
// serves.
func (served servedZones) add(b *Block, defaultPort uint16) []error {
	var errs []error
	for _, z := range b.Zones {
		key := Zone{Name: z.Name, Port: z.Port}
		if key.Port == 0 {
			key.Port = defaultPort
		}
		other := slices.IndexFunc(served[key], func(by servedBy) bool {
			return by.block == b || shareAddress(by.block.Bind, b.Bind)
		})
		if other >= 0 {
			errs = append(errs, served[key][other].overlaps(b, z))
			continue
		}
		served[key] = append(served[key], servedBy{block: b, line: z.Line})
	}
	return errs
}

func (by servedBy) overlaps(b *Block, z Zone) error {
	here := token{file: b.File, line: z.Line}
	if by.block == b {
		return here.errorf("zone %s is given twice in this block", z)
	}
	there := token{file: by.block.File, line: by.line}
	return here.errorf("zone %s is already served %s, on the same address", z, there.seenFrom(here))
}

func shareAddress(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(addr string) bool { return slices.Contains(b, addr) })
}
