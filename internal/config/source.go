package config

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
)

// maxFileSize bounds a file, in bytes. A ConfigMap holds at most 1 MiB.
const maxFileSize = 4 << 20

var (
	errTooLarge   = errors.New("larger than 4 MiB")
	errNotRegular = errors.New("not a regular file")
)

// Source is what a Corefile can refer to: files to import and environment
// variables. The zero value has neither.
type Source struct {
	Files  fs.FS                    // the file system from its root
	Dir    string                   // absolute; relative file names start here
	Getenv func(name string) string // "" if the variable is not set
	Texts  map[string][]byte        // unless nil, ReadFile adds what it reads, by the path in Files
}

// ReadFile reads a regular file of at most 4 MiB.
func (s Source) ReadFile(name string) ([]byte, error) {
	text, err := s.readFile(name)
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return text, nil
}

func (s Source) readFile(name string) ([]byte, error) {
	if s.Files == nil || name == "" {
		return nil, fs.ErrNotExist
	}
	rooted := s.rooted(name)
	// Opening a FIFO would block.
	info, err := fs.Stat(s.Files, rooted)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := s.Files.Open(rooted)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(text) > maxFileSize {
		err = errTooLarge
	}
	if err == nil && s.Texts != nil {
		s.Texts[rooted] = text
	}
	return text, err
}

// glob returns the names that match pattern, sorted. They are relative if
// pattern is.
func (s Source) glob(pattern string) ([]string, error) {
	if s.Files == nil {
		return nil, nil
	}
	names, err := fs.Glob(s.Files, s.rooted(pattern))
	for i, name := range names {
		names[i] = "/" + name
		if !path.IsAbs(pattern) && err == nil {
			names[i], err = filepath.Rel(path.Join("/", s.Dir), names[i])
		}
	}
	return names, err
}

// rooted returns name as a path in s.Files.
func (s Source) rooted(name string) string {
	if !path.IsAbs(name) {
		name = path.Join("/", s.Dir, name)
	}
	return path.Join(".", strings.TrimPrefix(path.Clean(name), "/"))
}

// getenv is s.Getenv, or reports every variable as unset.
func (s Source) getenv(name string) string {
	if s.Getenv == nil {
		return ""
	}
	return s.Getenv(name)
}
