package httpapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/httpapi/apidocs/apicheck"
)

// record sends a request with these headers, which are pairs of name and value.
func record(h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// The documents are the same for everybody, can be kept, and say the address of the relay. A private relay shows them
// without a signature too.
func TestDocuments(t *testing.T) {
	for _, reads := range []relay.Visibility{relay.ToAll, relay.ToParties} {
		r := startWith(t, asIs, relay.Config{Reads: reads, Origin: "https://relay.example"})
		h := newFront(t, r, httpapi.Options{Log: quiet, Build: "v9", Origins: []string{"*"}}).Handler(false)
		for path, contentType := range map[string]string{"/openapi.json": "application/json",
			"/llms.txt": "text/plain; charset=utf-8"} {
			w := record(h, "GET", path, "Origin", "https://app.example", "Authorization", "Agora invalid")
			tag := w.Header().Get("ETag")
			if w.Code != 200 || tag == "" || !strings.Contains(w.Body.String(), "https://relay.example") {
				t.Fatalf("%s: %d, ETag %s, %.300s", path, w.Code, tag, w.Body)
			}
			for name, want := range map[string]string{"Content-Type": contentType, "Cache-Control": "no-cache",
				"X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": "*"} {
				if got := w.Header().Get(name); got != want {
					t.Errorf("%s: %s is %q, want %q", path, name, got, want)
				}
			}
			if again := record(h, "GET", path, "If-None-Match", tag); again.Code != 304 || again.Body.Len() > 0 {
				t.Errorf("%s: with its ETag %d and %d bytes", path, again.Code, again.Body.Len())
			}
			head := record(h, "HEAD", path)
			if head.Code != 200 || head.Body.Len() > 0 || head.Header().Get("ETag") != tag {
				t.Errorf("HEAD %s: %d, %d bytes, ETag %s", path, head.Code, head.Body.Len(), head.Header().Get("ETag"))
			}
			if zipped := record(h, "GET", path, "Accept-Encoding", "gzip"); zipped.Body.Len() >= w.Body.Len() {
				t.Errorf("%s: gzip makes it no smaller", path)
			}
		}
	}
}

// TestEveryRouteIsDocumented checks that the paths of the document exist, and take the methods that it says and no
// others.
func TestEveryRouteIsDocumented(t *testing.T) {
	checker, err := apicheck.Of()
	if err != nil {
		t.Fatal(err)
	}
	h := httpapi.New(unlimited(t), httpapi.Options{Log: quiet}).Handler(false)
	for path, methods := range checker.Operations() {
		w := record(h, "BREW", strings.NewReplacer("{", "", "}", "").Replace(path))
		allowed := strings.Split(w.Header().Get("Allow"), ", ")
		slices.Sort(methods)
		if w.Code != 405 || !slices.Equal(allowed, methods) {
			t.Errorf("%s: %d, the relay takes %q, the document says %q", path, w.Code, allowed, methods)
		}
	}
}

// TestUndocumented checks that the checker finds what the document does not say.
func TestUndocumented(t *testing.T) {
	checker, err := apicheck.Of()
	if err != nil {
		t.Fatal(err)
	}
	health := `{"ok":true,"protocol":"1.0","version":"1.0.0","build":"b","now":"2026-02-02T12:00:00Z"}`
	good := apicheck.Exchange{Method: "GET", Path: "/health", Status: 200, Answer: []byte(health),
		AnswerHeader: http.Header{"Content-Type": {"application/json"}}}
	if problems := checker.Check(good); len(problems) > 0 {
		t.Fatal(problems)
	}
	events := `{"ok":true,"events":[],"hasMore":false,"cursor":"1"}`
	refusal := `{"ok":false,"error":"RATE_LIMITED","message":"m","retryable":true}`
	for name, change := range map[string]func(*apicheck.Exchange){
		"a path":         func(e *apicheck.Exchange) { e.Path = "/other" },
		"a method":       func(e *apicheck.Exchange) { e.Method = "POST" },
		"a status":       func(e *apicheck.Exchange) { e.Status = 203 },
		"a member":       func(e *apicheck.Exchange) { e.Answer = bytes.Replace(e.Answer, []byte("}"), []byte(`,"more":1}`), 1) },
		"a lost member":  func(e *apicheck.Exchange) { e.Answer = bytes.Replace(e.Answer, []byte(`"build":"b",`), nil, 1) },
		"another type":   func(e *apicheck.Exchange) { e.Answer = bytes.Replace(e.Answer, []byte(`"b"`), []byte("1"), 1) },
		"no time":        func(e *apicheck.Exchange) { e.Answer = bytes.Replace(e.Answer, []byte("T12"), []byte("T92"), 1) },
		"a header":       func(e *apicheck.Exchange) { e.AnswerHeader.Set("X-Other", "1") },
		"a Content-Type": func(e *apicheck.Exchange) { e.AnswerHeader.Set("Content-Type", "text/html") },
		"a hidden path":  func(e *apicheck.Exchange) { e.Path, e.Status = "/other", 405 },
		"no Retry-After": func(e *apicheck.Exchange) { e.Status, e.Answer = 429, []byte(refusal) },
		"a parameter":    func(e *apicheck.Exchange) { e.Path, e.Query, e.Answer = "/events", "color=1", []byte(events) },
		"a bad parameter": func(e *apicheck.Exchange) {
			e.Path, e.Query, e.Answer = "/events", "limit=many", []byte(events)
		},
		"a bad body": func(e *apicheck.Exchange) {
			*e = apicheck.Exchange{Method: "POST", Path: "/events", Status: 200, Request: []byte(`{"id":1}`), AnswerHeader: e.AnswerHeader,
				Answer: []byte(`{"ok":true,"id":"a","cursor":"1","duplicate":false,"expiresAt":"2026-02-02T12:00:00Z"}`)}
		},
	} {
		bad := good
		bad.AnswerHeader = good.AnswerHeader.Clone()
		change(&bad)
		if problems := checker.Check(bad); len(problems) == 0 {
			text, _ := json.Marshal(bad)
			t.Errorf("%s: nothing was found in %s", name, text)
		}
	}
}
