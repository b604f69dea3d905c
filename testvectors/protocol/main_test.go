package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestFilesAreUpToDate checks that every file repeats the tables of the protocol as they are.
func TestFilesAreUpToDate(t *testing.T) {
	const root = "../.."
	files, err := generate(root)
	if err != nil || len(files) < 9 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for name, fresh := range files {
		if kept, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Equal(kept, fresh) {
			t.Errorf("%s does not have the tables of the protocol (%v); run go generate ./testvectors", name, err)
		}
	}
}

// TestFill checks which texts are replaced, and that a file without its markers is refused.
func TestFill(t *testing.T) {
	const enum = `{"$comment": "protocol.json: x",` + "\n" + `"enum": ["A", "B"]}`
	for _, c := range []struct {
		p         part
		old, want string
	}{
		{part{name: "x", text: "new\n"}, "a\n<!-- <protocol: x> -->\nold\n<!-- </protocol> -->\nb\n",
			"a\n<!-- <protocol: x> -->\nnew\n<!-- </protocol> -->\nb\n"},
		{part{name: "x", values: []string{"C"}}, enum, `{"$comment": "protocol.json: x",` + "\n" + `"enum": ["C"]}`},
		{part{name: "x", values: []string{"C", "D"}}, "\"$comment\": \"protocol.json: x\", \"enum\": [\n  \"A\"\n]",
			"\"$comment\": \"protocol.json: x\", \"enum\": [\n  \"C\",\n  \"D\"\n]"},
		{part{name: "x", allOf: []string{"1", "2"}}, "  \"$comment\": \"protocol.json: x\",\n  \"allOf\": [\n    [\n    ]\n  ],\n  \"b\": [\n  ]",
			"  \"$comment\": \"protocol.json: x\",\n  \"allOf\": [\n    1,\n    2\n  ],\n  \"b\": [\n  ]"},
		{part{name: "ttl is ", text: "7", after: "s."}, "the ttl is 300s. Or 300s.", "the ttl is 7s. Or 300s."},
		{part{name: "y", text: "7", after: "s."}, "the ttl is 300s.", ""},
		{part{name: "y", text: "new\n"}, "<protocol: x>\n</protocol>\n", ""},
		{part{name: "y", values: []string{"C"}}, enum, ""},
		{part{name: "y", allOf: []string{"1"}}, enum, ""},
	} {
		got, err := c.p.fill([]byte(c.old))
		if string(got) != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q, %v; want %q", got, err, c.want)
		}
	}
}
