package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Pinned describes what one version pinned below a pin directory. For versions other
// than ours it has only Dir, Hooks, Canary and HeartbeatAge.
type Pinned struct {
	Dir   string
	Ours  bool     // this program's version
	Hooks []string // attached hooks such as connect4, in the order of attaching
	// Canary: a process holds the canary. Alive: its heartbeat is recent too, so
	// that lookups go to the targets.
	Canary, Alive bool
	HeartbeatAge  time.Duration
	Services      []Service // by VIP
	OptedOut      int       // cgroups
	Own           uint64    // the process's cgroup, whose sockets are not redirected; 0: not below that of the pods
}

// Attached reports whether all programs are attached.
func (p Pinned) Attached() bool { return len(p.Hooks) == len(hooks()) }

// Lives reports whether the process of any version exists and is not frozen.
func (p Pinned) Lives() bool { return p.Canary && p.HeartbeatAge <= StaleHeartbeat }

// Inspect describes what any process pinned below pinDir. It changes nothing. An empty
// or missing directory is no error. For one outside a BPF file system it returns
// ErrNoBPFFS.
func Inspect(pinDir string) ([]Pinned, error) {
	err := checkBPFFS(pinDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("redirect: inspect %s: %w", pinDir, err)
	}
	dirs, err := versions(pinDir)
	if err != nil {
		return nil, fmt.Errorf("redirect: inspect: %w", err)
	}
	var all []Pinned
	for _, dir := range dirs {
		p, err := inspect(dir, dir == versionDir(pinDir, layoutVersion))
		if err != nil {
			return nil, fmt.Errorf("redirect: inspect %s: %w", dir, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func inspect(dir string, ours bool) (Pinned, error) {
	p := Pinned{Dir: dir, Ours: ours}
	var err error
	if p.Hooks, err = attachedHooks(dir); err != nil {
		return p, err
	}
	if !ours {
		h, err := pinnedHolder(dir)
		p.Canary, p.HeartbeatAge = h.cookie != 0, h.age
		return p, err
	}
	var set redirectSettings
	var beat uint64
	err = errors.Join(
		withMap(dir, redirectMapConfig, func(m *ebpf.Map) error { return m.Lookup(uint32(0), &set) }),
		withMap(dir, redirectMapHeartbeat, func(m *ebpf.Map) error { return m.Lookup(uint32(0), &beat) }),
		withMap(dir, redirectMapCanary, func(m *ebpf.Map) error {
			cookie, err := canaryCookie(m)
			p.Canary = cookie != 0
			return err
		}),
		withMap(dir, redirectMapServices, func(m *ebpf.Map) (err error) {
			p.Services, err = listServices(m)
			return err
		}),
		withMap(dir, redirectMapOptedOut, func(m *ebpf.Map) (err error) {
			p.OptedOut, p.Own, err = readOptedOut(m)
			return err
		}),
	)
	if err != nil {
		return p, err
	}
	if p.HeartbeatAge, err = heartbeatAge(beat); err != nil {
		return p, err
	}
	p.Alive = p.Canary && p.HeartbeatAge <= time.Duration(set.HeartbeatTimeout)
	return p, nil
}

// attachedHooks returns the hooks whose links are not severed.
func attachedHooks(dir string) ([]string, error) {
	var names []string
	for _, h := range hooks() {
		l, err := link.LoadPinnedLink(filepath.Join(dir, linksDir, h.name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, explain("load pinned link", err)
		}
		info, err := l.Info()
		_ = l.Close()
		if err != nil {
			return nil, explain("link info", err)
		}
		if cg := info.Cgroup(); cg != nil && cg.CgroupId != 0 {
			names = append(names, h.name)
		}
	}
	return names, nil
}

// withMap calls f with a pinned map if it exists.
func withMap(dir, name string, f func(*ebpf.Map) error) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return explain("load pinned map "+name, err)
	}
	defer m.Close()
	if err := f(m); err != nil {
		return explain("read map "+name, err)
	}
	return nil
}

func listServices(m *ebpf.Map) ([]Service, error) {
	var key redirectEndpoint
	var value redirectService
	var list []Service
	iter := m.Iterate()
	for iter.Next(&key, &value) {
		s := Service{
			VIP: fromEndpoint(key), Target: fromEndpoint(value.Target),
			PassThrough: value.Flags&uint32(redirectServiceFlagsSERVICE_PASS_THROUGH) != 0,
			Proxied:     value.Flags&uint32(redirectServiceFlagsSERVICE_PROXIED) != 0,
		}
		if value.LastResort.Port != 0 {
			s.LastResort = fromEndpoint(value.LastResort)
		}
		for _, e := range value.Fallback[:min(int(value.Fallbacks), MaxFallbacks)] {
			s.Fallbacks = append(s.Fallbacks, fromEndpoint(e))
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Service) int { return netip.AddrPort.Compare(a.VIP, b.VIP) })
	return list, iter.Err()
}

// readOptedOut returns the number of pods' cgroups and the process's own one.
func readOptedOut(m *ebpf.Map) (pods int, own uint64, err error) {
	var id uint64
	var by uint8
	iter := m.Iterate()
	for iter.Next(&id, &by) {
		if by == optedOutAsSelf {
			own = id
		} else {
			pods++
		}
	}
	return pods, own, iter.Err()
}
