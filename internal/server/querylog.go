package server

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"strings"

	"github.com/miekg/dns"
)

// LogClass is a set of classes of replies.
type LogClass uint8

// The classes of CoreDNS's log directive.
const (
	LogSuccess LogClass = 1 << iota // NOERROR, except NODATA
	LogDenial                       // NXDOMAIN, and NODATA: no answer and a SOA record
	LogError                        // every other rcode
	LogAll     = LogSuccess | LogDenial | LogError
)

// LogRule logs the replies of some classes for names at or below Name.
type LogRule struct {
	Name    string // fully qualified
	Classes LogClass
	Format  *LogFormat // nil: key=value pairs
}

// QueryLog writes a line for each reply that a rule selects.
type QueryLog struct {
	log   *slog.Logger
	lines io.Writer
	rules []LogRule
}

// NewQueryLog makes a query log. Lines of rules with a format go to lines, with
// one Write each. Others go to l at level Info.
func NewQueryLog(l *slog.Logger, lines io.Writer, rules []LogRule) *QueryLog {
	return &QueryLog{log: l, lines: lines, rules: rules}
}

// classOf returns the class of a reply in wire format.
func classOf(reply []byte, rcode int) LogClass {
	switch {
	case rcode == dns.RcodeNameError:
		return LogDenial
	case rcode != dns.RcodeSuccess:
		return LogError
	case replyKind(reply, rcode) == "NODATA":
		return LogDenial
	}
	return LogSuccess
}

// rule returns the first rule for name. It returns nil if that rule is not for
// class c.
func (l *QueryLog) rule(name string, c LogClass) *LogRule {
	for i, r := range l.rules {
		if dns.IsSubDomain(r.Name, name) {
			if r.Classes&c != 0 {
				return &l.rules[i]
			}
			return nil
		}
	}
	return nil
}

// write writes the line of one reply.
func (l *QueryLog) write(q *Query, reply []byte, o outcome) {
	name := q.presentation()
	r := l.rule(name, classOf(reply, o.rcode))
	if r == nil {
		return
	}
	if r.Format != nil {
		r.Format.write(l.lines, &logEvent{q, reply, o})
		return
	}
	proto := protoLabels[boolIndex(q.tcp)]
	l.log.LogAttrs(context.Background(), slog.LevelInfo, "query",
		slog.String("client", q.client.String()),
		slog.Int("id", int(q.id)),
		slog.String("type", dns.Type(q.qtype).String()),
		slog.String("class", dns.Class(q.qclass).String()),
		slog.String("name", strings.ToLower(name)),
		slog.String("proto", proto),
		slog.Int("size", int(q.size)),
		slog.Bool("do", q.do),
		slog.Int("bufsize", q.limit()),
		slog.String("rcode", rcodeName(o.rcode)),
		slog.String("flags", flagNames(binary.BigEndian.Uint16(reply[2:]))),
		slog.Int("rsize", o.size),
		slog.Duration("duration", o.took),
		slog.String("from", pluginLabels[o.plugin]))
}

func rcodeName(rcode int) string { return rcodeLabel(min(rcode, numRcodes-1)) }

// flagNames lists the header bits that are set, as in the output of dig.
func flagNames(flags uint16) string {
	var names []string
	for _, f := range [...]struct {
		bit  uint16
		name string
	}{{flagQR, "qr"}, {flagAA, "aa"}, {flagTC, "tc"}, {flagRD, "rd"}, {flagRA, "ra"}, {flagAD, "ad"}, {flagCD, "cd"}} {
		if flags&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, ",")
}
