package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Steering says whose programs redirect sockets.
type Steering int

const (
	Ours     Steering = iota // this process's
	Others                   // those of another process, of any version, that lives
	TornDown                 // none, because an operator ran Teardown
)

// Repair checks maps, links and pins, and restores what is missing or differs, unless
// another process redirects or an operator has run Teardown. It returns what it has
// restored, empty if everything was right. open means that sockets were not redirected
// for a time.
func (r *Redirect) Repair() (who Steering, restored string, open bool, err error) {
	defer lockPins(r.pinDir)()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return Ours, "", false, errClosed
	}
	if who, err = r.steering(); who != Ours || err != nil {
		return who, "", false, err
	}
	id, err := cgroupID(r.links.cgroup)
	if err != nil {
		return Ours, "", false, fmt.Errorf("redirect: %w", err)
	}
	maps, err := r.repairMaps()
	if err != nil {
		return Ours, "", false, fmt.Errorf("redirect: repair: %w", err)
	}
	links, open, err := r.links.problem(id)
	if err == nil && links != "" {
		err = r.attach()
	}
	if err != nil {
		return Ours, "", open, fmt.Errorf("redirect: repair: %w", err)
	}
	if links != "" {
		return Ours, links, open, nil
	}
	return Ours, maps, false, nil
}

// Resume does Alive after Withdraw, unless another process redirects or an operator has
// run Teardown.
func (r *Redirect) Resume() (resumed bool, err error) {
	defer lockPins(r.pinDir)()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false, errClosed
	}
	if who, err := r.steering(); who != Ours || err != nil {
		return false, err
	}
	return true, r.declareAlive()
}

// steering needs mu and the lock of the pins.
func (r *Redirect) steering() (Steering, error) {
	torn, err := isTornDown(r.pinDir)
	if torn || err != nil {
		return TornDown, err
	}
	dirs, err := versions(r.pinDir)
	if err != nil {
		return Ours, fmt.Errorf("redirect: %w", err)
	}
	for _, dir := range dirs {
		other, err := r.steeredBy(dir)
		if other || err != nil {
			return Others, err
		}
	}
	return Ours, nil
}

// steeredBy reports whether another process lives and redirects by what is pinned in
// dir, the directory of any version.
func (r *Redirect) steeredBy(dir string) (bool, error) {
	h, err := r.holderIn(dir)
	if err != nil || !h.lives() || r.canary != nil && h.cookie == r.canary.cookie {
		return false, err
	}
	hooks, err := attachedHooks(dir)
	return len(hooks) > 0 && isForward(hooks), err
}

// holderIn does what pinnedHolder does, but faster for our own maps.
func (r *Redirect) holderIn(dir string) (h holder, err error) {
	if dir != r.dir || !r.pins.known(filepath.Join(dir, redirectMapCanary)) {
		return pinnedHolder(dir)
	}
	if h.cookie, err = canaryCookie(r.objs.Canary); err != nil || h.cookie == 0 {
		return holder{}, err
	}
	h.age, err = r.beat.age()
	return h, err
}

// isForward reports whether a forward program is among the hooks.
func isForward(names []string) bool {
	for _, h := range hooks() {
		for _, name := range names {
			if h.forward && h.name == name {
				return true
			}
		}
	}
	return false
}

// repairMaps pins those maps again whose pins are missing or refer to other maps.
func (r *Redirect) repairMaps() (restored string, err error) {
	if err := r.useDirs(); err != nil {
		return "", err
	}
	for name, m := range r.pinnedMaps() {
		path := filepath.Join(r.dir, name)
		if r.pins.known(path) {
			continue
		}
		same, err := isPinned(m, path)
		if err != nil {
			return "", err
		}
		if same {
			r.pins.learn(path)
			continue
		}
		if err := pinMap(m, path); err != nil {
			return "", explain("pin map "+name, err)
		}
		r.pins.learn(path)
		restored = "pins"
	}
	return restored, nil
}

// pinnedMaps returns the maps that processes share, by the names of their pins.
func (r *Redirect) pinnedMaps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		redirectMapConfig: r.objs.Config, redirectMapServices: r.objs.Services, redirectMapHeartbeat: r.objs.Heartbeat,
		redirectMapCanary: r.objs.Canary, redirectMapExempt: r.objs.Exempt, redirectMapOptedOut: r.objs.OptedOut,
		redirectMapFlows: r.objs.Flows, redirectMapOrigins: r.objs.Origins, redirectMapExits: r.objs.Exits,
	}
}

// pinInodes are the inode numbers of pins that were compared with what this process
// holds, by path. A pin that is made anew has another number.
type pinInodes map[string]uint64

func (p pinInodes) known(path string) bool {
	ino, _, err := inode(path)
	return err == nil && ino == p[path]
}

func (p pinInodes) learn(path string) {
	if ino, _, err := inode(path); err == nil {
		p[path] = ino
	}
}

func isPinned(m *ebpf.Map, path string) (bool, error) {
	pinned, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, explain("load pinned map", err)
	}
	defer pinned.Close()
	want, err := m.Info()
	if err != nil {
		return false, explain("map info", err)
	}
	have, err := pinned.Info()
	if err != nil {
		return false, explain("map info", err)
	}
	wantID, _ := want.ID()
	haveID, _ := have.ID()
	return wantID == haveID, nil
}

// pinMap replaces another pin at path.
func pinMap(m *ebpf.Map, path string) error {
	// A Map remembers where it was pinned, and would not pin itself again.
	again, err := m.Clone()
	if err != nil {
		return err
	}
	defer again.Close()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return again.Pin(path)
}

// problem returns what is wrong with the links, empty if all are attached to the
// cgroup id and pinned. open: a link is not attached.
func (l *links) problem(id uint64) (problem string, open bool, err error) {
	for _, h := range hooks() {
		held := l.held[h.name]
		if held == nil {
			return "program " + h.name, true, nil
		}
		intact, err := isLinkedTo(held, id)
		if err != nil {
			return "", false, err
		}
		if !intact {
			return "program " + h.name, true, nil
		}
		if l.pins.known(l.path(h)) {
			continue
		}
		same, err := isSameLink(held, l.path(h))
		switch {
		case err != nil:
			return "", false, err
		case same:
			l.pins.learn(l.path(h))
		default:
			problem = "pins"
		}
	}
	return problem, false, nil
}

// isSameLink reports whether held is pinned at path.
func isSameLink(held link.Link, path string) (bool, error) {
	pinned, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, explain("load pinned link", err)
	}
	defer pinned.Close()
	want, err := held.Info()
	if err != nil {
		return false, explain("link info", err)
	}
	have, err := pinned.Info()
	if err != nil {
		return false, explain("link info", err)
	}
	return want.ID == have.ID, nil
}
