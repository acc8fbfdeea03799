package fastpath

import (
	"errors"
	"fmt"
	"io"

	"github.com/nodens-dns/nodens/internal/config"
)

// PrintStatus prints for each pod's interface whether the kernel answers there, and why
// not. leases returns the numbers of leases by interface, as the daemon exports them in
// nodens_kernel_leases. It returns false if the mode is on and the kernel answers
// nowhere.
func PrintStatus(w io.Writer, plan Plan, leases func() (map[string]int64, error)) (asWanted bool) {
	if !plan.Wanted() {
		return true
	}
	links, err := podLinks("veth")
	netkits, err2 := podLinks("netkit")
	if err := errors.Join(err, err2); err != nil {
		fmt.Fprintf(w, "fastpath\tunknown: %v\n", err)
		return false
	}
	for _, l := range netkits {
		fmt.Fprintf(w, "fastpath\t%s: nodens answers; the kernel answers on veths only, and this is a netkit device\n", l.Attrs().Name)
	}
	have, err := leases()
	if err != nil && len(links) > 0 {
		fmt.Fprintf(w, "fastpath\tnodens answers all queries, or its metrics cannot be read: see its log (%v)\n", err)
		return plan.Mode != config.FastpathOn
	}
	if len(links) == 0 {
		fmt.Fprintln(w, "fastpath\tno pod has a veth on this node")
	}
	for _, l := range links {
		name := l.Attrs().Name
		switch n, attached := have[name]; {
		case !attached:
			fmt.Fprintf(w, "fastpath\t%s: nodens answers; the pod opts out, or the program could not be attached (see the log)\n", name)
		case n == 0:
			fmt.Fprintf(w, "fastpath\t%s: no lease; within %v nodens answered no query of this pod that came over its own veth or bridge to an address of bind or -localip\n", name, plan.Lease)
		default:
			fmt.Fprintf(w, "fastpath\t%s: the kernel answers %d addresses\n", name, n)
		}
	}
	return true
}
