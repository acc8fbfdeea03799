package migrate

import (
	"io"
	"io/fs"
	"os"
	"time"
)

// ReadFiles reads the named files. The name - is stdin.
func ReadFiles(names []string, stdin io.Reader) ([]File, error) {
	var files []File
	for _, name := range names {
		var text []byte
		var err error
		if name == "-" {
			name = "standard input"
			text, err = io.ReadAll(stdin)
		} else {
			text, err = os.ReadFile(name)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, File{Name: name, Text: string(text)})
	}
	return files, nil
}

// RuntimeFiles is a file system that has every file, and all are empty.
type RuntimeFiles struct{}

// Open returns an empty file.
func (RuntimeFiles) Open(name string) (fs.File, error) { return emptyFile(name), nil }

// emptyFile is a file and its own information.
type emptyFile string

func (f emptyFile) Stat() (fs.FileInfo, error) { return f, nil }
func (emptyFile) Read([]byte) (int, error)     { return 0, io.EOF }
func (emptyFile) Close() error                 { return nil }
func (f emptyFile) Name() string               { return string(f) }
func (emptyFile) Size() int64                  { return 0 }
func (emptyFile) Mode() fs.FileMode            { return 0 }
func (emptyFile) ModTime() time.Time           { return time.Time{} }
func (emptyFile) IsDir() bool                  { return false }
func (emptyFile) Sys() any                     { return nil }
