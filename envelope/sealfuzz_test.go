package envelope

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// FuzzOpen checks Open with any plaintext and with any sealed text. A plaintext that the sender has sealed correctly
// must fail to open, or open as a canonical object. That object has exactly the clear members, unchanged, and the
// members that encoding/json finds in the plaintext. A text that nobody has sealed must never open.
func FuzzOpen(f *testing.F) {
	for _, plaintext := range []string{`{"title":"T"} `, `{"intent":"i"}`, `{"\u0069ntent":1}`, `{"a":1,"a":2}`, `[]`, "{\"a\":\"\xff\"}", `{"message":"m","params":[1e20,{}]}`} {
		f.Add([]byte(plaintext), byte(0), "v1.AAAA")
		f.Add([]byte(plaintext), byte(4), "v1."+strings.Repeat("A", 100))
	}
	f.Add([]byte(`{"request_id":"r"}`), byte(5), "") // a CANCEL, whose clear members have no request_id
	alice, bob := seedKey(f, 1), seedKey(f, 2)
	clears := map[Type]string{TypeRequest: `{"intent":"i","request_id":"r"}`, TypeResult: `{"status":"s"}`, TypeError: `{"code":"C","message":"sealed"}`, TypeCancel: `{}`}
	f.Fuzz(func(t *testing.T, plaintext []byte, kind byte, text string) {
		typ := Types()[int(kind)%(len(Types())-1)] // all types except MANIFEST, which is the last
		clear := clears[typ]
		if clear == "" {
			clear = `{"request_id":"r"}`
		}
		if len(plaintext) < DefaultMaxBytes/2 {
			opened, err := sealRaw(t, alice, bob.DID(), typ, clear, string(plaintext)).Open(bob)
			if err != nil && err != ErrOpen {
				t.Errorf("%q: %v", plaintext, err)
			}
			if err == nil {
				checkOpened(t, opened, clear, plaintext)
			}
		}
		quoted, err := json.Marshal(text)
		if err != nil || len(text) > DefaultMaxBytes/10 {
			return
		}
		payload := join([]byte(clear), []byte(`{"sealed":`+string(quoted)+`}`))
		e, err := Draft{ID: "m", Thread: "t", Recipient: bob.DID(), Payload: Raw{typ, payload}}.Sign(alice, noon)
		if err != nil {
			t.Fatal(err)
		}
		if opened, err := e.Open(bob); err != ErrOpen {
			t.Errorf("%q opens as %s, %v", text, opened.Payload, err)
		}
	})
}

func checkOpened(t *testing.T, opened *Envelope, clear string, plaintext []byte) {
	t.Helper()
	again, err := Canonicalize(opened.Payload)
	if err != nil || !bytes.Equal(again, opened.Payload) {
		t.Errorf("%s is not canonical", opened.Payload)
	}
	got, want := map[string]any{}, map[string]any{}
	err = json.Unmarshal(opened.Payload, &got)
	for _, part := range [][]byte{[]byte(clear), plaintext} { // the sealed message of an ERROR replaces the clear one
		if err == nil {
			err = json.Unmarshal(part, &want)
		}
	}
	if err != nil || !reflect.DeepEqual(got, want) || member(opened.Payload, "sealed") != nil {
		t.Errorf("%q in %s opens as %s, %v", plaintext, clear, opened.Payload, err)
	}
	for name, value := range members([]byte(clear)) {
		if name != "message" && !bytes.Equal(member(opened.Payload, name), value) {
			t.Errorf("%q changes %s: %s", plaintext, name, opened.Payload)
		}
	}
	for _, name := range clearMembers(opened.Type) {
		if member([]byte(clear), name) == nil && member(opened.Payload, name) != nil {
			t.Errorf("%q adds a %s, which must never be sealed", plaintext, name)
		}
	}
	if Depth(opened.Payload) > MaxDepth {
		t.Errorf("%q opens as a payload that is nested too deep", plaintext)
	}
}
