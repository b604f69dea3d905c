package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// newFlakyProxy starts a proxy that makes trouble for two requests of five. It passes the others to the relay at the
// address that target returns. The kinds of trouble are:
//   - The relay never gets the request; the answer is a 429 or a 503 with Retry-After, or no answer.
//   - The relay gets the request, but the sender gets no answer.
//   - The relay gets the request twice, and the sender gets the second answer.
//   - The answer comes late.
//   - A page of events has its first event once more at its end.
func newFlakyProxy(seed uint64, logs io.Writer) (proxy *httptest.Server, setTarget func(string)) {
	f := &flaky{random: rand.New(rand.NewPCG(seed, 0))}
	proxy = httptest.NewUnstartedServer(f)
	quiet := log.New(logs, "proxy: ", 0)
	proxy.Config.ErrorLog = quiet
	f.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(f.relay())
			r.Out.Host = r.In.Host
		},
		ModifyResponse: repeatFirstEvent,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { // the relay is down
			http.Error(w, "no relay", http.StatusBadGateway)
		},
	}
	proxy.Start()
	return proxy, f.setTarget
}

type flaky struct {
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	target *url.URL
	random *rand.Rand
}

func (f *flaky) relay() *url.URL {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.target
}

func (f *flaky) setTarget(relay string) {
	target, err := url.Parse(relay)
	if err != nil {
		panic(err) // the relay has printed this URL
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = target
}

func (f *flaky) dice(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(n)
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	pass := func(w http.ResponseWriter) {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		f.proxy.ServeHTTP(w, again)
	}
	switch f.dice(15) {
	case 0:
		refuse(w, http.StatusTooManyRequests, "RATE_LIMITED")
	case 1:
		refuse(w, http.StatusServiceUnavailable, "UNAVAILABLE")
	case 2:
		panic(http.ErrAbortHandler) // closes the connection
	case 3:
		pass(httptest.NewRecorder())
		panic(http.ErrAbortHandler)
	case 4:
		pass(httptest.NewRecorder())
		pass(w)
	case 5:
		time.Sleep(time.Duration(f.dice(800)) * time.Millisecond) // this is the trouble that the proxy makes
		pass(w)
	default:
		pass(w)
	}
}

// refuse answers as a relay that is too busy.
func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"ok":false,"error":%q,"message":"a test","retryable":true,"details":{"stored":false}}`, code)
}

// repeatFirstEvent adds the first event of a page to its end, which no relay does.
func repeatFirstEvent(r *http.Response) error {
	if r.Request.Method != http.MethodGet || r.Request.URL.Path != "/events" || r.StatusCode != http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return err
	}
	var page map[string]json.RawMessage
	var events []json.RawMessage
	if json.Unmarshal(text, &page) == nil && json.Unmarshal(page["events"], &events) == nil && len(events) > 0 {
		if page["events"], err = json.Marshal(append(events, events[0])); err != nil {
			return err
		}
		if text, err = json.Marshal(page); err != nil {
			return err
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	r.ContentLength = int64(len(text))
	r.Header.Set("Content-Length", fmt.Sprint(len(text)))
	return nil
}
