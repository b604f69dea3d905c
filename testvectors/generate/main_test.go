package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestFilesAreUpToDate writes the files again and compares them with the files in the repository.
func TestFilesAreUpToDate(t *testing.T) {
	dir := t.TempDir()
	if err := writeAll(dir); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadDir(dir)
	if err != nil || len(written) != 11 {
		t.Fatalf("%d files, %v; want 11", len(written), err)
	}
	for _, file := range written {
		fresh, errFresh := os.ReadFile(filepath.Join(dir, file.Name()))
		kept, errKept := os.ReadFile(filepath.Join("..", file.Name()))
		if errFresh != nil || errKept != nil || !bytes.Equal(fresh, kept) {
			t.Errorf("%s differs from what this program writes (%v, %v); run go generate ./testvectors",
				file.Name(), errFresh, errKept)
		}
	}
}

// TestCanonical checks the second canonicalizer with the example in RFC 8785, and with texts that only a lenient parser
// accepts.
func TestCanonical(t *testing.T) {
	for text, want := range map[string]string{
		`{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],` +
			`"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`: `{"literals":[null,true,false],` +
			`"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"` + "\u20ac" + `$\u000f\nA'B\"\\\\\"/"}`,
		`{"a":1,"a":2}`: `{"a":2}`,
		`"\ud800"`:      "\"\ufffd\"",
		"\"\xff\"":      "\"\ufffd\"",
		"1e400":         "null",
		"-0":            "0",
	} {
		if got := string(canonical([]byte(text))); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
