package test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// digReply is the output of dig.
type digReply struct {
	Text   string
	Status string   // of the last reply
	Flags  string   // of the header, space-separated
	Answer []string // "TYPE DATA", sorted
}

var (
	digStatus = regexp.MustCompile(`status: (\w+)`)
	digFlags  = regexp.MustCompile(`;; flags: ([a-z ]*);`)
	digRecord = regexp.MustCompile(`^\S+\s+\d+\s+IN\s+(\S+)\s+(.*)$`)
)

// dig runs dig once inside n, without retries.
func dig(t *testing.T, n *lab.Netns, server string, args ...string) digReply {
	t.Helper()
	lab.NeedTools(t, "dig")
	cmd := append([]string{"dig", "@" + server, "+tries=1", "+timeout=15", "+noauthority", "+noadditional"}, args...)
	out, errs, status := lab.Command{Netns: n, Args: cmd}.Output(t)
	if status != 0 {
		t.Fatalf("%v: status %d\n%s%s", cmd, status, out, errs)
	}
	d := digReply{Text: out}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := digStatus.FindStringSubmatch(line); m != nil {
			d.Status = m[1]
		}
		if m := digFlags.FindStringSubmatch(line); m != nil {
			d.Flags = m[1]
		}
		if m := digRecord.FindStringSubmatch(line); m != nil {
			d.Answer = append(d.Answer, m[1]+" "+m[2])
		}
	}
	slices.Sort(d.Answer)
	return d
}
