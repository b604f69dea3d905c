package profile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/profile"
)

func newDID(t *testing.T) didkey.DID {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return key.DID()
}

func TestFolder(t *testing.T) {
	home, config := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", config)
	if got, err := profile.Folder(); err != nil || got != filepath.Join(config, "agora") {
		t.Errorf("with XDG_CONFIG_HOME: %s, %v", got, err)
	}
	if runtime.GOOS != "linux" {
		return
	}
	t.Setenv("XDG_CONFIG_HOME", "")
	if got, err := profile.Folder(); err != nil || got != filepath.Join(home, ".config", "agora") {
		t.Errorf("without it: %s, %v", got, err)
	}
	t.Setenv("XDG_CONFIG_HOME", "relative")
	if got, err := profile.Folder(); err == nil {
		t.Errorf("a relative XDG_CONFIG_HOME leads to %s", got)
	}
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	if got, err := profile.Folder(); err == nil {
		t.Errorf("without a home: %s", got)
	}
}

func TestCheckName(t *testing.T) {
	for name, good := range map[string]bool{
		"alice": true, "a": true, "A.b_c-9": true, "0x": true, strings.Repeat("a", 32): true, strings.Repeat("a", 33): false, "": false,
		".": false, "..": false, ".alice": false, "-alice": false, "_a": false, "a b": false, "a/b": false, `a\b`: false, "a:b": false,
		"älice": false, "аlice": false, "a\u200bb": false, "a\n": false, "a\x00": false, "did:key:z6Mk": false, "a\"": false, "me": true,
	} {
		if err := profile.CheckName(name); (err == nil) != good {
			t.Errorf("CheckName(%q): %v", name, err)
		}
	}
	for name, good := range map[string]bool{"alice": true, "me": false, "Everybody": false, "RELAY": false, "z6Mkx": false, "Z6MKx": false,
		"mel": true, "..": false} {
		if err := profile.CheckPerson(name); (err == nil) != good {
			t.Errorf("CheckPerson(%q): %v", name, err)
		}
	}
}

func TestProfiles(t *testing.T) {
	folder, home := filepath.Join(t.TempDir(), "agora"), t.TempDir()
	t.Setenv("HOME", home)
	if names, err := profile.List(folder); err != nil || len(names) > 0 {
		t.Errorf("without a folder: %v, %v", names, err)
	}
	if _, err := profile.Load(folder, "alice"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a profile that does not exist: %v", err)
	}
	if err := profile.MakeFolder(folder); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bob", "alice"} {
		if _, err := profile.Create(folder, name, map[string]any{"relay": "http://" + name, "key": name + ".key"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := profile.Create(folder, "bob", nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second bob: %v", err)
	}
	p, err := profile.Load(folder, "bob")
	if err != nil || p.Text("relay") != "http://bob" || p.File("key") != filepath.Join(folder, "profiles", "bob.key") {
		t.Errorf("bob: %+v, %v", p, err)
	}
	p.Values = map[string]any{"a": "~/k", "b": filepath.Join(home, "k"), "c": 7}
	if p.File("a") != filepath.Join(home, "k") || p.File("b") != filepath.Join(home, "k") || p.File("c") != "" || p.Text("c") != "" {
		t.Errorf("files: %q %q %q", p.File("a"), p.File("b"), p.File("c"))
	}
	for name, content := range map[string]string{"bad.toml": "relay = http", ".hidden.toml": "", "notes.txt": "",
		"big.toml": "#" + strings.Repeat("x", 1<<20)} {
		if err := os.WriteFile(profile.Path(folder, name, ""), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := profile.List(folder); err != nil || !slices.Equal(names, []string{"alice", "bad", "big", "bob"}) {
		t.Errorf("the list is %v, %v", names, err)
	}
	for _, name := range []string{"bad", "big", "../profiles/bob", ""} {
		if p, err := profile.Load(folder, name); err == nil {
			t.Errorf("Load(%q): %+v", name, p)
		}
		if name == "bad" || name == "big" {
			continue
		}
		if _, err := profile.Create(folder, name, nil); err == nil {
			t.Errorf("Create(%q) succeeds", name)
		}
	}
}

func TestNames(t *testing.T) {
	names, ctx := profile.NewNames(filepath.Join(t.TempDir(), "new", "agora")), t.Context()
	alice, bob := newDID(t), newDID(t)
	if book, err := names.Read(); err != nil || len(book.Entries()) > 0 || book.Name(alice) != "" {
		t.Errorf("an empty book: %v, %v", book, err)
	}
	set := func(name string, did didkey.DID, before string) {
		t.Helper()
		if was, err := names.Set(ctx, name, did); err != nil || was != before {
			t.Errorf("Set(%s): before %q, %v", name, was, err)
		}
	}
	set("alice", alice, "")
	set("bob.b", bob, "")
	set("alice", alice, "alice")
	set("Al", alice, "alice") // another name
	set("AL", alice, "Al")    // the same in capitals
	if _, err := names.Set(ctx, "al", bob); !errors.Is(err, profile.ErrTaken) {
		t.Errorf("al for bob: %v", err)
	}
	if _, err := names.Set(ctx, "me", bob); err == nil {
		t.Error("bob is called me")
	}
	book, err := names.Read()
	if err != nil || !slices.Equal(book.Entries(), []profile.Entry{{Name: "AL", DID: alice}, {Name: "bob.b", DID: bob}}) {
		t.Errorf("%v, %v", book.Entries(), err)
	}
	if did, ok := book.DID("al"); !ok || did != alice || book.Name(bob) != "bob.b" {
		t.Errorf("al is %s, and bob is %s", did, book.Name(bob))
	}
	if err := errors.Join(names.Remove(ctx, "al"), names.Remove(ctx, "bob.b")); err != nil {
		t.Error(err)
	}
	if err := names.Remove(ctx, "al"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed twice: %v", err)
	}
	if info, err := os.Stat(names.Path()); err != nil || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
}

// TestDamagedNames checks that a book that a person has edited wrongly is refused, and is not overwritten.
func TestDamagedNames(t *testing.T) {
	names := profile.NewNames(t.TempDir())
	did, other := newDID(t), newDID(t)
	many := ""
	for i := range 5001 {
		many += fmt.Sprintf("n%d = %q\n", i, newDID(t))
	}
	for _, text := range []string{"{", "a = 7", "a = \"did:key:z6Mk\"", fmt.Sprintf("a = %q\nb = %q", did, did), fmt.Sprintf("a = %q\nA = %q", did, other),
		fmt.Sprintf("me = %q", did), fmt.Sprintf("\"\\u202e\" = %q", did), fmt.Sprintf("[a]\nb = %q", did), many, "#" + strings.Repeat("x", 1<<20)} {
		if err := os.WriteFile(names.Path(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if book, err := names.Read(); err == nil {
			t.Errorf("%.40q is read as %v", text, book.Entries())
		}
		if _, err := names.Set(t.Context(), "x", newDID(t)); err == nil {
			t.Errorf("%.40q is changed", text)
		}
		if now, err := os.ReadFile(names.Path()); err != nil || string(now) != text {
			t.Errorf("%.40q was overwritten", text)
		}
	}
}

// TestNamesConcurrently checks that no name is lost if several processes and goroutines write at the same time.
func TestNamesConcurrently(t *testing.T) {
	const processes, each = 4, 5
	folder := os.Getenv("PROFILE_TEST_FOLDER")
	write := func(who string) {
		var all sync.WaitGroup
		for i := range each {
			all.Go(func() {
				if _, err := profile.NewNames(folder).Set(t.Context(), fmt.Sprintf("n%s-%d", who, i), newDID(t)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if folder != "" {
		write(os.Getenv("PROFILE_TEST_WHO"))
		return
	}
	folder = t.TempDir()
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() {
			child := exec.Command(os.Args[0], "-test.run=^TestNamesConcurrently$")
			child.Env = append(os.Environ(), "PROFILE_TEST_FOLDER="+folder, fmt.Sprintf("PROFILE_TEST_WHO=%d", i))
			if out, err := child.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	write("own")
	all.Wait()
	book, err := profile.NewNames(folder).Read()
	if err != nil || len(book.Entries()) != (processes+1)*each {
		t.Errorf("%d names, want %d; %v", len(book.Entries()), (processes+1)*each, err)
	}
}
