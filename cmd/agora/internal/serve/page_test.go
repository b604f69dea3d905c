package serve

import (
	"net"
	"strings"
	"testing"
)

// TestPageURL checks which address is printed for the page.
func TestPageURL(t *testing.T) {
	for at, want := range map[string]string{"127.0.0.1:8789": "http://127.0.0.1:8789/", "[::1]:1": "http://[::1]:1/",
		"0.0.0.0:80": "http://localhost:80/", "[::]:80": "http://localhost:80/", "192.0.2.1:5": "http://192.0.2.1:5/"} {
		addr, err := net.ResolveTCPAddr("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if got := PageURL("", addr, false); got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
		if got, want := PageURL("", addr, true), strings.Replace(want, "http:", "https:", 1); got != want {
			t.Errorf("%s with TLS: %s, want %s", at, got, want)
		}
		if got := PageURL("https://relay.example", addr, false); got != "https://relay.example/" {
			t.Errorf("%s with an origin: %s", at, got)
		}
	}
}
