package lab

import (
	"bufio"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// Lines is the output of a process so far, by line. WaitFor waits for a line.
type Lines struct {
	mu    sync.Mutex
	all   []string
	ended bool
	news  chan struct{} // closed and replaced at every change
}

func newLines() *Lines { return &Lines{news: make(chan struct{})} }

// read reads lines from r until it ends.
func (l *Lines) read(r io.Reader) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		l.update(func() { l.all = append(l.all, s.Text()) })
	}
	l.update(func() { l.ended = true })
	_, _ = io.Copy(io.Discard, r)
}

func (l *Lines) update(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.news)
	l.news = make(chan struct{})
}

// since returns the lines from the given one on, whether more can come, and a
// channel that is closed at the next change.
func (l *Lines) since(from int) ([]string, bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[from:], !l.ended, l.news
}

// Mark is the number of lines so far, for WaitFor.
func (l *Lines) Mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// Text is the output so far.
func (l *Lines) Text() string {
	all, _, _ := l.since(0)
	return strings.Join(all, "\n")
}

// WaitFor waits for a line that matches the regular expression, starting at line
// mark, and returns it. After a timeout it fails the test and shows the lines.
func (l *Lines) WaitFor(t testing.TB, mark int, pattern string) string {
	t.Helper()
	return l.WaitForRetrying(t, mark, pattern, waitTimeout, func() {})
}

// waitTimeout is the timeout for a line and for the end of a process. It allows for
// a machine that compiles a package at the same time.
const waitTimeout = time.Minute

// WaitForRetrying is WaitFor for a line whose cause may get lost: it calls push
// at once, and again each time that no line has come for the given duration.
func (l *Lines) WaitForRetrying(t testing.TB, mark int, pattern string, every time.Duration, push func()) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.After(waitTimeout)
	push()
	for {
		lines, more, news := l.since(mark)
		for _, s := range lines {
			if re.MatchString(s) {
				return s
			}
		}
		if !more {
			t.Fatalf("output ended without %q:\n%s", pattern, strings.Join(lines, "\n"))
		}
		select {
		case <-news:
		case <-time.After(every):
			push()
		case <-late:
			t.Fatalf("no line %q within %v:\n%s", pattern, waitTimeout, strings.Join(lines, "\n"))
		}
	}
}
