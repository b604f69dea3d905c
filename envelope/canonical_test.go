package envelope

import (
	"bytes"
	"testing"

	"github.com/gowebpki/jcs"
)

// canonicalSeeds are texts on both sides of every rule. known is the result that isCanonical must return.
var canonicalSeeds = []struct {
	text  string
	known bool
}{
	{`{}`, true}, {`[]`, true}, {`""`, true}, {`0`, true}, {`null`, true}, {`true`, true}, {`false`, true},
	{`{"a":[1,{"b":null}],"c":"d"}`, true}, {`{"":0,"a":1}`, true}, {`{"A":1,"a":2}`, true},
	{`{"b":1,"a":2}`, false}, {`{"a":1,"a":2}`, false}, {`{"a" :1}`, false}, {` {}`, false}, {"{}\n", false}, {`{}{}`, false},
	{`{"ä":1}`, false}, {`{"\n":1}`, false}, {`{"a":1,}`, false}, {`[1,]`, false}, {`{"a"}`, false}, {`{`, false}, {`[`, false}, {``, false},
	{`"ä€😀"`, true}, {"\"\x7f\u2028\"", true}, {`"\"\\\b\f\n\r\t\u0000\u001f\u000b"`, true},
	{`"\/"`, false}, {`"\u0041"`, false}, {`"\u001F"`, false}, {`"\u0008"`, false}, {`"\u0009"`, false}, {`"\u000a"`, false},
	{`"\u000c"`, false}, {`"\u000d"`, false}, {`"\u002"`, false}, {`"\u00`, false}, {`"\`, false}, {"\"\x01\"", false}, {"\"\xff\"", false},
	{"\"\xed\xa0\x80\"", false}, {`"\ud83d\ude00"`, false}, {`"`, false},
	{`-1`, true}, {`100`, true}, {`123456789012345`, true}, {`0.1`, true}, {`-0.000001`, true}, {`12345.6789`, true},
	{`-0`, false}, {`-`, false}, {`01`, false}, {`1.0`, false}, {`0.10`, false}, {`1.`, false}, {`.5`, false}, {`+1`, false},
	{`1e5`, false}, {`1E5`, false}, {`0.0000001`, false}, {`1234567890123456`, false}, {`0.1234567890123456`, false}, {`-0.0`, false},
	{`tru`, false}, {`nul`, false}, {`NaN`, false},
}

func TestIsCanonical(t *testing.T) {
	for _, c := range canonicalSeeds {
		if got := isCanonical([]byte(c.text)); got != c.known {
			t.Errorf("isCanonical(%q) = %v", c.text, got)
		}
	}
	nested := func(n int) []byte {
		return append(bytes.Repeat([]byte("["), n), bytes.Repeat([]byte("]"), n)...)
	}
	if !isCanonical(nested(MaxDepth)) || isCanonical(nested(MaxDepth+1)) || isCanonical(bytes.Repeat([]byte("["), 1<<20)) {
		t.Error("isCanonical does not limit the nesting to MaxDepth")
	}
}

// TestCanonicalCheckAllocatesNothing checks that isCanonical does not allocate. That makes it cheap enough to be called
// for every body.
func TestCanonicalCheckAllocatesNothing(t *testing.T) {
	for _, body := range [][]byte{typical(t).Canonical(), []byte(`{"a":["x",1.5,true,{"b":"ä\n"}]}`)} {
		if n := testing.AllocsPerRun(100, func() {
			if !isCanonical(body) {
				t.Errorf("isCanonical(%s) = false", body)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", body, n)
		}
	}
}

// FuzzIsCanonical compares isCanonical with the canonicalizer: jcs must return unchanged what isCanonical accepts.
func FuzzIsCanonical(f *testing.F) {
	for _, c := range canonicalSeeds {
		f.Add([]byte(c.text))
		f.Add([]byte(`{"id":"x","payload":` + c.text + `,"ts":"y"}`))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !isCanonical(text) {
			return
		}
		if want, err := jcs.Transform(text); err != nil || !bytes.Equal(text, want) {
			t.Errorf("isCanonical(%q) = true; jcs: %q, %v", text, want, err)
		}
		if Depth(text) > MaxDepth {
			t.Error("isCanonical accepted a text that is nested too deep")
		}
	})
}
