package hostmode

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// kubeDNSBase is a base Corefile with the blocks that the ConfigMap changes.
const kubeDNSBase = `cluster.local:53 {
    errors
    bind __PILLAR__LOCAL__DNS__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
}
.:53 {
    errors
    bind __PILLAR__LOCAL__DNS__
    forward . __PILLAR__UPSTREAM__SERVERS__ {
        force_tcp
    }
    reload
    prometheus 127.0.0.1:9253
}
`

// configMap is a directory like a ConfigMap that the kubelet has mounted. Its keys
// are links into ..data, itself a link, whose replacement changes all keys at once.
type configMap struct {
	dir     string
	version int
}

// mount makes the directory below /etc.
func (n *node) mount(t *testing.T, dir string, keys map[string]string) *configMap {
	t.Helper()
	m := &configMap{dir: n.path(dir)}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.set(t, keys)
	return m
}

// set changes the keys like the kubelet.
func (m *configMap) set(t *testing.T, keys map[string]string) {
	t.Helper()
	m.version++
	version := fmt.Sprintf("..2026_%d", m.version)
	must(t, os.Mkdir(filepath.Join(m.dir, version), 0o755))
	for key, text := range keys {
		lab.WriteFile(t, filepath.Join(m.dir, version, key), text)
	}
	data, tmp := filepath.Join(m.dir, "..data"), filepath.Join(m.dir, "..data_tmp")
	old, _ := os.Readlink(data)
	must(t, os.Symlink(version, tmp))
	must(t, os.Rename(tmp, data))
	for _, key := range []string{"stubDomains", "upstreamNameservers", "Corefile.base"} {
		link := filepath.Join(m.dir, key)
		_, wanted := keys[key]
		_, err := os.Lstat(link)
		switch {
		case wanted && err != nil:
			must(t, os.Symlink(filepath.Join("..data", key), link))
		case !wanted && err == nil:
			must(t, os.Remove(link))
		}
	}
	if old != "" {
		must(t, os.RemoveAll(filepath.Join(m.dir, old)))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	stubName = "db.acme.example."
	acmeStub = `{"acme.example": ["` + stubDNS + `"]}`
	otherUp  = `["` + otherDNS + `"]`
)

// TestFlagKubeDNSCM: the flag is the directory of the ConfigMap.
func TestFlagKubeDNSCM(t *testing.T) {
	t.Parallel()
	eachForm(t, "kubednscm", "/etc/elsewhere", func(t *testing.T, n *node, args []string) {
		n.write(t, basePath, kubeDNSBase)
		n.mount(t, "/etc/elsewhere", map[string]string{"stubDomains": acmeStub, "upstreamNameservers": otherUp})
		n.mount(t, kubeDNSPath, map[string]string{"upstreamNameservers": `["` + outsideDNS + `"]`})
		n.start(t, local(append(args, "-upstreamsvc", "kube-dns-upstream")...)...)
		n.answers(t, localAddr, stubName, stubDNS)
		n.answers(t, localAddr, outside, otherDNS)
		n.answers(t, localAddr, inside, clusterDNS)
		n.over(t, otherDNS, outside, "udp") // without its force_tcp
		n.over(t, clusterDNS, inside, "tcp")
	})
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, basePath, kubeDNSBase)
		n.mount(t, kubeDNSPath, map[string]string{"stubDomains": acmeStub})
		n.start(t, local()...)
		n.answers(t, localAddr, stubName, stubDNS)
		n.answers(t, localAddr, outside, outsideDNS)
		n.over(t, outsideDNS, outside, "tcp")
	})
	t.Run("no base Corefile", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		n.mount(t, kubeDNSPath, map[string]string{"stubDomains": acmeStub})
		d := n.start(t, local()...)
		d.Err.WaitFor(t, 0, `kube-dns ConfigMap: not used, because the base Corefile `+basePath)
		n.answers(t, localAddr, stubName, outsideDNS)
	})
	t.Run("not mounted", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, basePath, kubeDNSBase)
		n.start(t, local()...)
		n.answers(t, localAddr, stubName, outsideDNS)
	})
}

// over checks the transport of the first query for name that the server received,
// for a UDP client.
func (n *node) over(t *testing.T, server, name, network string) {
	t.Helper()
	seen := n.servers[server].Seen(name)
	if len(seen) == 0 {
		t.Errorf("%s received no query for %s", server, name)
		return
	}
	if seen[0].Proto != network {
		t.Errorf("%s received the query for %s over %s, want %s", server, name, seen[0].Proto, network)
	}
}

// badConfigMap is a ConfigMap that must not be used, and the text of the log.
type badConfigMap struct {
	keys map[string]string
	want string
}

func badConfigMaps() []badConfigMap {
	return []badConfigMap{
		{map[string]string{"stubDomains": "{", "upstreamNameservers": otherUp}, "stubDomains: expected a JSON object"},
		{map[string]string{"stubDomains": `["acme.example"]`}, "stubDomains: expected a JSON object"},
		{map[string]string{"stubDomains": `{"acme.example": ["nowhere"]}`}, `nowhere\" is not a server`},
		{map[string]string{"stubDomains": `{"acme.example": []}`}, "acme.example: no servers"},
		{map[string]string{"stubDomains": `{"acme..example": ["192.0.2.1"]}`}, "acme..example"},
		{map[string]string{"stubDomains": `{"cluster.local": ["192.0.2.1"]}`}, "cluster.local"},
		{map[string]string{"upstreamNameservers": `["192.0.2.1","192.0.2.2","192.0.2.3","192.0.2.4"]`}, "4 servers are too many, the maximum is 3"},
		{map[string]string{"upstreamNameservers": `"192.0.2.1"`}, "upstreamNameservers: expected a JSON list"},
	}
}

// TestKubeDNSChanges changes the ConfigMap to good and bad values.
func TestKubeDNSChanges(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write(t, basePath, kubeDNSBase)
	m := n.mount(t, kubeDNSPath, nil)
	d := n.start(t, local()...)
	n.answers(t, localAddr, stubName, outsideDNS)

	good := func(keys map[string]string) {
		t.Helper()
		mark := d.Err.Mark()
		m.set(t, keys)
		d.Err.WaitFor(t, mark, `msg=reloaded`)
	}
	good(map[string]string{"stubDomains": acmeStub})
	n.answers(t, localAddr, stubName, stubDNS)
	n.answers(t, localAddr, outside, outsideDNS)

	good(map[string]string{"stubDomains": acmeStub, "upstreamNameservers": otherUp})
	n.answers(t, localAddr, stubName, stubDNS)
	n.answers(t, localAddr, outside, otherDNS)

	keepsLastGood(t, n, d, m)

	good(nil)
	n.answers(t, localAddr, stubName, outsideDNS)
	n.answers(t, localAddr, outside, outsideDNS)
}

// keepsLastGood sets bad values one after the other. Each must be logged and
// counted, and the previous stub domain and upstream stay in use.
func keepsLastGood(t *testing.T, n *node, d *daemon, m *configMap) {
	t.Helper()
	errorsBefore, _ := n.Scrape(t, "127.0.0.1:9353").Sum(setupErrors, "errortype=configmap")
	for _, bad := range badConfigMaps() {
		mark := d.Err.Mark()
		m.set(t, bad.keys)
		line := d.Err.WaitFor(t, mark, `kube-dns ConfigMap`)
		d.Err.WaitFor(t, mark, `msg=reloaded`) // with the good values
		if !strings.Contains(line, "the last good values stay in use") || !strings.Contains(line, bad.want) {
			t.Errorf("%v: %s, want %q", bad.keys, line, bad.want)
		}
		n.answers(t, localAddr, stubName, stubDNS)
		n.answers(t, localAddr, outside, otherDNS)
	}
	if now, _ := n.Scrape(t, "127.0.0.1:9353").Sum(setupErrors, "errortype=configmap"); now < errorsBefore+float64(len(badConfigMaps())) {
		t.Errorf("%s of configmap went from %v to %v over %d bad values", setupErrors, errorsBefore, now, len(badConfigMaps()))
	}
}

// TestKubeDNSBadAtStart: nodens serves without the ConfigMap, and uses it once it is
// valid.
func TestKubeDNSBadAtStart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write(t, basePath, kubeDNSBase)
	m := n.mount(t, kubeDNSPath, map[string]string{"stubDomains": `{"acme.example": ["nowhere"]}`, "upstreamNameservers": otherUp})
	d := n.start(t, local()...)
	d.Err.WaitFor(t, 0, `level=ERROR.*kube-dns ConfigMap.*nowhere`)
	n.answers(t, localAddr, inside, clusterDNS)
	n.answers(t, localAddr, outside, outsideDNS)
	mark := d.Err.Mark()
	m.set(t, map[string]string{"stubDomains": acmeStub, "upstreamNameservers": otherUp})
	d.Err.WaitFor(t, mark, `msg=reloaded`)
	n.answers(t, localAddr, stubName, stubDNS)
	n.answers(t, localAddr, outside, otherDNS)
}

// TestKubeDNSWithoutReload: -reloadwithsignal reloads when the ConfigMap changes.
func TestKubeDNSWithoutReload(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write(t, basePath, strings.Replace(kubeDNSBase, "    reload\n", "", 1))
	m := n.mount(t, kubeDNSPath, nil)
	d := n.start(t, local("-reloadwithsignal")...)
	n.answers(t, localAddr, stubName, outsideDNS)
	mark := d.Err.Mark()
	m.set(t, map[string]string{"stubDomains": acmeStub})
	d.Err.WaitFor(t, mark, `msg=reloaded`)
	n.answers(t, localAddr, stubName, stubDNS)
}

// TestBaseSwap replaces the base Corefile like the kubelet.
func TestBaseSwap(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	m := n.mount(t, filepath.Dir(basePath), map[string]string{"Corefile.base": forwards(outsideDNS, localIP, "reload 2s 1s")})
	d := n.start(t, local("-conf", corefilePath)...)
	for _, to := range []string{otherDNS, stubDNS} {
		mark := d.Err.Mark()
		m.set(t, map[string]string{"Corefile.base": forwards(to, localIP, "reload 2s 1s")})
		d.Err.WaitFor(t, mark, `msg=reloaded`)
		n.answers(t, localAddr, outside, to)
	}
	if n.exists(corefilePath) {
		t.Error("nodens wrote the output file of node-cache")
	}
}
