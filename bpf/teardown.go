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

// RemoveOtherVersions removes the pins of other versions. Call it some seconds after
// Attach, when the lookups that they redirected have ended.
func (r *Redirect) RemoveOtherVersions() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	others, err := otherVersions(r.pinDir, r.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range others {
		errs = append(errs, removeVersion(dir))
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

// Teardown detaches the programs of all versions and removes their pins below pinDir,
// and pinDir itself unless it contains something else. An empty or missing directory
// is no error. For one outside a BPF file system it returns ErrNoBPFFS. Redirected
// sockets stay connected to the target or fallback, without translation.
func Teardown(pinDir string) error {
	err := checkBPFFS(pinDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("redirect: teardown of %s: %w", pinDir, err)
	}
	all, err := versions(pinDir)
	if err != nil {
		return fmt.Errorf("redirect: teardown: %w", err)
	}
	var errs []error
	for _, dir := range all {
		errs = append(errs, removeVersion(dir))
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

// removeVersion detaches forward hooks, then reverse ones, and removes the maps.
func removeVersion(dir string) error {
	if err := removeLinks(dir, func(h hook) bool { return h.forward }); err != nil {
		return err
	}
	if err := removeLinks(dir, func(h hook) bool { return !h.forward }); err != nil {
		return err
	}
	if err := removeUnknownLinks(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
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
