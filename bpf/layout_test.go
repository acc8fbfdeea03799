package bpf

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// The layout of the pinned maps must not change without a new version. If it differs
// from the record, increase layoutVersion and add a record.
func TestLayoutIsRecorded(t *testing.T) {
	spec, err := loadRedirect()
	check(t, err)
	var lines []string
	for name, m := range spec.Maps {
		if name == ".rodata" {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s: %v key %d value %d entries %d flags %#x\n\tkey %s\n\tvalue %s\n",
			name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags, layout(m.Key), layout(m.Value)))
	}
	slices.Sort(lines)
	for _, name := range []string{"hook", "exit_reason"} { // indexes of the map exits
		var enum *btf.Enum
		check(t, spec.Types.TypeByName(name, &enum))
		lines = append(lines, name+"\n")
		for _, v := range enum.Values {
			lines = append(lines, fmt.Sprintf("\t%d %s\n", v.Value, v.Name))
		}
	}
	record := fmt.Sprintf("testdata/layout-v%s.txt", layoutVersion)
	want, err := os.ReadFile(record)
	check(t, err)
	if got := strings.Join(lines, ""); got != string(want) {
		t.Errorf("the maps differ from the record %s:\n%s", record, got)
	}
}

// layout prints members with their offsets in bytes.
func layout(typ btf.Type) string {
	switch typ := btf.UnderlyingType(typ).(type) {
	case *btf.Struct:
		var members []string
		for _, m := range typ.Members {
			members = append(members, fmt.Sprintf("%d %s %s", m.Offset.Bytes(), m.Name, layout(m.Type)))
		}
		return "{" + strings.Join(members, ", ") + "}"
	case *btf.Array:
		return fmt.Sprintf("%s[%d]", layout(typ.Type), typ.Nelems)
	case *btf.Int:
		return typ.Name
	}
	return fmt.Sprint(typ)
}
