package serve

import (
	"encoding/json"
	"testing"
)

// TestCountText checks what the agent text.count counts, and which params it refuses.
func TestCountText(t *testing.T) {
	for params, want := range map[string]string{
		`{"text":""}`:          `{"lines":0,"words":0,"characters":0}`,
		`"a b\nc"`:             `{"lines":2,"words":3,"characters":5}`,
		`{"text":"你好 \n"}`:     `{"lines":1,"words":1,"characters":4}`,
		`{"text":5}`:           "",
		`{"texts":["a", "b"]}`: "",
	} {
		got, err := countText(json.RawMessage(params))
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v; want %s", params, got, err, want)
		}
	}
}
