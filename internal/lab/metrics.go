package lab

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Get fetches http://address/path from inside the namespace.
func (n *Netns) Get(t testing.TB, address, path string) (status int, body string) {
	t.Helper()
	status, body, err := n.TryGet(t.Context(), address, path)
	if err != nil {
		t.Fatalf("GET %s%s: %v", address, path, err)
	}
	return status, body
}

// TryGet is Get for a server that may not be listening.
func (n *Netns) TryGet(ctx context.Context, address, path string) (status int, body string, err error) {
	client := http.Client{
		Timeout:   QueryTimeout,
		Transport: &http.Transport{DialContext: n.DialContext, DisableKeepAlives: true},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	r, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

// Metrics is one scrape.
type Metrics map[string]*dto.MetricFamily

// Scrape reads the metrics from address.
func (n *Netns) Scrape(t testing.TB, address string) Metrics {
	t.Helper()
	status, body := n.Get(t, address, "/metrics")
	if status != http.StatusOK {
		t.Fatalf("GET %s/metrics: status %d", address, status)
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	m, err := p.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("parse metrics of %s: %v", address, err)
	}
	return m
}

// Sum adds up the counters, the gauges and the counts of histograms in family
// whose labels contain all the given ones, written as name=value. ok reports
// whether there was one.
func (m Metrics) Sum(family string, labels ...string) (sum float64, ok bool) {
	f := m[family]
	if f == nil {
		return 0, false
	}
	for _, metric := range f.Metric {
		if !hasLabels(metric, labels) {
			continue
		}
		ok = true
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
	}
	return sum, ok
}

func hasLabels(m *dto.Metric, labels []string) bool {
	have := make(map[string]bool)
	for _, l := range m.Label {
		have[l.GetName()+"="+l.GetValue()] = true
	}
	for _, l := range labels {
		if !have[l] {
			return false
		}
	}
	return true
}

// WaitForMetric scrapes until the sum of a metric is want: there is no signal to
// wait for.
func (n *Netns) WaitForMetric(t testing.TB, address string, want float64, family string, labels ...string) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.After(waitTimeout)
	for {
		got, ok := n.Scrape(t, address).Sum(family, labels...)
		if ok && got == want {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s%v is %v (present: %t), want %v", family, labels, got, ok, want)
		}
	}
}
