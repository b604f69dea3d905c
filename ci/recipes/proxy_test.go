//go:build unix

package recipes

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
)

// TestProxyOfTheEnvironment checks that the commands reach a relay through the proxy that the environment names.
func TestProxyOfTheEnvironment(t *testing.T) {
	const name = "http://relay.example" // only the proxy knows the way
	r := newReader(t, inScripts, nil)
	target, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	forward := httputil.NewSingleHostReverseProxy(target)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Host == "relay.example" {
			asked.Add(1)
		}
		request.Host = target.Host
		forward.ServeHTTP(w, request)
	}))
	defer proxy.Close()
	r.shell.run(t, "export HTTP_PROXY="+proxy.URL+" AGORA_RELAY="+name+`
agora keygen me.key
agora send request --key me.key --intent echo
agora follow --key me.key --all --count 1 --timeout 20s
`)
	if asked.Load() < 2 {
		t.Errorf("the proxy was asked %d times", asked.Load())
	}
}
