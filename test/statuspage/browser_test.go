package statuspage

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/nodens-dns/nodens/internal/lab"
	"github.com/nodens-dns/nodens/internal/lab/chromium"
)

// patience limits each wait for the page. It is long, for a busy machine.
const patience = 3 * time.Minute

// browser is a tab of a headless Chromium.
type browser struct {
	ctx context.Context

	mu         sync.Mutex
	complaints []string // errors and warnings of the console, and violations of the policy
}

// newBrowser starts Chromium, which ends with the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	b := new(browser)
	b.ctx = chromium.New(t, chromedp.WithListener(b.note))
	if _, err := chromedp.Call(b.ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// note collects the messages of the console.
func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, e.ExceptionDetails.Text+text(e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, fmt.Sprintf("console.%s: %s", e.Type, text(e.Args...)))
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, fmt.Sprintf("%s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

// text describes values of JavaScript.
func text(values ...*runtime.RemoteObject) string {
	var b strings.Builder
	for _, v := range values {
		if v != nil {
			fmt.Fprintf(&b, " %s %s", v.Description, v.Value)
		}
	}
	return b.String()
}

// check fails the test for complaints, except those that contain one of expected.
func (b *browser) check(t *testing.T, expected ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		known := false
		for _, e := range expected {
			known = known || strings.Contains(c, e)
		}
		if !known {
			t.Errorf("the browser complains: %s", c)
		}
	}
}

func (b *browser) do(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	run(t, b, chromedp.Steps(actions...))
}

// run runs an action and returns its value.
func run[T any](t *testing.T, b *browser, a chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// eval returns the value of a JavaScript expression, as JSON has it. Unlike
// chromedp.Poll, it needs no eval in the page: the page's policy refuses that.
func (b *browser) eval(t *testing.T, expression string) any {
	t.Helper()
	return run(t, b, chromedp.Evaluate[any](expression))
}

// wait waits until a JavaScript expression is true.
func (b *browser) wait(t *testing.T, expression string) {
	t.Helper()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for late := time.Now().Add(patience); b.eval(t, expression) != true; <-poll.C {
		if time.Now().After(late) {
			t.Fatalf("not within %v: %s\nthe page:\n%s", patience, expression, b.eval(t, "document.body.innerText"))
		}
	}
}

// view sets the size of the screen and the colour scheme.
func (b *browser) view(t *testing.T, width, height int64, scheme string) {
	t.Helper()
	size := chromedp.EmulateViewport(width, height)
	if width < 600 {
		size = chromedp.EmulateViewport(width, height, chromedp.EmulateMobile, chromedp.EmulatePortrait)
	}
	b.do(t, size)
	colours := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, colours); err != nil {
		t.Fatal(err)
	}
}

// picture writes a screenshot of the whole page. The height of a picture for the docs
// is that of the window.
func (b *browser) picture(t *testing.T, name string) {
	t.Helper()
	dir := *screenshots
	if dir == "" {
		dir = t.ArtifactDir()
	}
	for file, shot := range map[string]chromedp.Action[[]byte]{name + ".png": chromedp.FullScreenshot(100), name + "-window.png": chromedp.CaptureScreenshot()} {
		if err := os.WriteFile(filepath.Join(dir, file), run(t, b, shot), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// axeVersion is the version of axe-core that test/deps.sh installs.
const axeVersion = "4.14.1"

// accessible fails the test for each rule of axe-core that the page breaks.
func (b *browser) accessible(t *testing.T, state string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	axe, err := os.ReadFile(filepath.Join(cache, "nodens", "axe-core-"+axeVersion+".js"))
	if err != nil {
		lab.Skip(t, err.Error()+"; test/deps.sh installs it")
	}
	b.eval(t, string(axe)+";0")
	result := run(t, b, chromedp.Evaluate[string](
		`axe.run().then(r => JSON.stringify(r.violations.map(v => ({id: v.id, nodes: v.nodes.map(n => n.html + " " + n.failureSummary)}))))`, chromedp.EvalAwaitPromise))
	var violations []struct {
		ID    string
		Nodes []string
	}
	if err := json.Unmarshal([]byte(result), &violations); err != nil {
		t.Fatalf("%q: %v", result, err)
	}
	for _, v := range violations {
		t.Errorf("%s breaks %s:\n%s", state, v.ID, strings.Join(v.Nodes, "\n"))
	}
}
