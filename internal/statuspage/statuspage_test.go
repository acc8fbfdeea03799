package statuspage

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/doctor"
)

// TestPageFitsItsPolicy checks the assumptions of the policy: one style, one script,
// nothing inline and no address of another host.
func TestPageFitsItsPolicy(t *testing.T) {
	for _, element := range []string{"script", "style"} {
		if n := strings.Count(page, "<"+element); n != 1 || !strings.Contains(page, "<"+element+">") {
			t.Errorf("%d elements %s, or one with attributes", n, element)
		}
	}
	html := regexp.MustCompile(`(?s)<(script|style)>.*?</(script|style)>`).ReplaceAllString(page, "")
	for _, bad := range []string{`\sstyle=`, `\son\w+=`, `(src|href)="[^d#]`} {
		if s := regexp.MustCompile(bad).FindString(html); s != "" {
			t.Errorf("the page has %q", s)
		}
	}
	if s := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`).FindString(page); s != "" {
		t.Errorf("the script has %q", s)
	}
	w := httptest.NewRecorder()
	Page(w, httptest.NewRequest("GET", "/", nil))
	if p := w.Header().Get("Content-Security-Policy"); strings.Contains(p, "unsafe") || !strings.Contains(p, "script-src 'sha256-") {
		t.Error(p)
	}
}

func get(f *findings, ctx context.Context) (int, doctor.Report) {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest("GET", FindingsPath, nil).WithContext(ctx))
	var r doctor.Report
	_ = json.Unmarshal(w.Body.Bytes(), &r)
	return w.Code, r
}

// TestFindings sends twenty requests at once, and one after the report has expired.
func TestFindings(t *testing.T) {
	now, runs, running := time.Unix(0, 0), 0, 0
	f := Findings(func(context.Context) *doctor.Report {
		runs, running = runs+1, running+1 // the race detector sees two at a time
		defer func() { running-- }()
		return &doctor.Report{Findings: []doctor.Finding{{ID: "hung"}}}
	}, func() time.Time { return now }).(*findings)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if code, r := get(f, t.Context()); code != 200 || len(r.Findings) != 1 || r.Findings[0].ID != "hung" {
				t.Errorf("%d %+v", code, r)
			}
		})
	}
	all.Wait()
	if runs != 1 {
		t.Errorf("%d examinations", runs)
	}
	now = now.Add(findingsAge)
	if get(f, t.Context()); runs != 2 {
		t.Errorf("%d examinations after the report has expired", runs)
	}
}

// TestFindingsOfAClientThatLeaves: the server does not cache findings of a request that
// the client cancelled, and does not block other requests.
func TestFindingsOfAClientThatLeaves(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	f := Findings(func(c context.Context) *doctor.Report {
		if c.Value(stays{}) == nil {
			leave()
			<-c.Done()
		}
		return &doctor.Report{}
	}, time.Now).(*findings)
	if code, _ := get(f, ctx); code != 504 {
		t.Errorf("status %d", code)
	}
	if code, _ := get(f, context.WithValue(t.Context(), stays{}, true)); code != 200 {
		t.Errorf("status %d after another client has left", code)
	}
}

type stays struct{}
