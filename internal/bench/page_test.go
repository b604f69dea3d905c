package bench

import (
	"encoding/json"
	"testing"
)

func TestParsePage(t *testing.T) {
	for _, body := range []string{
		`{"ok":true,"events":[],"hasMore":false,"cursor":"0"}`,
		`{"ok":true,"events":[{"id":"a","x":[1,{"y":"}]\\\""}]},{"id":"b"}],"hasMore":true,"cursor":"c-1"}` + "\n",
		" {\n \"cursor\" : \"c\" , \"events\" : [ {\"a\" : \"\\\\\"} , 17 , \"s\", null ] , \"hasMore\" : true }\n",
	} {
		var want struct {
			Events  []json.RawMessage `json:"events"`
			HasMore bool              `json:"hasMore"`
			Cursor  string            `json:"cursor"`
		}
		if err := json.Unmarshal([]byte(body), &want); err != nil {
			t.Fatal(err)
		}
		p, err := parsePage([]byte(body), page{})
		if err != nil || p.cursor != want.Cursor || p.more != want.HasMore || len(p.events) != len(want.Events) {
			t.Errorf("%s: %+v, %v", body, p, err)
			continue
		}
		for i := range p.events {
			if string(p.events[i]) != string(want.Events[i]) {
				t.Errorf("event %d is %s, want %s", i, p.events[i], want.Events[i])
			}
		}
		for i := range len(body) - 2 { // a truncated page must be rejected
			if p, err := parsePage([]byte(body[:i]), page{}); err == nil {
				t.Errorf("%q was accepted: %+v", body[:i], p)
			}
		}
	}
	for _, body := range []string{`[]`, `{}`, `{"events":[]}`, `{"events":{},"cursor":"c"}`, `{"cursor":"c"}`,
		`{"events":[],"cursor":1}`, `{"events":[],"cursor":"c"}x`} {
		if p, err := parsePage([]byte(body), page{}); err == nil {
			t.Errorf("%s was accepted: %+v", body, p)
		}
	}
}

// FuzzParsePage checks that no input makes parsePage panic. If encoding/json can also read the input, parsePage must
// find at least as many events as encoding/json.
func FuzzParsePage(f *testing.F) {
	f.Add([]byte(`{"ok":true,"events":[{"id":"a"},{"id":"b\\\""}],"hasMore":true,"cursor":"c"}`))
	f.Add([]byte(`{"events":[]],"cursor":"c"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := parsePage(body, page{})
		var want struct {
			Events []json.RawMessage `json:"events"`
		}
		if err == nil && json.Unmarshal(body, &want) == nil && want.Events != nil && len(want.Events) > len(p.events) {
			t.Errorf("parsePage found %d events, encoding/json found %d", len(p.events), len(want.Events))
		}
	})
}

func TestReceipts(t *testing.T) {
	const id = "0123456789abcdefghjkmnpqrs"
	const (
		noReceipt = "answered 200 without a receipt"
		otherID   = "answered 200 with another id"
		duplicate = "answered as a duplicate, but posted for the first time"
	)
	for body, want := range map[string]string{
		`{"ok":true,"id":"msg_` + id + `","cursor":"c","duplicate":false,"expiresAt":"x"}`:  "",
		` { "id": "msg_` + id + `", "ok": true }`:                                           "",
		`{"ok":true,"id":"msg_` + id + `","cursor":"c","duplicate":true,"expiresAt":"x"}`:   duplicate,
		`{"ok":true,"id":"msg_` + id + `x","cursor":"c","duplicate":false,"expiresAt":"x"}`: otherID,
		`{"ok":false,"id":"msg_` + id + `"}`:                                                noReceipt,
		`OK`:                                                                                noReceipt,
	} {
		if got := isReceipt([]byte(body), []byte(id)); got != want {
			t.Errorf("%s: %q", body, got)
		}
	}
}
