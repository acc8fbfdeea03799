package cache

import (
	"bytes"
	"encoding/binary"
)

const (
	keyDO = 1 << iota
	keyCD
	keyAD
)

// keyTail is the length of QTYPE, QCLASS and the flag byte, which follow the
// name in a key. A key without its last byte is a question section.
const keyTail = 5

const maxNameWire = 255 // RFC 1035 §2.3.4

// AppendKey appends the key of a question to dst: the name, QTYPE and QCLASS in
// network byte order, and one byte of flags. The name must be in uncompressed
// wire format with its root label, and in lower case. DO, CD and AD are part of
// the key, so that a client that requests validation never gets an answer to a
// query that did not.
func AppendKey(dst []byte, name []byte, qtype, qclass uint16, do, cd, ad bool) []byte {
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint16(dst, qtype)
	dst = binary.BigEndian.AppendUint16(dst, qclass)
	var flags byte
	if do {
		flags |= keyDO
	}
	if cd {
		flags |= keyCD
	}
	if ad {
		flags |= keyAD
	}
	return append(dst, flags)
}

// validKey reports whether key has the form that AppendKey produces.
func validKey(key []byte) bool {
	if len(key) < 1+keyTail || len(key) > maxNameWire+keyTail {
		return false
	}
	return skipName(key[:len(key)-keyTail], 0) == len(key)-keyTail
}

// setKey makes key the question of e, which must not be shared yet. The question
// section of an entry serves as its key, except for the flag byte. setKey
// reports false if e answers another question.
func (e *Entry) setKey(key []byte) bool {
	q := len(key) - 1
	if !validKey(key) || questionEnd(e.Msg()) != headerLen+q {
		return false
	}
	name := e.buf[headerLen : headerLen+len(key)-keyTail]
	for i, b := range name {
		// Length bytes are below 'A', so lower does not change them.
		if lower(b) != key[i] {
			return false
		}
	}
	if !bytes.Equal(e.buf[headerLen+len(name):headerLen+q], key[len(name):q]) {
		return false
	}
	copy(name, key)
	e.flags = key[q]
	return true
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}
