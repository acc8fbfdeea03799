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

// Lines is what a process has written so far, line by line. It can be waited
// on.
type Lines struct {
	mu    sync.Mutex
	all   []string
	ended bool
	news  chan struct{} // closed and replaced when something changes
}

func newLines() *Lines { return &Lines{news: make(chan struct{})} }

// read takes lines from r until it ends.
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

// since returns the lines from the given one on, whether there will be more,
// and a channel that is closed when that changes.
func (l *Lines) since(from int) ([]string, bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[from:], !l.ended, l.news
}

// Mark is the number of lines so far: what Await starts from.
func (l *Lines) Mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// Text is everything so far.
func (l *Lines) Text() string {
	all, _, _ := l.since(0)
	return strings.Join(all, "\n")
}

// Await waits for a line from mark on that matches the regular expression and
// returns it. Without one in time the test fails and shows what there was.
func (l *Lines) WaitFor(t testing.TB, mark int, pattern string) string {
	t.Helper()
	return l.WaitForRetrying(t, mark, pattern, patience, func() {})
}

// patience is how long a line, and what else is bound to come, may take on a
// machine that compiles a package beside.
const patience = time.Minute

// WaitForRetrying is Await for a line that has to be provoked by what may lose its
// effect: push is called at once and again each time that no line has come for
// the given duration.
func (l *Lines) WaitForRetrying(t testing.TB, mark int, pattern string, every time.Duration, push func()) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.After(patience)
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
			t.Fatalf("no line %q within %v:\n%s", pattern, patience, strings.Join(lines, "\n"))
		}
	}
}
