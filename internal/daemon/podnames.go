package daemon

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/watch"
)

// cniResults is the directory in which the container runtime's libcni keeps a file for
// each pod's network, with the pod's name and addresses. Only root can read it. A
// container must mount it.
const cniResults = "/var/lib/cni/results"

const (
	maxCNIResults = 1024      // files to read
	maxCNIResult  = 256 << 10 // bytes of a file
	podNamesAge   = 10 * time.Second
)

// podNames finds the names of pods by their addresses. It is safe for concurrent use.
type podNames struct {
	dir string

	mu     sync.Mutex // guards the fields below
	read   time.Time
	files  map[string]podNetwork // by file name; libcni does not change a file
	byAddr map[netip.Addr]string // NAMESPACE/NAME
}

// podNetwork is the content of a file.
type podNetwork struct {
	at    time.Time // when it was written
	pod   string    // NAMESPACE/NAME, empty if the file has none
	addrs []netip.Addr
}

func newPodNames(dir string) *podNames { return &podNames{dir: dir} }

// of returns NAMESPACE/NAME of the pod with this address, or "".
func (p *podNames) of(addr netip.Addr) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.read) >= podNamesAge {
		p.update()
		p.read = time.Now()
	}
	return p.byAddr[addr]
}

// update reads new files. If two pods have an address, the later one gets it, since the
// runtime left the file of the other one behind. p.mu is held.
func (p *podNames) update() {
	files := make(map[string]podNetwork)
	owners := make(map[netip.Addr]podNetwork)
	for _, name := range fileNames(p.dir, maxCNIResults) {
		n, known := p.files[name]
		if !known {
			n = readPodNetwork(filepath.Join(p.dir, name))
		}
		if n.pod == "" {
			continue // libcni may not have finished writing it
		}
		files[name] = n
		for _, a := range n.addrs {
			if owner, taken := owners[a]; !taken || owner.at.Before(n.at) {
				owners[a] = n
			}
		}
	}
	p.files, p.byAddr = files, make(map[netip.Addr]string, len(owners))
	for a, n := range owners {
		p.byAddr[a] = n.pod
	}
}

// fileNames returns the names of at most n files of a directory, none if it cannot be
// read.
func fileNames(dir string, n int) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(n)
	return names
}

// readPodNetwork reads a file of libcni's format cniCacheV1.
func readPodNetwork(file string) (n podNetwork) {
	info, err := os.Stat(file)
	if err != nil {
		return n
	}
	n.at = info.ModTime()
	text, err := watch.ReadFile(file, maxCNIResult)
	if err != nil {
		return n
	}
	var cached struct {
		Args   [][2]string `json:"cniArgs"`
		Result struct {
			IPs []struct {
				Address netip.Prefix `json:"address"`
			} `json:"ips"`
		} `json:"result"`
	}
	if json.Unmarshal(text, &cached) != nil {
		return n
	}
	args := make(map[string]string)
	for _, a := range cached.Args {
		args[a[0]] = a[1]
	}
	if args["K8S_POD_NAMESPACE"] == "" || args["K8S_POD_NAME"] == "" {
		return n
	}
	n.pod = args["K8S_POD_NAMESPACE"] + "/" + args["K8S_POD_NAME"]
	for _, ip := range cached.Result.IPs {
		if a := ip.Address.Addr(); a.IsValid() && !a.IsLoopback() {
			n.addrs = append(n.addrs, a)
		}
	}
	return n
}
