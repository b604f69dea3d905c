package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	for rows, want := range map[string]int{"": len(measurements), "none": 0, "deliver": 1, "deliver, rss": 2} {
		if got, err := choose(rows); err != nil || len(got) != want {
			t.Errorf("%q: %d measurements, %v", rows, len(got), err)
		}
	}
	if got, err := choose("deliver,nonsense"); err == nil {
		t.Errorf("%+v", got)
	}
}

// TestEveryRowHasItsGoal checks that the ids in calls of add and posting are the ids of goals. A row without a goal
// would never be shown. A goal that is never measured would have an empty row.
func TestEveryRowHasItsGoal(t *testing.T) {
	added := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		expression := regexp.MustCompile(`(?:results\.add|posting)\("(\w+)"(?:, "(\w+)")?`)
		for _, m := range expression.FindAllStringSubmatch(string(text), -1) {
			added[m[1]] = true
			if m[2] != "" {
				added[m[2]] = true
			}
		}
	}
	for _, g := range goals {
		if !added[g.id] {
			t.Errorf("nothing measures %s", g.id)
		}
	}
	for id := range added {
		if !slices.ContainsFunc(goals, func(g goal) bool { return g.id == id }) {
			t.Errorf("%s has no goal", id)
		}
	}
}

func TestGoalMisses(t *testing.T) {
	for _, c := range []struct {
		goal  goal
		value float64
		want  bool
	}{
		{goal{atLeast: true, required: .25, target: .32}, .32, false},
		{goal{atLeast: true, required: .25, target: .32}, .25, false},
		{goal{atLeast: true, required: .25, target: .32}, .24, true},
		{goal{required: 8, target: 4}, 4, false},
		{goal{required: 8, target: 4}, 8, false},
		{goal{required: 8, target: 4}, 8.1, true},
		{goal{}, 1, false},
	} {
		if got := c.goal.misses(c.value); got != c.want {
			t.Errorf("%+v: %g misses it: %v, want %v", c.goal, c.value, got, c.want)
		}
	}
}

const traces = `File: httpapi.test
Type: cpu
Duration: 41.10s, Total samples = 40s
-----------+-------------------------------------------------------
     1.20s   filippo.io/edwards25519/field.feMul
             filippo.io/edwards25519.(*Point).VarTimeDoubleScalarBaseMult
             github.com/agora-relay/agora/didkey.(*Verifier).Verify
             github.com/agora-relay/agora/envelope.(*Envelope).VerifyWith
             github.com/agora-relay/agora/relay.(*Relay).check
             net/http.(*conn).serve
-----------+-------------------------------------------------------
     400ms   crypto/internal/fips140/edwards25519/field.feMul
             crypto/ed25519.Sign
             github.com/agora-relay/agora/internal/bench/stage.Requests.func1
-----------+-------------------------------------------------------
     700ms   syscall.write
             github.com/agora-relay/agora/relay/httpapi_test.poster.post
-----------+-------------------------------------------------------
     300ms   encoding/base64.(*Encoding).decodeQuantum
             github.com/agora-relay/agora/envelope.(*Envelope).VerifyWith
             net/http.(*conn).serve
-----------+-------------------------------------------------------
     500ms   internal/runtime/syscall.Syscall6
             syscall.Fsync
             modernc.org/sqlite/lib._unixSync
             github.com/agora-relay/agora/store/sqlite.(*writer).run
-----------+-------------------------------------------------------
   1.5mins   runtime.futex
             runtime.schedule
`

func TestClassifyStacks(t *testing.T) {
	got, err := classifyStacks(traces, 1000)
	want := []share{{"Go's scheduler and network poller", 90_000}, {"signature: verification", 1200},
		{"store: fsync", 500}, {"signature: the rest", 300}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	for _, wrong := range []string{"", "File: x\n", "-----------+---\n   soon  runtime.futex\n"} {
		if got, err := classifyStacks(wrong, 1); err == nil {
			t.Errorf("%q was accepted as %+v", wrong, got)
		}
	}
}

// TestStripFolders checks that a profile loses the folders of absolute paths, and nothing else.
func TestStripFolders(t *testing.T) {
	pack := func(text string) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	const sample, number, empty = "\x12\x03/x/", "\x48\xac\x02", "\x32\x00"
	stripped, err := stripFolders(pack(empty + sample + "\x32\x07/a/b/cc" + "\x32\x04main" + number))
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(stripped))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if want := empty + sample + "\x32\x02cc" + "\x32\x04main" + number; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for _, broken := range []string{"\x32", "\x32\x05abc", "\x33\x00", "\x32\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"} {
		if _, err := stripFolders(pack(broken)); err == nil {
			t.Errorf("%q is accepted", broken)
		}
	}
	if _, err := stripFolders([]byte("no gzip")); err == nil {
		t.Error("a text that is not compressed is accepted")
	}
}
