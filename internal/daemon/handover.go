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

// handOver passes the cache to the next process. In a surge upgrade, the next
// process starts while this one serves, and reads from a socket next to the file.
// After a restart in place, it reads the file that the old process left. In both
// cases it serves before it has read everything.
type handOver struct {
	path  string // of the file
	store *cache.Store
	log   *slog.Logger
	limit int64 // bytes of a snapshot

	reading sync.WaitGroup // sets the fields below; down waits for it
	ln      *net.UnixListener
	socket  os.FileInfo // ours
	serving sync.WaitGroup
}

const (
	// snapshotWait is how long the start waits until the snapshot is read.
	snapshotWait = 50 * time.Millisecond
	// handOverTimeout limits one transfer.
	handOverTimeout = 5 * time.Second
	maxSnapshot     = 16 << 20 // bytes; /run is memory
)

func newHandOver(path string, store *cache.Store, log *slog.Logger) *handOver {
	return &handOver{path: path, store: store, log: log, limit: min(maxSnapshot, store.Stats().Budget/2)}
}

// up reads the old process's cache and then offers the cache to the next process. It
// logs a failure and continues: a failure costs cache misses, but no answers.
func (h *handOver) up(context.Context) error {
	if h.path == "" {
		return nil
	}
	if err := makeOwned(filepath.Dir(h.path)); err != nil {
		h.log.Warn("the cache is not handed over", "error", err)
		return nil
	}
	read := make(chan struct{})
	h.reading.Go(func() {
		logResult := h.read()
		close(read)
		if err := h.listen(); err != nil { // until now the socket belongs to the old process
			h.log.Warn("the cache is not handed over", "error", err)
		}
		logResult()
	})
	select {
	case <-read:
	case <-time.After(snapshotWait):
	}
	return nil
}

// read fills the cache from the old process, or from the file that it left. It
// removes the file. The returned function logs the result.
func (h *handOver) read() (logResult func()) {
	start := time.Now()
	r, from, err := h.open()
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}
	}
	var n int
	if err == nil {
		n, err = h.take(r)
		err = errors.Join(err, r.Close(), removeIfExists(h.path))
	}
	if err != nil {
		return func() {
			h.log.Warn("reading the old process's cache failed", "from", from, "entries", n, "error", err)
		}
	}
	took := time.Since(start)
	return func() { h.log.Info("cache taken over", "from", from, "entries", n, "duration", took) }
}

// take returns the number of entries that it has read from r.
func (h *handOver) take(r io.Reader) (int, error) {
	b := bufio.NewReaderSize(io.LimitReader(r, 2*maxSnapshot), 1<<16)
	_, _ = b.Peek(1) // wait for data: our stamp must not be earlier than the writer's
	now, err := stamp()
	if err != nil {
		return 0, err
	}
	return h.store.ReadSnapshot(b, now)
}

// removeSnapshot removes the files of -cache-snapshot and their directory, unless it
// has other files. It does nothing if path is empty.
func removeSnapshot(path string) error {
	if path == "" {
		return nil
	}
	files, err := filepath.Glob(path + "*") // the snapshot, its socket, and what a crash left
	for _, file := range files {
		err = errors.Join(err, removeIfExists(file))
	}
	dirErr := os.Remove(filepath.Dir(path))
	if errors.Is(dirErr, fs.ErrNotExist) || errors.Is(dirErr, unix.ENOTEMPTY) || errors.Is(dirErr, unix.EBUSY) { // EBUSY: a mount point
		dirErr = nil
	}
	return errors.Join(err, dirErr)
}

func removeIfExists(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// open connects to the old process or opens the file that it left. It also returns
// the path.
func (h *handOver) open() (io.ReadCloser, string, error) {
	conn, err := net.DialTimeout("unix", h.socketPath(), handOverTimeout)
	if err == nil {
		err = errors.Join(checkPeer(conn.(*net.UnixConn)), conn.SetDeadline(time.Now().Add(handOverTimeout)))
		return conn, h.socketPath(), err
	}
	f, err := os.OpenFile(h.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, h.path, err
	}
	if err := checkOwned(f); err != nil {
		return nil, h.path, errors.Join(err, f.Close())
	}
	return f, h.path, nil
}

func (h *handOver) socketPath() string { return h.path + ".sock" }

// listen replaces the old process's socket by ours.
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
		return errors.Join(err, ln.Close(), removeIfExists(tmp))
	}
	h.ln = ln
	h.serving.Go(h.serve)
	return nil
}

// serve writes the cache to each process that connects, one at a time.
func (h *handOver) serve() {
	for {
		conn, err := h.ln.AcceptUnix()
		if err != nil {
			return // closed
		}
		err = checkPeer(conn)
		if err == nil {
			err = errors.Join(conn.SetDeadline(time.Now().Add(handOverTimeout)), h.write(conn))
		}
		if err = errors.Join(err, conn.Close()); err != nil {
			h.log.Warn("handing over the cache failed", "error", err)
			continue
		}
		h.log.Info("cache handed over")
	}
}

// write writes a snapshot. It buffers, so that a slow reader does not keep shards
// locked.
func (h *handOver) write(w io.Writer) error {
	now, err := stamp()
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 1<<16)
	return errors.Join(h.store.WriteSnapshot(b, now, h.limit), b.Flush())
}

// down removes our socket and writes the file. If the socket belongs to another
// process by now, that process has read the cache and needs no file.
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
	err = errors.Join(err, removeIfExists(h.socketPath()))
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

// save writes the whole file or none.
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
		return errors.Join(err, removeIfExists(f.Name()))
	}
	return nil
}

// makeOwned creates dir if it does not exist, and checks that only our user can
// write to it, because nodens uses the answers in its files.
func makeOwned(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return checkOwned(d)
}

// checkOwned checks that f is a file or directory of our user that others cannot
// write to.
func checkOwned(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	kind := st.Mode & unix.S_IFMT
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return fmt.Errorf("%s: other users may write to it (owner %d, mode %o)", f.Name(), st.Uid, st.Mode)
	}
	return nil
}

// checkPeer checks that the other end of conn runs as our user.
func checkPeer(conn *net.UnixConn) error {
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
		return fmt.Errorf("the process at the other end of the socket runs as user %d", cred.Uid)
	}
	return nil
}

// stamp returns the current time on a clock that all processes of this boot share.
func stamp() (cache.Stamp, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return cache.Stamp{}, err
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err != nil || len(id) != 16 {
		return cache.Stamp{}, fmt.Errorf("boot_id %q is not a UUID", text)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return cache.Stamp{}, fmt.Errorf("clock_gettime: %w", err)
	}
	return cache.Stamp{Boot: [16]byte(id), Since: time.Duration(ts.Nano())}, nil
}
