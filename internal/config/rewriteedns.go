package config

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// RewriteEDNS0 changes an EDNS option of the query to the upstream.
type RewriteEDNS0 struct {
	Action   string // set, append, replace or unset
	Code     uint16
	Data     []byte
	Variable string // used instead of Data: qname, qtype, client_ip…
	Subnet   bool
	V4, V6   int // with Subnet: prefix lengths
}

func ednsActions() []string { return []string{"set", "append", "replace", "unset"} }

func ednsVariables() []string {
	return []string{"qname", "qtype", "client_ip", "client_port", "protocol", "server_ip", "server_port"}
}

// parseRewriteEDNS0 reads local|nsid|subnet ACTION and further words. The word
// revert at the end has no effect: clients never receive the option.
func parseRewriteEDNS0(args []string) (*RewriteEDNS0, error) {
	if len(args) < 2 {
		return nil, reason("edns0: expected: edns0 local|nsid|subnet %s …", strings.Join(ednsActions(), "|"))
	}
	kind, w := strings.ToLower(args[0]), &RewriteEDNS0{Action: strings.ToLower(args[1])}
	if !slices.Contains(ednsActions(), w.Action) {
		return nil, reason("edns0: %q is not one of %s", args[1], strings.Join(ednsActions(), ", "))
	}
	rest := args[2:]
	if w.Action != "unset" && len(rest) > 0 && rest[len(rest)-1] == "revert" {
		rest = rest[:len(rest)-1]
	}
	switch kind {
	case "local":
		return w, w.parseLocal(rest)
	case "nsid":
		w.Code = dns.EDNS0NSID
		return w, w.parseWords("nsid", rest, 0)
	case "subnet":
		return w, w.parseSubnet(rest)
	}
	return nil, reason("edns0: %q is not one of local, nsid, subnet", args[0])
}

func (w *RewriteEDNS0) parseWords(kind string, words []string, want int) error {
	if len(words) != want {
		return reason("edns0 %s %s: expected %d more words, got %d", kind, w.Action, want, len(words))
	}
	return nil
}

// parseLocal reads CODE and, unless the action is unset, DATA: text, 0xHEX or a
// {variable}.
func (w *RewriteEDNS0) parseLocal(words []string) error {
	want := 2
	if w.Action == "unset" {
		want = 1
	}
	if err := w.parseWords("local", words, want); err != nil {
		return err
	}
	code, err := strconv.ParseUint(words[0], 0, 16)
	if err != nil {
		return reason("edns0: option code %q is not a number from 0 to 65535", words[0])
	}
	w.Code = uint16(code)
	if want == 1 {
		return nil
	}
	data := words[1]
	if strings.HasPrefix(data, "{") && strings.HasSuffix(data, "}") {
		w.Variable = data[1 : len(data)-1]
		if !slices.Contains(ednsVariables(), w.Variable) {
			return reason("edns0: unknown variable %s, expected one of: %s", data, strings.Join(ednsVariables(), ", "))
		}
		return nil
	}
	w.Data = []byte(data)
	if digits, ok := strings.CutPrefix(data, "0x"); ok {
		if w.Data, err = hex.DecodeString(digits); err != nil {
			return reason("edns0: %q is not hexadecimal", data)
		}
	}
	return nil
}

// parseSubnet reads the prefix lengths for IPv4 and IPv6.
func (w *RewriteEDNS0) parseSubnet(words []string) error {
	w.Code = dns.EDNS0SUBNET
	if w.Action == "unset" {
		return w.parseWords("subnet", words, 0)
	}
	if err := w.parseWords("subnet", words, 2); err != nil {
		return err
	}
	w.Subnet = true
	var err error
	if w.V4, err = parseNumber("IPv4 length", words[0], 0, 32); err == nil {
		w.V6, err = parseNumber("IPv6 length", words[1], 0, 128)
	}
	return err
}
