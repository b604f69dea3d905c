package hostname

import (
	"net/url"
	"testing"
)

// TestMap checks that all spellings of a name have one form (G-38).
func TestMap(t *testing.T) {
	for in, want := range map[string]string{
		"relay.example": "relay.example", "RELAY.Example.": "relay.example", "ｒelay.example": "relay.example",
		"relay。example": "relay.example", "x.ｌｏｃａｌｈｏｓｔ": "x.localhost", "bücher.example": "xn--bcher-kva.example",
		"xn--bcher-kva.example": "xn--bcher-kva.example", "１２７.０.0.1": "127.0.0.1", "127.0.0.1": "127.0.0.1",
		"0:0:0:0:0:0:0:1": "::1", "a_b.example": "a_b.example", "ſhop.example": "shop.example", "a\u00adb.example": "ab.example",
		"faß.example": "xn--fa-hia.example", "": "", "a..b": "a..b", "a b": "a b",
	} {
		if got := Map(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestOrigin(t *testing.T) {
	for in, want := range map[string]string{
		"https://ｒelay.example:443/x": "https://relay.example", "http://relay.example:443": "http://relay.example:443",
		"http://[::1]:80": "http://[::1]", "http://[0:0::1]:8789/": "http://[::1]:8789", "https://Ä.example.": "https://xn--4ca.example.",
	} {
		u, err := url.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := Origin(u); got != want {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
	if got := WithoutPort("ＬOCALHOST:80") + WithoutPort("[::1]") + WithoutPort("[::1]:9"); got != "localhost::1::1" {
		t.Error(got)
	}
}
