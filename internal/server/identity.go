package server

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// idServer is the name whose TXT record is a server's identity (RFC 4892), in wire
// format.
const idServer = "\x02id\x06server\x00"

// maxIdentity is the longest character-string of a TXT record (RFC 1035
// §3.3.14).
const maxIdentity = 255

// appendIdentity appends the reply to id.server: one TXT record of TTL 0. Without an
// identity the query is refused, like all others in class CH.
func appendIdentity(dst []byte, q *Query, identity string) []byte {
	if identity == "" || len(identity) > maxIdentity {
		return appendError(dst, q, dns.RcodeRefused, ede{})
	}
	start := len(dst)
	plain := *q
	plain.opt = false // OPT goes behind the answer
	dst = appendError(dst, &plain, dns.RcodeSuccess, ede{})
	binary.BigEndian.PutUint16(dst[start+6:], 1)
	dst = append(dst, 0xc0, headerLen) // the owner: a pointer to the question
	dst = binary.BigEndian.AppendUint16(dst, dns.TypeTXT)
	dst = binary.BigEndian.AppendUint16(dst, dns.ClassCHAOS)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(1+len(identity)))
	dst = append(dst, byte(len(identity)))
	dst = append(dst, identity...)
	if q.opt {
		dst = appendOPT(dst, start, q, dns.RcodeSuccess, ede{})
	}
	return dst
}
