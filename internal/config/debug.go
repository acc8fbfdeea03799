package config

import (
	"math"
	"strconv"
)

// Pprof is the pprof directive.
type Pprof struct {
	Line      int
	Addr      string // host:port; default "localhost:6053"
	BlockRate int    // for runtime.SetBlockProfileRate; 0: off
}

const defaultPprofAddr = "localhost:6053"

// parsePprof reads pprof [HOST:PORT] and its options.
func parsePprof(b *Block, s statement) error {
	addr, err := listenArg(s, defaultPprofAddr)
	if err != nil {
		return err
	}
	p := &Pprof{Line: s.line, Addr: addr}
	b.Pprof = p
	return s.eachOption(func(string) bool { return true }, func(o statement) error {
		if o.text != "block" {
			return o.unknown()
		}
		return p.parseBlock(o)
	})
}

func (p *Pprof) parseBlock(o statement) error {
	if err := o.arity(0, 1, "[RATE]"); err != nil {
		return err
	}
	p.BlockRate = 1
	if len(o.args) == 0 {
		return nil
	}
	var err error
	if p.BlockRate, err = parseNumber("rate", o.args[0].text, 0, math.MaxInt32); err != nil {
		return o.fail(err)
	}
	return nil
}

func (p *Pprof) describe() []string {
	return []string{p.Addr, "block " + strconv.Itoa(p.BlockRate)}
}

func parseDebug(b *Block, s statement) error {
	b.Debug = true
	return bare(s)
}

// parseMetadata reads metadata [ZONES…].
func parseMetadata(b *Block, s statement) error {
	b.Metadata = true
	_, err := parseZoneList(s, 0)
	if err != nil {
		return err
	}
	return s.noBlock()
}
