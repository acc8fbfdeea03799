package fastpath

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// cniPath has the reference plugins of Debian's containernetworking-plugins.
const cniPath = "/usr/lib/cni"

// plugin is the configuration of a CNI plugin.
type plugin map[string]any

// chainOf returns the plugins of a network as container runtimes chain them: one makes
// the veth, the others add rules of netfilter. The pods are in 10.N.0.0/24 and
// fd00:N::/64.
func chainOf(t *testing.T, i int, main plugin) []plugin {
	t.Helper()
	subnet := func(format string) []plugin { return []plugin{{"subnet": fmt.Sprintf(format, i)}} }
	main["ipMasq"] = true
	main["ipam"] = plugin{
		"type": "host-local", "dataDir": t.TempDir(),
		"ranges": [][]plugin{subnet("10.%d.0.0/24"), subnet("fd00:%d::/64")},
		"routes": []plugin{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
	}
	ports := []plugin{{"hostPort": 5300 + i, "containerPort": 53, "protocol": "udp"}}
	chain := []plugin{main, {"type": "firewall"}, {"type": "portmap", "snat": true, "runtimeConfig": plugin{"portMappings": ports}}}
	for _, p := range chain {
		p["cniVersion"], p["name"] = "1.0.0", fmt.Sprintf("net%d", i)
	}
	return chain
}

// cni runs ADD for eth0 of a pod as a container runtime does: each plugin gets the result
// of the one before. del runs DEL.
func (n *node) cni(t *testing.T, pod *lab.Netns, chain []plugin) (del func()) {
	t.Helper()
	var result json.RawMessage
	run := func(command string, p plugin) json.RawMessage {
		t.Helper()
		if result != nil {
			p["prevResult"] = result
		}
		conf, err := json.Marshal(p)
		check(t, err)
		cmd := exec.Command(filepath.Join(cniPath, p["type"].(string)))
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+pod.Name, "CNI_IFNAME=eth0", "CNI_PATH="+cniPath,
			"CNI_NETNS="+pod.Path())
		cmd.Stdin = bytes.NewReader(conf)
		var out []byte
		n.Inside(t, func() (err error) {
			if out, err = cmd.Output(); err != nil {
				t.Logf("%s %s: %s", p["type"], command, out)
			}
			return err
		})
		return out
	}
	for _, p := range chain {
		result = run("ADD", p)
	}
	return func() {
		t.Helper()
		for i := range chain {
			run("DEL", chain[len(chain)-1-i])
		}
	}
}

// TestCNI: the kernel answers pods whose veths the CNI's reference plugins make, on a
// route and on a bridge. When a plugin deletes a veth, nodens forgets it.
func TestCNI(t *testing.T) {
	if _, err := os.Stat(filepath.Join(cniPath, "portmap")); err != nil {
		lab.Skip(t, "containernetworking-plugins is not installed; test/deps.sh lists the packages")
	}
	n := newNode(t, fixed)
	n.start(t, 2, "fastpath on")
	for i, main := range []plugin{
		{"type": "ptp"},
		{"type": "bridge", "bridge": "cni3", "isGateway": true, "hairpinMode": true},
	} {
		pod := lab.NewNetns(t, main["type"].(string))
		del := n.cni(t, pod, chainOf(t, 3+i, main))
		n.WaitForMetric(t, metrics, 3, "nodens_kernel_interfaces")
		for _, server := range servers() {
			n.warm(t, pod, server, "name.example.")
		}
		del()
		n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	}
}
