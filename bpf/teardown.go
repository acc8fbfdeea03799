package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// detachOtherVersions ends redirection by versions other than this one. The
// caller holds mu.
func (r *Redirect) detachOtherVersions() error {
	others, err := r.otherVersions()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range others {
		r.log.Info("taking over from another version", "dir", dir)
		errs = append(errs, removeLinks(dir, func(h hook) bool { return h.forward }))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("redirect: detach another version: %w", err)
	}
	return nil
}

// RemoveOtherVersions removes what is pinned by versions other than this one.
// To be called some seconds after Attach, when look-ups that they had redirected
// have ended.
func (r *Redirect) RemoveOtherVersions() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	others, err := r.otherVersions()
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

func (r *Redirect) otherVersions() ([]string, error) {
	all, err := versions(r.pinDir)
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	var others []string
	for _, dir := range all {
		if dir != r.dir {
			others = append(others, dir)
		}
	}
	return others, nil
}

// Teardown detaches and removes all that any version pinned below pinDir, and
// pinDir itself unless it holds something else. Nothing there is no error; a
// directory that is not in a BPF file system is ErrNoBPFFS. Sockets that are
// redirected stay connected to where they were, without translation.
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
	for _, kept := range []error{unix.EBUSY, unix.ENOTEMPTY, os.ErrNotExist} { // a mount point; another's pins
		if errors.Is(err, kept) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("redirect: teardown: %w", err)
	}
	return nil
}

// removeVersion detaches forward hooks before reverse ones, then removes the
// maps.
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

// removeUnknownLinks removes links of hooks that this version does not have, and
// those that a crash left aside.
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
