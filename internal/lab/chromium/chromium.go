// Package chromium starts a headless Chromium for tests.
package chromium

import (
	"context"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nodens-dns/nodens/internal/lab"
)

// New returns the context of a new Chromium, which ends with the test.
func New(t testing.TB, options ...chromedp.ContextOption) context.Context {
	t.Helper()
	lab.NeedTools(t, "chromium")
	ctx, stop := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"), chromedp.NoSandbox, // it runs as root
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-quic", true),
		chromedp.UserDataDir(t.TempDir()))...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx, options...)
	t.Cleanup(stop)
	return ctx
}
