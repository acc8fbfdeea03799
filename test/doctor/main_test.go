// Package doctor provokes every finding of nodens doctor in network namespaces:
// a node, a pod behind it, and the servers of the cluster and of the outside.
package doctor

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) {
	lab.OwnBPFFS()
	flag.Parse()
	if err := moreAtOnce(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(lab.Main(m))
}

// moreAtOnce lets more tests run at once than there are processors: most of the
// time doctor waits for replies that do not come.
func moreAtOnce() error {
	const atOnce = 5
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(atOnce))
}

// nodens is the program, race-checked where that works.
var nodens = lab.RaceNodens()
