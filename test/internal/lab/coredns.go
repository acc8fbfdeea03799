package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// coreDNSVersion is the release that answers are compared with.
const coreDNSVersion = "v1.14.7"

// coreDNSEnv names a CoreDNS binary to be used instead of a built one.
const coreDNSEnv = "NODENS_TEST_COREDNS"

// CoreDNS returns the path of a CoreDNS binary. It is built when it is first
// needed and kept in the user's cache directory.
func CoreDNS(t testing.TB) string {
	t.Helper()
	path, err := coreDNS()
	if err != nil {
		Skip(t, err.Error())
	}
	return path
}

var coreDNS = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(coreDNSEnv); path != "" {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "nodens-test", coreDNSVersion)
	path := filepath.Join(dir, "coredns")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	install := exec.Command("go", "install", "github.com/coredns/coredns@"+coreDNSVersion)
	install.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0")
	install.Dir = os.TempDir() // outside of this module
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build CoreDNS %s: %w\n%s", coreDNSVersion, err, out)
	}
	return path, nil
})
