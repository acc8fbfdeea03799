package server

import (
	"encoding/binary"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// LogFormat is the format of a line of the query log: text with CoreDNS's labels,
// such as {remote} or {>id}, in place of values. Unknown labels are text.
type LogFormat struct {
	parts []logPart
}

// logPart is text, or a label if value is set.
type logPart struct {
	text  string
	value func(b []byte, e *logEvent) []byte
}

// logEvent is the query and reply of a line.
type logEvent struct {
	q     *Query
	reply []byte
	o     outcome
}

// CoreDNS's named formats {common} and {combined}.
const (
	commonLog   = `{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration}`
	combinedLog = commonLog + ` "{>opcode}"`
)

// ParseLogFormat parses format. With metadata, {/log/type} and {/log/class} are
// the kind of the reply. Without it they are -, as is every other {/…}.
func ParseLogFormat(format string, metadata bool) *LogFormat {
	format = strings.NewReplacer("{common}", commonLog, "{combined}", combinedLog).Replace(format)
	labels := logLabels()
	f := new(LogFormat)
	for {
		end := strings.IndexByte(format, '}')
		if end < 0 {
			break
		}
		start := max(strings.LastIndexByte(format[:end], '{'), 0)
		label := format[start : end+1]
		value, known := labels[label]
		if isMeta := strings.HasPrefix(label, "{/"); isMeta && (!metadata || !known) {
			value, known = noValue, true
		}
		if known {
			f.parts = append(f.parts, logPart{text: format[:start]}, logPart{value: value})
		} else {
			f.parts = append(f.parts, logPart{text: format[:end+1]})
		}
		format = format[end+1:]
	}
	f.parts = append(f.parts, logPart{text: format})
	return f
}

func noValue(b []byte, _ *logEvent) []byte { return append(b, '-') }

// logLabels returns the labels and the function that writes each value.
func logLabels() map[string]func(b []byte, e *logEvent) []byte {
	text := func(f func(e *logEvent) string) func([]byte, *logEvent) []byte {
		return func(b []byte, e *logEvent) []byte { return append(b, f(e)...) }
	}
	number := func(f func(e *logEvent) int) func([]byte, *logEvent) []byte {
		return func(b []byte, e *logEvent) []byte { return strconv.AppendInt(b, int64(f(e)), 10) }
	}
	return map[string]func([]byte, *logEvent) []byte{
		"{type}":       text(func(e *logEvent) string { return dns.Type(e.q.qtype).String() }),
		"{name}":       text(func(e *logEvent) string { return strings.ToLower(e.q.presentation()) }),
		"{class}":      text(func(e *logEvent) string { return dns.Class(e.q.qclass).String() }),
		"{proto}":      text(func(e *logEvent) string { return protoLabels[boolIndex(e.q.tcp)] }),
		"{size}":       number(func(e *logEvent) int { return int(e.q.size) }),
		"{remote}":     text(func(e *logEvent) string { return bracketed(e.q.client.Addr()) }),
		"{port}":       number(func(e *logEvent) int { return int(e.q.client.Port()) }),
		"{local}":      text(func(e *logEvent) string { return bracketed(e.q.zone.table.local.Addr()) }),
		"{>id}":        number(func(e *logEvent) int { return int(e.q.id) }),
		"{>opcode}":    number(func(e *logEvent) int { return int(e.q.flags&opcodeMask) >> 11 }),
		"{>do}":        text(func(e *logEvent) string { return strconv.FormatBool(e.q.do) }),
		"{>bufsize}":   number(func(e *logEvent) int { return e.q.advertised() }),
		"{rcode}":      text(func(e *logEvent) string { return rcodeText(e.o.rcode) }),
		"{rsize}":      number(func(e *logEvent) int { return e.o.size }),
		"{duration}":   text(func(e *logEvent) string { return strconv.FormatFloat(e.o.took.Seconds(), 'f', -1, 64) + "s" }),
		"{>rflags}":    text(func(e *logEvent) string { return flagNames(binary.BigEndian.Uint16(e.reply[2:])) }),
		"{/log/type}":  text(func(e *logEvent) string { return replyKind(e.reply, e.o.rcode) }),
		"{/log/class}": text(func(e *logEvent) string { return classOf(e.reply, e.o.rcode).String() }),
	}
}

// write writes the line of one reply.
func (f *LogFormat) write(w io.Writer, e *logEvent) {
	line := append(make([]byte, 0, 256), "[INFO] "...)
	for _, p := range f.parts {
		line = append(line, p.text...)
		if p.value != nil {
			line = p.value(line, e)
		}
	}
	_, _ = w.Write(append(line, '\n')) // an error cannot be reported anywhere
}

// bracketed puts an IPv6 address in brackets.
func bracketed(a netip.Addr) string {
	if a = a.Unmap(); a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

func rcodeText(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return strconv.Itoa(rcode)
}

// advertised is the largest reply in bytes that the client advertises.
func (q *Query) advertised() int {
	switch {
	case q.tcp:
		return dns.MaxMsgSize
	case !q.opt:
		return minUDPSize
	}
	return int(max(q.udpSize, minUDPSize))
}

// replyKind is CoreDNS's name for the kind of a reply.
func replyKind(reply []byte, rcode int) string {
	switch {
	case rcode == dns.RcodeNameError:
		return "NXDOMAIN"
	case rcode == dns.RcodeServerFailure, rcode == dns.RcodeNotImplemented:
		return "SERVERERROR"
	case rcode != dns.RcodeSuccess:
		return "OTHERERROR"
	case binary.BigEndian.Uint16(reply[6:]) > 0:
		return "NOERROR"
	}
	kind := "NOERROR"
	for r := range recordsOf(reply) {
		switch r.typ {
		case dns.TypeSOA:
			return "NODATA"
		case dns.TypeNS:
			kind = "DELEGATION"
		}
	}
	return kind
}

// String is the class as in the log directive.
func (c LogClass) String() string {
	switch c {
	case LogSuccess:
		return "success"
	case LogDenial:
		return "denial"
	case LogError:
		return "error"
	}
	return "all"
}
