package explorer

import (
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/sdk/js"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// newFront returns the handler of a relay with this page.
func newFront(t *testing.T, p *Page) http.Handler {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Run(t, r, store))
	return httpapi.New(r, httpapi.Options{Log: quiet, Root: p.Root, Mounts: []httpapi.Mount{p.Mount()}}).Handler(false)
}

// ask sends a request with these headers, which are pairs of name and value.
func ask(h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newPage(t *testing.T, remote string) *Page {
	t.Helper()
	p, err := New(remote)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPageOnARelay checks which paths the page has on a relay, and that the relay's own paths do not change.
func TestPageOnARelay(t *testing.T) {
	h := newFront(t, newPage(t, ""))
	for _, c := range []struct {
		method, target string
		status         int
		contentType    string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/?from=a-link", 200, "text/html; charset=utf-8"},
		{"GET", "/page/agora.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/page/icon.svg", 200, "image/svg+xml"},
		{"HEAD", "/page/icon.svg", 200, "image/svg+xml"},
		{"GET", "/page/config.json", 200, "application/json"},
		{"GET", "/page/index.html", 404, "application/json"},
		{"GET", "/page", 404, "application/json"},
		{"GET", "/page/", 404, "application/json"},
		{"GET", "/page//agora.js", 404, "application/json"},
		{"GET", "/page/../agora.js", 404, "application/json"},
		{"GET", "/page/static/icon.svg", 404, "application/json"},
		{"GET", "/pages", 404, "application/json"},
		{"GET", "/agora.js", 404, "application/json"},
		{"GET", "/favicon.ico", 404, "application/json"},
		{"POST", "/", 405, "application/json"},
		{"POST", "/page/agora.js", 405, "application/json"},
		{"OPTIONS", "/page/agora.js", 405, "application/json"},
		{"GET", "/health", 200, "application/json"},
		{"GET", "/nowhere", 404, "application/json"},
	} {
		w := ask(h, c.method, c.target)
		if got := w.Header().Get("Content-Type"); w.Code != c.status || got != c.contentType {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.target, w.Code, got, c.status, c.contentType)
		}
		if c.status == 405 && w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow is %q", c.method, c.target, w.Header().Get("Allow"))
		}
		if c.method == "HEAD" && (w.Body.Len() > 0 || w.Header().Get("Content-Length") == "0") {
			t.Errorf("HEAD %s has %d bytes, and the length %q", c.target, w.Body.Len(), w.Header().Get("Content-Length"))
		}
		if c.status >= 400 && !strings.HasPrefix(w.Body.String(), `{"ok":false,"error":"`) {
			t.Errorf("%s %s: %s", c.method, c.target, w.Body)
		}
	}
}

// TestHeaders checks the headers that protect the page, on files and on errors below /page.
func TestHeaders(t *testing.T) {
	h := newFront(t, newPage(t, ""))
	for _, target := range []string{"/", "/page/agora.js", "/page/config.json", "/page/nothing"} {
		for _, method := range []string{"GET", "HEAD", "POST"} {
			if method == "POST" && target == "/" {
				continue // the relay's own routes answer
			}
			header := ask(h, method, target).Header()
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
					"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
					"require-trusted-types-for 'script'; trusted-types 'none'",
				"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
				"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			} {
				if got := header.Get(name); got != want {
					t.Errorf("%s %s: %s is %q", method, target, name, got)
				}
			}
		}
	}
}

// TestEncodings checks gzip and the tags: each coding of a file has its own tag, and a browser that has the file gets
// 304.
func TestEncodings(t *testing.T) {
	h := newFront(t, newPage(t, ""))
	plain := ask(h, "GET", "/page/agora.js")
	zipped := ask(h, "GET", "/page/agora.js", "Accept-Encoding", "br, gzip")
	if got := plain.Body.String(); got != string(js.Module) || plain.Header().Get("Content-Encoding") != "" {
		t.Errorf("without Accept-Encoding: %d bytes, coding %q", len(got), plain.Header().Get("Content-Encoding"))
	}
	reader, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || string(text) != string(js.Module) {
		t.Errorf("with gzip: %d bytes, %v", len(text), err)
	}
	tag, zippedTag := plain.Header().Get("ETag"), zipped.Header().Get("ETag")
	if tag == zippedTag || !strings.HasPrefix(tag, `"`) || !strings.HasPrefix(zippedTag, `"`) {
		t.Errorf("the tags are %s and %s", tag, zippedTag)
	}
	for _, c := range []struct {
		accept, ifNoneMatch, coding string
		status                      int
	}{
		{"", tag, "", 304}, {"", "W/" + tag, "", 304}, {"", `"x", ` + tag, "", 304}, {"", "*", "", 304},
		{"", zippedTag, "", 200}, {"gzip", tag, "gzip", 200}, {"gzip", zippedTag, "", 304}, {"", `"x"`, "", 200},
		{"GZIP;q=0.5", "", "gzip", 200}, {"gzip;q=0", "", "", 200}, {"gzip; q=0.000", "", "", 200}, {"br", "", "", 200},
		{"gzip;q=x", "", "", 200}, {"gzipped", "", "", 200},
	} {
		w := ask(h, "GET", "/page/agora.js", "Accept-Encoding", c.accept, "If-None-Match", c.ifNoneMatch)
		if got := w.Header().Get("Content-Encoding"); w.Code != c.status || got != c.coding {
			t.Errorf("%+v: %d, coding %q", c, w.Code, got)
		}
		if w.Header().Get("Vary") != "Accept-Encoding" || w.Header().Get("Cache-Control") != "no-cache" || w.Header().Get("ETag") == "" {
			t.Errorf("%+v: %v", c, w.Header())
		}
		if c.status == 304 && w.Body.Len() > 0 {
			t.Errorf("%+v: a body of %d bytes", c, w.Body.Len())
		}
	}
}

// TestConfig checks that only a page for another relay names that relay.
func TestConfig(t *testing.T) {
	if got := ask(newFront(t, newPage(t, "")), "GET", "/page/config.json").Body.String(); got != "{}" {
		t.Errorf("the relay's own page: %s", got)
	}
	h := newPage(t, "https://relay.example").Handler("")
	w := httptest.NewRecorder()
	if err := h(w, httptest.NewRequest("GET", "/page/config.json", nil), relay.Peer{}); err != nil {
		t.Fatal(err)
	}
	if got := w.Body.String(); got != `{"relay":"https://relay.example"}` {
		t.Errorf("the page for another relay: %s", got)
	}
}

// TestPageIsSmall checks that the page has at most 150 KB as it is sent, and only files that index.html leads to.
func TestPageIsSmall(t *testing.T) {
	p := newPage(t, "")
	h := newFront(t, p)
	size, all := ask(h, "GET", "/", "Accept-Encoding", "gzip").Body.Len(), ask(h, "GET", "/").Body.String()
	for name := range p.files {
		all += ask(h, "GET", "/page/"+name).Body.String()
	}
	for name := range p.files {
		if !strings.Contains(all, "page/"+name) && !strings.Contains(all, "./"+name) {
			t.Errorf("nothing in the page names %s", name)
		}
		size += ask(h, "GET", "/page/"+name, "Accept-Encoding", "gzip").Body.Len()
	}
	if size > 150_000 {
		t.Errorf("the page has %d bytes", size)
	}
}
