package daemon

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/watch"
)

// keptConfig has the input of a configuration, except for options and environment.
type keptConfig struct {
	texts   map[string][]byte // of the Corefile, its imports and the kube-dns ConfigMap, by path without the first slash
	kubeDNS config.KubeDNS    // the values in use
}

// configKeeper keeps the last good configuration for the next worker, which may find
// bad files. The file is nil without a supervisor.
type configKeeper struct{ file *os.File }

// maxKept is the size in bytes of the largest configuration that is kept, compressed.
const maxKept = 4 << 20

// save replaces the kept configuration. If the process dies during save, the next worker
// finds none.
func (k configKeeper) save(c keptConfig) error {
	if k.file == nil {
		return nil
	}
	archive, err := c.encode()
	if err == nil && len(archive) > maxKept {
		err = fmt.Errorf("%d bytes: at most %d", len(archive), maxKept)
	}
	if terr := k.file.Truncate(0); err == nil {
		err = terr
	}
	if err == nil {
		_, err = k.file.WriteAt(archive, 0)
	}
	return err
}

// encode makes a ZIP archive of the texts. Its comment has the values of kube-dns.
func (c keptConfig) encode() ([]byte, error) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for name, text := range c.texts {
		f, err := w.Create(name)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(text); err != nil {
			return nil, err
		}
	}
	values, err := json.Marshal(c.kubeDNS)
	if err == nil {
		err = w.SetComment(string(values))
	}
	if err != nil {
		return nil, fmt.Errorf("kube-dns ConfigMap: %w", err)
	}
	err = w.Close()
	return archive.Bytes(), err
}

// load returns the kept configuration and its files; nil if there is none.
func (k configKeeper) load() (c keptConfig, files fs.FS, err error) {
	if k.file == nil {
		return c, nil, nil
	}
	info, err := k.file.Stat()
	if err != nil || info.Size() == 0 {
		return c, nil, err
	}
	archive, err := zip.NewReader(k.file, info.Size())
	if err == nil {
		err = json.Unmarshal([]byte(archive.Comment), &c.kubeDNS)
	}
	if err != nil {
		return c, nil, err
	}
	c.texts = make(map[string][]byte)
	for _, f := range archive.File {
		if c.texts[f.Name], err = readZipped(f); err != nil {
			return c, nil, err
		}
	}
	return c, archive, nil
}

func readZipped(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// readFirst is read at the start of a worker. If the files differ from those of the
// previous worker, it returns the configuration of the previous worker and sets kept: a
// node that served must not depend on new files. A reload then reads the new files.
func (c *corefiles) readFirst(k configKeeper) (cfg source, kept bool, err error) {
	last, files, err := k.load()
	if err != nil {
		c.warn(fmt.Errorf("the configuration of the previous worker is lost: %w", err))
	}
	c.kubeDNS = last.kubeDNS
	cfg, err = c.read()
	if files == nil || err == nil && maps.EqualFunc(last.texts, cfg.kept.texts, bytes.Equal) {
		return cfg, false, err
	}
	c.kubeDNS = last.kubeDNS
	before, lastErr := c.parse(c.opts.source(files))
	if lastErr != nil {
		c.warn(fmt.Errorf("the configuration of the previous worker is not used: %w", lastErr))
		return cfg, false, err
	}
	all := c.files(before.Files...)
	return source{before, all, watch.SumOf(all), last}, true, nil
}
