package daemon

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/cache"
)

// handOver passes the cache on to the next process. In a surge upgrade that one
// starts while we still serve: it asks us, over a socket beside the file. After
// a restart in place there is nobody to ask: it reads the file that we left.
// Either way it serves before it has read all of it.
type handOver struct {
	path  string // of the file
	store *cache.Store
	log   *slog.Logger
	limit int64 // octets of a snapshot

	reading sync.WaitGroup // what sets the rest
	ln      *net.UnixListener
	socket  os.FileInfo // ours
	serving sync.WaitGroup
}

const (
	// warmAtOnce is how long the start waits for the snapshot to be read.
	warmAtOnce = 50 * time.Millisecond
	// handOverTime bounds one transfer.
	handOverTime = 5 * time.Second
	mostHandOver = 16 << 20 // octets; /run is memory
)

func newHandOver(path string, store *cache.Store, log *slog.Logger) *handOver {
	return &handOver{path: path, store: store, log: log, limit: min(mostHandOver, store.Stats().Budget/2)}
}

// up reads what there is and offers the cache to the next process. A failure is
// told and not the end: it costs misses, not answers.
func (h *handOver) up(context.Context) error {
	if h.path == "" {
		return nil
	}
	if err := ownDirectory(filepath.Dir(h.path)); err != nil {
		h.log.Warn("the cache is not handed over", "error", err)
		return nil
	}
	read := make(chan struct{})
	h.reading.Go(func() {
		tell := h.read()
		close(read)
		if err := h.listen(); err != nil { // the socket was the old process's until now
			h.log.Warn("the cache is not handed over", "error", err)
		}
		tell()
	})
	select {
	case <-read:
	case <-time.After(warmAtOnce):
	}
	return nil
}

// read fills the cache from the old process, or from the file that it left,
// which is of no use to anybody after that. It returns what logs how that went.
func (h *handOver) read() (tell func()) {
	began := time.Now()
	r, from, err := h.open()
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}
	}
	var n int
	if err == nil {
		n, err = h.take(r)
		err = errors.Join(err, r.Close(), removeIfThere(h.path))
	}
	if err != nil {
		return func() {
			h.log.Warn("the old process's cache cannot be read whole", "from", from, "entries", n, "error", err)
		}
	}
	took := time.Since(began)
	return func() { h.log.Info("cache taken over", "from", from, "entries", n, "duration", took) }
}

func (h *handOver) take(r io.Reader) (int, error) {
	b := bufio.NewReaderSize(io.LimitReader(r, 2*mostHandOver), 1<<16)
	_, _ = b.Peek(1) // the present comes after the time at which it is written
	now, err := stamp()
	if err != nil {
		return 0, err
	}
	return h.store.ReadSnapshot(b, now)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (h *handOver) open() (io.ReadCloser, string, error) {
	conn, err := net.DialTimeout("unix", h.socketPath(), handOverTime)
	if err == nil {
		err = errors.Join(samePerson(conn.(*net.UnixConn)), conn.SetDeadline(time.Now().Add(handOverTime)))
		return conn, h.socketPath(), err
	}
	f, err := os.OpenFile(h.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, h.path, err
	}
	if err := ownFile(f); err != nil {
		return nil, h.path, errors.Join(err, f.Close())
	}
	return f, h.path, nil
}

func (h *handOver) socketPath() string { return h.path + ".sock" }

// listen puts our socket in the place of the old process's.
func (h *handOver) listen() error {
	tmp := fmt.Sprintf("%s.%d", h.socketPath(), os.Getpid())
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return err
	}
	ln.SetUnlinkOnClose(false)
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		h.socket, err = os.Lstat(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, h.socketPath())
	}
	if err != nil {
		return errors.Join(err, ln.Close(), removeIfThere(tmp))
	}
	h.ln = ln
	h.serving.Go(h.serve)
	return nil
}

// serve writes the cache to whoever asks, one after another.
func (h *handOver) serve() {
	for {
		conn, err := h.ln.AcceptUnix()
		if err != nil {
			return // closed
		}
		err = samePerson(conn)
		if err == nil {
			err = errors.Join(conn.SetDeadline(time.Now().Add(handOverTime)), h.write(conn))
		}
		if err = errors.Join(err, conn.Close()); err != nil {
			h.log.Warn("hand over the cache", "error", err)
			continue
		}
		h.log.Info("cache handed over")
	}
}

// write buffers, so that shards are not locked for as long as the reader takes.
func (h *handOver) write(w io.Writer) error {
	now, err := stamp()
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 1<<16)
	return errors.Join(h.store.WriteSnapshot(b, now, h.limit), b.Flush())
}

// down leaves the file and takes our socket away. Where the socket is another
// process's by now, that one has what we have, and needs no file.
func (h *handOver) down(context.Context) error {
	h.reading.Wait()
	if h.ln == nil {
		return nil
	}
	err := ignoreNetClosed(h.ln.Close())
	h.serving.Wait()
	now, lerr := os.Lstat(h.socketPath())
	if lerr == nil && !os.SameFile(now, h.socket) {
		return err
	}
	err = errors.Join(err, removeIfThere(h.socketPath()))
	if serr := h.save(); serr != nil {
		h.log.Warn("the cache is not kept for the next process", "error", serr)
	}
	return err
}

func ignoreNetClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// save writes the file as a whole or not at all.
func (h *handOver) save() error {
	f, err := os.CreateTemp(filepath.Dir(h.path), filepath.Base(h.path)+".*")
	if err != nil {
		return err
	}
	err = errors.Join(h.write(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), h.path)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(f.Name()))
	}
	return nil
}

// ownDirectory makes dir if it is not there, and holds it to being ours: what
// others could write would become answers.
func ownDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return ownFile(d)
}

func ownFile(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	kind := st.Mode & unix.S_IFMT
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return fmt.Errorf("%s: others may write to it (owner %d, mode %o)", f.Name(), st.Uid, st.Mode)
	}
	return nil
}

// samePerson holds the other end of conn to running as our user.
func samePerson(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(cerr, err); err != nil {
		return err
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the other end of the socket is user %d", cred.Uid)
	}
	return nil
}

// stamp is now, as another process on this machine would read it.
func stamp() (cache.Stamp, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return cache.Stamp{}, err
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err != nil || len(id) != 16 {
		return cache.Stamp{}, fmt.Errorf("boot_id %q is no UUID", text)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return cache.Stamp{}, fmt.Errorf("clock_gettime: %w", err)
	}
	return cache.Stamp{Boot: [16]byte(id), Since: time.Duration(ts.Nano())}, nil
}
