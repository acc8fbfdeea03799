package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// coreDNSVersion is the release that tests compare with.
const coreDNSVersion = "v1.14.7"

// coreDNSEnv names a CoreDNS binary to use instead of building one.
const coreDNSEnv = "NODENS_TEST_COREDNS"

// CoreDNS returns the path of a CoreDNS binary. It is built at the first use and
// kept in the user's cache directory.
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
	unlock, err := lockDir(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, installCoreDNS(path)
})

// installCoreDNS builds elsewhere and renames to path, because the go command may
// write its target in several steps.
func installCoreDNS(path string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(path), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	install := exec.Command("go", "install", "github.com/coredns/coredns@"+coreDNSVersion)
	install.Env = append(os.Environ(), "GOBIN="+tmp, "CGO_ENABLED=0")
	install.Dir = os.TempDir() // outside of this module
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("build CoreDNS %s: %w\n%s", coreDNSVersion, err, out)
	}
	return os.Rename(filepath.Join(tmp, "coredns"), path)
}

// lockDir makes dir and locks it against other test binaries until unlock.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}
