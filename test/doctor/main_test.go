// Package doctor provokes every finding of nodens doctor in network namespaces: a
// node, a pod on it, and the servers in the cluster and outside.
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

// moreAtOnce runs more tests in parallel than there are CPUs: most of the time
// doctor waits for replies that do not come.
func moreAtOnce() error {
	const atOnce = 5
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(atOnce))
}

// nodens has the race detector if it works here.
var nodens = lab.RaceNodens()
