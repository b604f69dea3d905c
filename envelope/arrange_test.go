package envelope

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"strings"
	"testing"

	"github.com/gowebpki/jcs"
)

func TestArrange(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{" { } ", "{}"}, {"[ ]\n", "[]"}, {" 1\t", "1"}, {`{"b":1,"a":2}`, `{"a":2,"b":1}`},
		{"{\r\n \"b\" : [ 1 , 2 ] ,\t\"a\" : { \"d\" : null , \"c\" : \" x \" } }", `{"a":{"c":" x ","d":null},"b":[1,2]}`},
		{`[{"b":{"y":1,"x":2},"a":3},{"d":4,"c":5}]`, `[{"a":3,"b":{"x":2,"y":1}},{"c":5,"d":4}]`},
		{`{"aa":1,"a":2,"":3,"B":4}`, `{"":3,"B":4,"a":2,"aa":1}`},
	} {
		if got, ok := arrange([]byte(c.text)); !ok || string(got) != c.want {
			t.Errorf("arrange(%q) = %q, %v; want %q", c.text, got, ok, c.want)
		}
	}
	for _, text := range []string{
		"", " ", "{", "[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{a:1}`, "1 2", "{}}",
		`{"a":1,"a":2}`, `{"a":1,"b":2,"a":3}`, `{"x":{"a":1,"a":1}}`, `{"ä":1}`, `{"\u0061":1}`, "[1\v]", "[1\u00a0]", "\ufeff{}",
		strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1),
		strings.Repeat(`{"a":`, MaxDepth+1) + "1" + strings.Repeat("}", MaxDepth+1),
	} {
		if got, ok := arrange([]byte(text)); ok {
			t.Errorf("arrange(%q) = %q; want ok == false", text, got)
		}
	}
	if _, ok := arrange([]byte(strings.Repeat("[ ", MaxDepth) + strings.Repeat("]", MaxDepth))); !ok {
		t.Error("arrange refused the deepest allowed nesting")
	}
}

// Pretty-printed bodies and bodies with unsorted members do not need the canonicalizer.
func TestBodiesOfOtherOrderAreArranged(t *testing.T) {
	canonical := typical(t).Canonical()
	shuffle := rand.New(rand.NewSource(1))
	for range 100 {
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, shuffled(t, canonical, shuffle), " ", "\t"); err != nil {
			t.Fatal(err)
		}
		if got, ok := arrange(pretty.Bytes()); !ok || !bytes.Equal(got, canonical) {
			t.Fatalf("arrange of\n%s\nreturned %s, %v", pretty.Bytes(), got, ok)
		}
	}
}

// shuffled returns a canonical value with the members of all its objects in random order.
func shuffled(t *testing.T, value []byte, random *rand.Rand) []byte {
	if !isObject(value) {
		return value
	}
	var parts [][]byte
	for name, v := range members(value) {
		parts = append(parts, append([]byte(`"`+name+`":`), shuffled(t, v, random)...))
	}
	random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	return []byte("{" + string(bytes.Join(parts, []byte(","))) + "}")
}

// FuzzArrange checks that arrange and the canonicalizer give the same results.
func FuzzArrange(f *testing.F) {
	for _, c := range canonicalSeeds {
		f.Add([]byte(c.text))
		f.Add([]byte(` { "ts" : "y" , "payload" : [ ` + c.text + ` ] , "id" : { "b" : ` + c.text + ` , "a" : 1 } } `))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, ok := arrange(text)
		if !ok {
			if isCanonical(text) {
				t.Errorf("arrange refused the canonical text %q", text)
			}
			return
		}
		if want, err := jcs.Transform(text); err != nil || !bytes.Equal(got, want) {
			t.Errorf("arrange(%q) = %q; jcs: %q, %v", text, got, want, err)
		}
		if Depth(text) > MaxDepth {
			t.Error("arrange accepted a text that is nested too deep")
		}
	})
}
