package doctor

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// modeFIB is enum mode of bpf/testdata/lab.bpf.c: packets of the pod are routed
// by a FIB look-up, and dropped where that knows no way, as Cilium 1.16.5 does.
const modeFIB uint32 = 1

// TestCNISwallows has a CNI that takes the pod's packets from the host's stack,
// first a stranger, then one that looks like Cilium.
func TestCNISwallows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	w.attachCNI(t)
	p := provocation{want: []string{"fault pod cni-swallows"}, says: "pod0, the host's end of its link, runs the BPF program from_pod"}
	p.examine(t, w)
	output(t, w.node, "ip", "link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net")
	p.says = "Cilium is here (link cilium_host, link cilium_net)"
	p.examine(t, w)
	p.says = "bpf.hostLegacyRouting=true"
	p.examine(t, w)
}

// attachCNI puts the lab's CNI on the host's end of the pod's link.
func (w *world) attachCNI(t *testing.T) {
	t.Helper()
	object := "../../bpf/lab_bpfel_test.o"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		object = "../../bpf/lab_bpfeb_test.o"
	}
	spec, err := ebpf.LoadCollectionSpec(object)
	must(t, err)
	spec.Programs = map[string]*ebpf.ProgramSpec{"from_pod": spec.Programs["from_pod"]}
	for name, value := range map[string]any{
		"mode": modeFIB, "uplink": uint32(0), "vip": word(localIP), "host_addrs": [2]uint32{word(nodeIP), word("10.0.1.1")},
	} {
		must(t, spec.Variables[name].Set(value))
	}
	c, err := ebpf.NewCollection(spec)
	must(t, err)
	t.Cleanup(c.Close)
	must(t, w.node.Do(func() error {
		l, err := netlink.LinkByName("pod0")
		if err != nil {
			return err
		}
		index := l.Attrs().Index
		err = netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}})
		if err == unix.ENOENT {
			lab.Skip(t, "the kernel has no clsact")
		}
		if err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
			},
			Fd: c.Programs["from_pod"].FD(), Name: "lab", DirectAction: true,
		})
	}))
}

// word is an IPv4 address as the kernel has it in memory.
func word(ip string) uint32 {
	b := netip.MustParseAddr(ip).As4()
	return binary.NativeEndian.Uint32(b[:])
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
