// Package statuspage has the status page, one HTML file, and the findings of the
// doctor in JSON. The page reads the other paths of package state.
package statuspage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

//go:embed page.html
var page string

// policy is the page's Content-Security-Policy. It allows the page's own script and
// style by their hashes, and requests to the daemon only. Trusted
// types prevent that text of the daemon becomes HTML.
var policy = "default-src 'none'; script-src " + hash("script") + "; style-src " + hash("style") +
	"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
	"; require-trusted-types-for 'script'; trusted-types 'none'"

// hash returns the source expression of the page's only element with this tag
// (CSP level 3, section 2.3.1).
func hash(element string) string {
	_, rest, _ := strings.Cut(page, "<"+element+">")
	text, _, _ := strings.Cut(rest, "</"+element+">")
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Page serves the page. It has no data, so it needs no token.
func Page(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write([]byte(page))
}
