package daemon

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPodNames(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const pod = `{"kind":"cniCacheV1","containerId":"c1","config":"e30=","ifName":"eth0","networkName":"bridge",
"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","cart-0"],["K8S_POD_UID","u"]],
"result":{"cniVersion":"1.0.0","ips":[{"address":"10.244.1.7/24","interface":2},{"address":"fd00::7/64"}]}}`
	write("bridge-c1-eth0", pod)
	write("cni-loopback-c1-lo", `{"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","cart-0"]],"result":{"ips":[{"address":"127.0.0.1/8"}]}}`)
	write("half", pod[:100])
	write("legacy", `{"cniVersion":"0.3.1","ips":[{"address":"10.244.1.9/24"}]}`)
	p := newPodNames(dir)
	for addr, want := range map[string]string{"10.244.1.7": "shop/cart-0", "fd00::7": "shop/cart-0", "10.244.1.9": "", "10.244.1.8": ""} {
		if got := p.of(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
	write("left-behind", strings.ReplaceAll(pod, "cart-0", "old-0"))
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "left-behind"), long, long); err != nil {
		t.Fatal(err)
	}
	if p.update(); p.byAddr[netip.MustParseAddr("10.244.1.7")] != "shop/cart-0" {
		t.Errorf("an old file has the address: %v", p.byAddr)
	}
	if n := len(fileNames(dir, 2)); n != 2 {
		t.Errorf("%d files, want at most 2", n)
	}
	if err := os.Remove(filepath.Join(dir, "left-behind")); err != nil {
		t.Fatal(err)
	}
	write("half", pod)
	if err := os.Remove(filepath.Join(dir, "bridge-c1-eth0")); err != nil {
		t.Fatal(err)
	}
	p.update()
	if len(p.files) != 2 || p.byAddr[netip.MustParseAddr("10.244.1.7")] != "shop/cart-0" {
		t.Errorf("after a change: %v", p.byAddr)
	}
	if err := os.Remove(filepath.Join(dir, "half")); err != nil {
		t.Fatal(err)
	}
	if p.update(); p.byAddr[netip.MustParseAddr("10.244.1.7")] != "" {
		t.Error("the name of a removed pod stays")
	}
	if got := newPodNames(filepath.Join(dir, "missing")).of(netip.MustParseAddr("10.244.1.7")); got != "" {
		t.Errorf("without the directory: %q", got)
	}
}
