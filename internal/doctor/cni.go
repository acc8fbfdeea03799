package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// podLinkInfo describes the link of a pod's default route.
type podLinkInfo struct {
	name string
	mtu  int
	peer int // interface index of the host's end; 0: no veth or netkit pair
}

// minMTU is the minimum MTU of IPv6 (RFC 8200 §5). An answer of 1232 bytes fits
// exactly.
const minMTU = 1280

// podLink returns the link of the default route, else the first one except lo.
func podLink(at place) (info podLinkInfo, err error) {
	err = at.do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, l := range links {
			a := l.Attrs()
			isDefault := slices.ContainsFunc(routes, func(r netlink.Route) bool {
				return r.LinkIndex == a.Index && (r.Dst == nil || isZero(r))
			})
			if a.Name != "lo" && (info.name == "" || isDefault) {
				info = podLinkInfo{a.Name, a.MTU, a.ParentIndex}
			}
		}
		return nil
	})
	return info, err
}

func isZero(r netlink.Route) bool {
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

func (e *podExamination) checkMTU() {
	if l := e.link; l.mtu > 0 && l.mtu < minMTU {
		e.find(e.view, "small-mtu", fmt.Sprintf("the MTU of its link %s is %d", l.name, l.mtu))
	}
}

// interception describes a CNI that keeps packets from the host's stack.
type interception struct {
	what   string
	advice string // "": the default advice of the kind
}

// findInterception looks for a BPF program on the host's end of the pod's link. If
// there is none, the host's stack gets the packets and ok is false.
func (e *podExamination) findInterception() (s interception, ok bool) {
	progs, host, err := programsOn(e.link.peer)
	if err != nil {
		e.unexamined(fmt.Sprintf("BPF programs on the host's end of the pod's link: %v", err))
	}
	c := e.findCilium(progs)
	if len(progs) == 0 && !c.found() {
		return s, false
	}
	if len(progs) > 0 {
		s.what = fmt.Sprintf("the BPF program %[2]s runs on %[1]s, the host's end of its link", host, strings.Join(progs, ", "))
	} else {
		s.what = "the CNI is Cilium"
	}
	if c.found() {
		s.what += "; " + c.String()
		s.advice = c.advice()
	}
	return s, true
}

// programsOn returns the names of the BPF programs on the ingress of a link.
func programsOn(index int) (names []string, host string, err error) {
	if index == 0 {
		return nil, "", nil
	}
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, "", err
	}
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil, l.Attrs().Name, err
	}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok {
			names = append(names, nameOfProgram(ebpf.ProgramID(b.Id), b.Name))
		}
	}
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachNetkitPrimary, ebpf.AttachNetkitPeer} {
		q, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
		if err != nil {
			continue // the kernel or the link has no such hook
		}
		for _, p := range q.Programs {
			names = append(names, nameOfProgram(p.ID, "(unnamed)"))
		}
	}
	return names, l.Attrs().Name, nil
}

// nameOfProgram returns the kernel's name of a program, or fallback.
func nameOfProgram(id ebpf.ProgramID, fallback string) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fallback
	}
	defer p.Close()
	if info, err := p.Info(); err == nil && info.Name != "" {
		return info.Name
	}
	return fallback
}

// exists reports whether pattern matches any file.
func exists(pattern string) bool {
	m, err := filepath.Glob(pattern)
	return err == nil && len(m) > 0
}

// hasLink reports whether the host has the named link.
func hasLink(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}
