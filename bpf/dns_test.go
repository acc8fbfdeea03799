package bpf

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// respond returns the answer of the server name. For a DNS query it is a reply with
// the name as TXT, or with an address, framed like the query. For other data it is
// the name, a colon and the data.
func respond(name string, query []byte) []byte {
	msg, framed := query, false
	if len(query) > 2 && int(binary.BigEndian.Uint16(query)) == len(query)-2 {
		msg, framed = query[2:], true
	}
	var q dns.Msg
	if q.Unpack(msg) != nil || len(q.Question) != 1 {
		return append([]byte(name+":"), query...)
	}
	reply, err := dnsReply(name, &q).Pack()
	if err != nil {
		return nil
	}
	if framed {
		reply = append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)
	}
	return reply
}

func dnsReply(name string, q *dns.Msg) *dns.Msg {
	reply := new(dns.Msg).SetReply(q)
	hdr := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET, Ttl: 1}
	switch hdr.Rrtype {
	case dns.TypeTXT:
		reply.Answer = append(reply.Answer, &dns.TXT{Hdr: hdr, Txt: []string{name}})
	case dns.TypeA:
		reply.Answer = append(reply.Answer, &dns.A{Hdr: hdr, A: serverAddrs[name]})
	}
	return reply
}

// serverAddrs are the addresses in the A records of each server.
var serverAddrs = map[string][]byte{
	"daemon": {192, 0, 2, 1},
	"core":   {192, 0, 2, 2},
}
