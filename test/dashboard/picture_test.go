package dashboard

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/nodens-dns/nodens/internal/lab"
	"github.com/nodens-dns/nodens/internal/lab/chromium"
)

// TestPicture draws the dashboard of two nodes. During the time that it shows, resolvers
// do not answer for a while: first one, then both.
func TestPicture(t *testing.T) {
	if *picture == "" {
		t.Skip("it takes minutes: make dashboard")
	}
	lab.NeedTools(t, "chromium")
	if *server == "" {
		*server = record(t)
	}
	api, err := url.Parse(*server)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/api/", httputil.NewSingleHostReverseProxy(api))
	mux.HandleFunc("/dashboard.json", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, "../../deploy/chart/files/dashboard.json")
	})
	mux.Handle("/", http.FileServer(http.Dir(*page)))
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css"><div id="root"></div><script src="page.js"></script>`)
	})
	site := httptest.NewServer(mux)
	t.Cleanup(site.Close)
	shoot(t, fmt.Sprintf("%s/?theme=%s&to=%d&seconds=%.0f", site.URL, *theme, time.Now().Unix(), length.Seconds()))
}

// record lets nodes work for the length of the picture and returns the URL of their
// Prometheus.
func record(t *testing.T) string {
	t.Helper()
	nodes := []*node{newNode(t, "worker-1"), newNode(t, "worker-2")}
	prometheus := startPrometheus(t, nodes)
	<-time.After(*length * 4 / 10)
	suspend(t, *length/10, nodes[0].unbounds[0])
	<-time.After(*length / 10)
	suspend(t, *length/20, nodes[0].unbounds...)
	<-time.After(*length * 4 / 10)
	return prometheus
}

// startPrometheus returns the URL of a Prometheus. It gives the metrics of the nodes the
// labels that they have in a cluster.
func startPrometheus(t *testing.T, nodes []*node) string {
	t.Helper()
	lab.NeedTools(t, "prometheus")
	dir := t.TempDir()
	conf := "scrape_configs:\n- job_name: kube-system/nodens\n  scrape_interval: 3s\n  static_configs:\n"
	for i, n := range nodes {
		conf += fmt.Sprintf("  - {targets: [%q], labels: {instance: %s, namespace: kube-system, pod: nodens-%d}}\n", n.metrics, n.name, i)
	}
	file := lab.WriteFile(t, filepath.Join(dir, "prometheus.yml"), conf)
	const address = "127.0.0.1:19090"
	p := lab.Command{Netns: here(t), Args: []string{"prometheus", "--config.file=" + file, "--storage.tsdb.path=" + dir, "--web.listen-address=" + address}}.Start(t)
	p.Err.WaitFor(t, 0, "Server is ready")
	return "http://" + address
}

// here is the namespace of the test.
func here(t *testing.T) *lab.Netns {
	t.Helper()
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return lab.NetnsOf(f)
}

// shoot writes the picture of a page when it is drawn.
func shoot(t *testing.T, address string) {
	t.Helper()
	ctx, stop := context.WithTimeout(chromium.New(t), 3*time.Minute)
	defer stop()
	if _, err := chromedp.Run(ctx, chromedp.Steps(chromedp.EmulateViewport(1100, 1000), chromedp.Navigate(address))); err != nil {
		t.Fatal(err)
	}
	for title := ""; title != "drawn"; <-time.After(100 * time.Millisecond) {
		var err error
		if title, err = chromedp.Run(ctx, chromedp.Evaluate[string]("document.title")); err != nil || strings.HasPrefix(title, "failed") {
			t.Fatalf("%s: %v", title, err)
		}
	}
	// Grafana's table draws only what is in the window.
	height, err := chromedp.Run(ctx, chromedp.Evaluate[int64]("document.documentElement.scrollHeight"))
	if err == nil {
		_, err = chromedp.Run(ctx, chromedp.EmulateViewport(1100, height))
	}
	if err != nil {
		t.Fatal(err)
	}
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(*picture, png, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
