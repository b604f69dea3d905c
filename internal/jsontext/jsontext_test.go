package jsontext_test

import (
	"testing"

	"github.com/agora-relay/agora/internal/jsontext"
)

func TestCompact(t *testing.T) {
	v := map[string]any{"text": "a < b & c\n", "n": 1}
	if got, want := string(jsontext.Compact(v)), `{"n":1,"text":"a < b & c\n"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("a channel was encoded")
		}
	}()
	jsontext.Compact(make(chan int))
}
