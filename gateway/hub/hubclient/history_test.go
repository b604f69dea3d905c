package hubclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// record returns the record of message n from or to a peer.
func record(dir string, n int64, peer, text string) Record {
	return Record{"2026-03-22T04:30:00Z", dir, peer, json.RawMessage(hello(peer, text)), n, fmt.Sprintf("trace-%d", n)}
}

// H-36: wherever a crash cuts off the last line, it is ended, nothing is joined to it, and its message is written again.
func TestCutOffLine(t *testing.T) {
	first, second, third := record(Received, 1, bob, "one"), record(Sent, 2, bob, "two\n"), record(Received, 3, bob, "three")
	whole := string(second.Line())
	for cut := range len(whole) + 1 {
		_, f := newHub(t)
		path := filepath.Join(f.HistoryFolder(), bob+".jsonl")
		before := string(first.Line()) + "\n" + whole[:cut]
		write(t, path, before)
		if err := f.Append(t.Context(), first, second, third, third); err != nil {
			t.Fatal(err)
		}
		want := before
		if cut > 0 {
			want += "\n"
		}
		if cut < len(whole) {
			want += whole + "\n"
		}
		if want += string(third.Line()) + "\n"; content(t, f, bob+".jsonl") != want {
			t.Fatalf("cut at %d: the history is\n%s, want\n%s", cut, content(t, f, bob+".jsonl"), want)
		}
		shown := 0
		broken, err := f.History(bob, func(line []byte) error {
			shown++
			if !json.Valid(line) {
				t.Errorf("shown was %q", line)
			}
			return nil
		})
		if wantBroken := min(cut, 1); err != nil || shown != 3 || broken != wantBroken && cut < len(whole) {
			t.Errorf("cut at %d: %d lines, %d broken, %v", cut, shown, broken, err)
		}
	}
}

// TestRepeats checks that a record is written only once, although this Folder and another process append it several
// times. After the file was emptied, the record is written again.
func TestRepeats(t *testing.T) {
	_, f := newHub(t)
	other := newFolder(f.dir, f.layout)
	one, two := record(Received, 1, bob, "one"), record(Received, 2, bob, "two")
	self := []Record{record(Sent, 3, alice, "self"), record(Received, 3, alice, "self")}
	for range 2 {
		for _, folder := range []*Folder{f, other, f} {
			if err := folder.Append(t.Context(), append(self, one, two, one)...); err != nil {
				t.Fatal(err)
			}
		}
		if got := content(t, f, bob+".jsonl"); got != string(one.Line())+"\n"+string(two.Line())+"\n" {
			t.Errorf("the history is\n%s", got)
		}
		if n := strings.Count(content(t, f, alice+".jsonl"), "\n"); n != 2 {
			t.Errorf("a message to itself has %d lines, want 2", n)
		}
		write(t, filepath.Join(f.HistoryFolder(), bob+".jsonl"), "")
	}
}

// H-38: a hostile peer name stays in the folder.
func TestHostileNames(t *testing.T) {
	names := map[string]string{
		"bob@relay.example": "bob@relay.example", "a/b:c@x": "a_b_c@x", "../../etc/passwd@x": ".._.._etc_passwd@x", "/root@x": "_root@x",
		"..": "..", ".": ".", "~": "~", `a\b@x`: "a_b@x", "a\x00b\nc\x1b@x": "a_b_c_@x", "-rf@x": "-rf@x", ".state.json@x": ".state.json@x",
		".lock": ".lock", "小明@x": "小明@x", strings.Repeat("a", 126) + "@x": strings.Repeat("a", 126) + "@x",
	}
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		want := []string{".lock", ".state.json"}
		for name, file := range names {
			h.add(name, alice, hello(bob, "hello"))
			want = append(want, file+".jsonl")
		}
		long := strings.Repeat("界", maxAddress)
		h.add(long, alice, hello(bob, "hello"))
		for _, refused := range []string{"", strings.Repeat("界", maxAddress+1), strings.Repeat("😀", maxAddress/2+1)} {
			h.add(refused, alice, hello(bob, "hello"))
		}
		if err := Follow(t.Context(), f, h.client(), FollowOptions{Count: len(names) + 1, Show: func([]byte) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		var found []string
		err := filepath.WalkDir(filepath.Dir(f.dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || d.IsDir() || path == f.CredentialsFile():
				return err
			case filepath.Dir(path) != f.HistoryFolder():
				t.Errorf("%s is not in the history folder", path)
			}
			found = append(found, d.Name())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		found = slices.DeleteFunc(found, func(name string) bool {
			return strings.HasPrefix(name, "界") && len(name) < 255 && strings.ToValidUTF8(name, "") == name && strings.HasSuffix(name, ".jsonl")
		})
		slices.Sort(want)
		slices.Sort(found)
		if !slices.Equal(found, want) {
			t.Errorf("the files are\n%q, want\n%q", found, want)
		}
		if fileName(long) == fileName(long[3:]+"x") || len(h.rows) != len(names)+4 {
			t.Error("two long names have the same file")
		}
		if broken, err := f.History("a/b:c@x", func(line []byte) error { return nil }); err != nil || broken != 0 {
			t.Errorf("History: %d, %v", broken, err)
		}
	})
}

func TestHistory(t *testing.T) {
	_, f := newHub(t)
	if _, err := f.History(bob, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a history: %v", err)
	}
	if _, err := f.History("bob", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a history folder: %v", err)
	}
	if err := f.Append(t.Context(), record(Sent, 1, bob, "one"), record(Sent, 2, "bobby@x", "two")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(f.HistoryFolder(), "carol@x.jsonl"), "\n{\"a\":1}  \r\n[1\nno\n{\"b\":2}")
	for peer, want := range map[string]string{bob: string(record(Sent, 1, bob, "one").Line()), "bob": string(record(Sent, 1, bob, "one").Line()),
		"carol": `{"a":1}|{"b":2}`} {
		var shown []string
		broken, err := f.History(peer, func(line []byte) error {
			shown = append(shown, string(line))
			return nil
		})
		if err != nil || strings.Join(shown, "|") != want || broken != 2*min(len(shown)-1, 1) {
			t.Errorf("%s: %q, %d, %v", peer, shown, broken, err)
		}
	}
	if err := f.Append(t.Context(), record(Sent, 3, "bob@x", "three")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.History("bob", nil); err == nil || !strings.Contains(err.Error(), "bob@relay.example, bob@x") {
		t.Errorf("two agents with a name: %v", err)
	}
	failed := errors.New("closed pipe")
	if _, err := f.History(bob, func([]byte) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
}

// TestHistoryOfManyProcesses has processes that record the same messages at the same time. Each is written once and whole.
func TestHistoryOfManyProcesses(t *testing.T) {
	const dir, messages = "AGORA_TEST_FOLDER", 60
	if folder := os.Getenv(dir); folder != "" { // this is one of the processes that are started below
		f, err := OpenFolder(folder)
		if err != nil {
			t.Fatal(err)
		}
		for n := range int64(messages) {
			if err := f.Append(t.Context(), record(Received, n, bob, strings.Repeat("x", 5000))); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	_, f := newHub(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			process := exec.Command(os.Args[0], "-test.run=^TestHistoryOfManyProcesses$")
			process.Env = append(os.Environ(), dir+"="+f.dir)
			if out, err := process.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	text := content(t, f, bob+".jsonl")
	for n := range int64(messages) {
		if line := string(record(Received, n, bob, strings.Repeat("x", 5000)).Line()) + "\n"; strings.Count(text, line) != 1 {
			t.Errorf("message %d is there %d times", n, strings.Count(text, line))
		}
	}
	if n := strings.Count(text, "\n"); n != messages {
		t.Errorf("%d lines, want %d", n, messages)
	}
}

// TestNewRecord checks what a hub may send as a message.
func TestNewRecord(t *testing.T) {
	good := message{ID: 1, TraceID: "t", SenderID: bob, ReceiverID: alice, Envelope: json.RawMessage(`{"b":1.0, "a":"é"}`), Timestamp: "2026-03-20T12:00:00.999+02:00"}
	all, err := good.records(alice)
	if err != nil || len(all) != 1 || string(all[0].Line()) != `{"ts":"2026-03-20T10:00:00Z","dir":"received","peer":"bob@relay.example","envelope":{"a":"é","b":1},"id":1,"trace_id":"t"}` {
		t.Errorf("%+v, %v", all, err)
	}
	for name, change := range map[string]func(*message){
		"id 0":            func(m *message) { m.ID = 0 },
		"no trace":        func(m *message) { m.TraceID = "" },
		"a long trace":    func(m *message) { m.TraceID = strings.Repeat("t", maxTrace+1) },
		"no envelope":     func(m *message) { m.Envelope = nil },
		"a list":          func(m *message) { m.Envelope = json.RawMessage(`[]`) },
		"a member twice":  func(m *message) { m.Envelope = json.RawMessage(`{"a":1,"a":2}`) },
		"half a pair":     func(m *message) { m.Envelope = json.RawMessage(`{"a":"\ud800"}`) },
		"no time":         func(m *message) { m.Timestamp = "" },
		"a wrong time":    func(m *message) { m.Timestamp = "2026-03-20" },
		"no sender":       func(m *message) { m.SenderID = "" },
		"a long sender":   func(m *message) { m.SenderID = strings.Repeat("a", maxAddress+1) },
		"a wrong sender":  func(m *message) { m.SenderID = "\xff" },
		"a year too much": func(m *message) { m.Timestamp = "20260-03-20T10:00:00Z" },
	} {
		m := good
		change(&m)
		if all, err := m.records(alice); err == nil {
			t.Errorf("%s: %+v", name, all)
		}
	}
	foreign := good
	foreign.ReceiverID = "carol@x"
	if all, err := foreign.records(alice); err != nil || len(all) != 0 {
		t.Errorf("a message of others: %+v, %v", all, err)
	}
}
