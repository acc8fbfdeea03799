package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// detachForward detaches the forward programs of other versions.
func detachForward(log *slog.Logger, others []string) error {
	var errs []error
	for _, dir := range others {
		log.Info("taking over from another version", "pin_dir", dir)
		errs = append(errs, removeLinks(dir, func(h hook) bool { return h.forward }))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("redirect: detach another version: %w", err)
	}
	return nil
}

// RemoveOtherVersions removes the pins of other versions that no process uses. Call
// it some seconds after Attach, when the lookups that they redirected have ended, and
// again until none is left.
func (r *Redirect) RemoveOtherVersions() error {
	defer lockPins(r.pinDir)()
	r.mu.Lock()
	defer r.mu.Unlock()
	others, err := otherVersions(r.pinDir, r.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range others {
		used, err := isUsed(dir)
		if err == nil && !used {
			err = removeVersion(dir)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("redirect: remove another version: %w", err)
	}
	return nil
}

// otherVersions returns the directories of versions other than own.
func otherVersions(pinDir, own string) ([]string, error) {
	all, err := versions(pinDir)
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	var others []string
	for _, dir := range all {
		if dir != own {
			others = append(others, dir)
		}
	}
	return others, nil
}

// tornDownDir is a directory in the pin directory: an operator has run Teardown under
// a running process.
const tornDownDir = "torn_down"

// Teardown detaches the programs of all versions and removes their pins below pinDir,
// and pinDir itself unless it contains something else. An empty or missing directory
// is no error. For one outside a BPF file system it returns ErrNoBPFFS. Redirected
// sockets stay connected to the target or fallback, without translation.
//
// While a process is InUse, Teardown leaves its empty directory, and a mark, so that
// Repair of this process attaches nothing. AllowSteering removes the mark, and so does
// a Teardown after the process has ended.
func Teardown(pinDir string) error {
	err := checkBPFFS(pinDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("redirect: teardown of %s: %w", pinDir, err)
	}
	defer lockPins(pinDir)()
	all, err := versions(pinDir)
	if err != nil {
		return fmt.Errorf("redirect: teardown: %w", err)
	}
	if err := markTornDown(pinDir); err != nil {
		return fmt.Errorf("redirect: teardown: %w", err)
	}
	var errs []error
	for _, dir := range all {
		errs = append(errs, tearDownVersion(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("redirect: teardown: %w", err)
	}
	err = os.Remove(pinDir)
	for _, kept := range []error{unix.EBUSY, unix.ENOTEMPTY, os.ErrNotExist} { // a mount point, or it has other pins
		if errors.Is(err, kept) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("redirect: teardown: %w", err)
	}
	return nil
}

// markTornDown makes the mark for a process that is InUse. Without one it removes the
// mark.
func markTornDown(pinDir string) error {
	used, err := isAnyUsed(pinDir)
	if err != nil {
		return err
	}
	if !used {
		return AllowSteering(pinDir)
	}
	if err := os.Mkdir(filepath.Join(pinDir, tornDownDir), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("mark for the running process: %w", err)
	}
	return nil
}

// AllowSteering removes the mark of Teardown. A process calls it when it starts, unless
// it only replaces a worker that died.
func AllowSteering(pinDir string) error {
	if err := os.Remove(filepath.Join(pinDir, tornDownDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("redirect: remove the mark of teardown: %w", err)
	}
	return nil
}

func isTornDown(pinDir string) (bool, error) {
	_, err := os.Stat(filepath.Join(pinDir, tornDownDir))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// tearDownVersion removes what is pinned in dir, and dir unless it is used.
func tearDownVersion(dir string) error {
	used, err := isUsed(dir)
	if err != nil || !used {
		return errors.Join(err, removeVersion(dir))
	}
	if err := detachVersion(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list pinned maps: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}

// removeVersion detaches the programs and removes everything in dir.
func removeVersion(dir string) error {
	if err := detachVersion(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// detachVersion detaches forward hooks, then reverse ones.
func detachVersion(dir string) error {
	if err := removeLinks(dir, func(h hook) bool { return h.forward }); err != nil {
		return err
	}
	if err := removeLinks(dir, func(h hook) bool { return !h.forward }); err != nil {
		return err
	}
	return removeUnknownLinks(dir)
}

func removeLinks(dir string, which func(hook) bool) error {
	var errs []error
	for _, h := range hooks() {
		if which(h) {
			errs = append(errs, removePin(filepath.Join(dir, linksDir, h.name)))
		}
	}
	return errors.Join(errs...)
}

// removeUnknownLinks removes links of hooks that this version lacks, and temporary
// links that a crash left.
func removeUnknownLinks(dir string) error {
	entries, err := os.ReadDir(filepath.Join(dir, linksDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list pinned links: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, removePin(filepath.Join(dir, linksDir, e.Name())))
	}
	return errors.Join(errs...)
}
