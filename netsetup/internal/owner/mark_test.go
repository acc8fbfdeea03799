package owner

import "testing"

func TestMarks(t *testing.T) {
	if !MarkOf("g1").Valid() || MarkOf("g1") == MarkOf("g2") {
		t.Errorf("marks %v and %v", MarkOf("g1"), MarkOf("g2"))
	}
	for _, metric := range []Mark{0, 256, 1024, 1<<32 - 1} {
		if metric.Valid() {
			t.Errorf("metric %d counts as a mark", metric)
		}
	}
	for _, comment := range []string{"uplink", "nodens", "nodens generation", "nodens generation of rules", "for nodens generation g1"} {
		if _, ok := Generation(comment); ok {
			t.Errorf("%q counts as a mark", comment)
		}
	}
	if g, ok := Generation(Comment("g1")); g != "g1" || !ok {
		t.Errorf("generation %q, %t", g, ok)
	}
}
