package statuspage

import (
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// Expressions about the page.
const (
	total   = `parseInt(document.querySelector("#tiles .under").textContent.replaceAll(",", ""))`
	rates   = `/^[1-9]/.test(document.querySelector("#tiles .value").textContent) && /^[1-9].*%$/.test(document.querySelectorAll("#tiles .value")[1].textContent)`
	lists   = `[...document.querySelectorAll("#lists section")].every(s => s.querySelector("tbody .key"))`
	keys    = `[...document.querySelectorAll("#lists .key div span")].map(n => n.textContent)`
	healthy = `[...document.querySelectorAll("#upstreams .badge")].filter(n => n.textContent === "healthy").length`
	badge   = `document.getElementById("state").textContent`
	// A busy machine may lose doctor's queries: examine again.
	examined = `(() => {
		const again = document.getElementById("examine");
		if (document.getElementById("doctor-badge").textContent === "no problem found") return true;
		if (!again.disabled) again.click();
		return false;
	})()`
	history = `document.querySelector(".spark-line").getAttribute("d")?.startsWith("M1 ")`
)

// TestPage checks live values, the filter, the doctor and three screens. The browser's
// console must have no complaint.
func TestPage(t *testing.T) {
	b := newBrowser(t)
	n := newNode(t)
	n.load(t)
	b.view(t, 1280, 1180, "light") // as the picture in docs/troubleshooting.md
	b.do(t, chromedp.Navigate("http://"+n.address+"/"))
	b.wait(t, badge+` === "ready"`)
	before := b.eval(t, total).(float64)
	b.wait(t, rates)
	b.wait(t, lists)
	b.wait(t, healthy+` === 3`)
	if text := b.eval(t, `document.querySelector("#upstreams tbody").innerText`).(string); !strings.Contains(text, "10.96.0.10:53\tcluster.local.") {
		t.Errorf("CoreDNS is not an upstream of cluster.local.:\n%s", text)
	}
	b.wait(t, examined)
	if *screenshots != "" {
		b.wait(t, history)
	}
	if text := b.eval(t, `document.body.innerText`).(string); !strings.Contains(text, "worker-1") || !strings.Contains(text, "forward . 10.0.0.2 10.0.0.3") {
		t.Errorf("node name or Corefile is not in the page:\n%s", text)
	}
	b.picture(t, "light")
	b.accessible(t, "light")
	b.view(t, 1280, 1000, "dark")
	b.picture(t, "dark")
	b.accessible(t, "dark")
	b.view(t, 360, 740, "light")
	b.picture(t, "phone")
	b.accessible(t, "phone")
	if wide := b.eval(t, `document.documentElement.scrollWidth`); wide != 360.0 {
		t.Errorf("the page is %v pixels wide on a phone with 360", wide)
	}
	if after := b.eval(t, total).(float64); after <= before {
		t.Errorf("%v queries, and %v before", after, before)
	}
	filter(t, b, n)
	b.check(t, "net::ERR_") // the page reconnects
}

// filter searches in the lists, and changes their window.
func filter(t *testing.T, b *browser, n *node) {
	t.Helper()
	n.Ask(t, "udp", listen+":53", lab.Query(markup, dns.TypeA))
	b.view(t, 1280, 1000, "light")
	enter := func(text string) {
		b.eval(t, `document.getElementById("filter").value = ""`)
		b.do(t, chromedp.SendKeys(chromedp.CSS("#filter"), text))
	}
	enter("PAYMENTS")
	b.wait(t, keys+`.length > 0 && `+keys+`.every(k => k.includes("payments"))`)
	enter("<b>")
	b.wait(t, keys+`.includes("`+markup+`")`)
	enter("shop/check")
	b.wait(t, keys+`.join() === "shop/checkout-7c9d8f6b5-x2klp"`) // the address by its pod
	enter("nothing")
	b.wait(t, keys+`.length === 0`)
	enter("10.244.1.")
	for _, w := range []string{"1m", "60m"} {
		b.do(t, chromedp.Click(chromedp.CSS(`input[value="`+w+`"]`)))
		b.wait(t, `document.querySelector("#windows input:checked").value === "`+w+`" && `+keys+`.length === 5`)
	}
}

// proxy serves the status page as the API server's proxy does: below a path, and
// without Authorization.
func proxy(t *testing.T, n *node) string {
	t.Helper()
	const prefix = "/api/v1/namespaces/kube-system/pods/nodens-x:9354/proxy/"
	s := httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: n.address})
			r.Out.URL.Path = "/" + strings.TrimPrefix(r.In.URL.Path, prefix)
			r.Out.Header.Del("Authorization")
		},
	})
	t.Cleanup(s.CloseClientConnections)
	t.Cleanup(s.Close)
	return s.URL + prefix
}

// TestToken: the page prompts for the token, keeps it in the tab, and reconnects after a
// restart of nodens.
func TestToken(t *testing.T) {
	b := newBrowser(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "-status-token-file", file)
	b.view(t, 1280, 800, "light")
	b.do(t, chromedp.Navigate(proxy(t, n)))
	b.wait(t, badge+` === "locked"`)
	b.accessible(t, "the form")
	b.picture(t, "token")
	b.do(t, chromedp.SendKeys(chromedp.CSS("#secret"), "wrong\r"))
	b.wait(t, `document.getElementById("refused").textContent.includes("does not have the token")`)
	b.do(t, chromedp.SendKeys(chromedp.CSS("#secret"), "secret\r"))
	b.wait(t, badge+` === "ready" && document.getElementById("token").hidden`)
	b.wait(t, examined)
	b.do(t, chromedp.Reload())
	b.wait(t, badge+` === "ready"`)
	if kept := b.eval(t, `[sessionStorage.length, localStorage.length, document.cookie].join()`); kept != "1,0," {
		t.Errorf("session storage, local storage and cookies: %v", kept)
	}
	n.daemon.Signal(t, syscall.SIGTERM)
	b.wait(t, badge+` === "reconnecting"`)
	n.daemon.Wait(t)
	n.start(t)
	b.wait(t, badge+` === "ready"`)
	b.check(t, "status of 401", "status of 502", "ERR_") // the console lists failed requests
}
