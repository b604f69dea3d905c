package didkey_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/didkey"
)

func newKeyFile(t *testing.T) (didkey.Key, string) {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.json")
	if err := didkey.Save(path, key); err != nil {
		t.Fatal(err)
	}
	return key, path
}

func TestSaveLoad(t *testing.T) {
	key, path := newKeyFile(t)
	loaded, err := didkey.Load(path)
	if err != nil || loaded.DID() != key.DID() {
		t.Fatalf("Load = %s, %v; want %s", loaded.DID(), err, key.DID())
	}
	a, _ := key.Sign([]byte("m"))
	b, err := loaded.Sign([]byte("m"))
	if err != nil || string(a) != string(b) {
		t.Errorf("the loaded key gives another signature: %v", err)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
}

func TestSaveNeverOverwrites(t *testing.T) {
	_, path := newKeyFile(t)
	before, _ := os.ReadFile(path)
	other, _ := didkey.Generate()
	err := didkey.Save(path, other)
	if err == nil || !strings.Contains(err.Error(), "not overwritten") {
		t.Errorf("Save to an existing file: %v", err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Error("the key file has changed")
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v; want only the key, and no temporary file", len(files), err)
	}
}

func TestSaveFailures(t *testing.T) {
	key, _ := didkey.Generate()
	if err := didkey.Save(filepath.Join(t.TempDir(), "missing", "key.json"), key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Save into a missing folder: %v", err)
	}
	path := filepath.Join(t.TempDir(), "key.json")
	if err := didkey.Save(path, didkey.Key{}); err == nil {
		t.Error("the zero Key was saved")
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("saving the zero Key left a file: %v", err)
	}
	if _, err := didkey.Load(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of a missing file: %v", err)
	}
}

func TestLoadRefusesLooseModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // Windows has no such modes
	}
	_, path := newKeyFile(t)
	for mode, ok := range map[fs.FileMode]bool{
		0o600: true, 0o400: true, 0o700: true,
		0o640: false, 0o620: false, 0o610: false, 0o604: false, 0o602: false, 0o601: false, 0o644: false, 0o666: false,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := didkey.Load(path)
		if (err == nil) != ok {
			t.Errorf("mode %#o: %v", mode, err)
		}
		if err != nil && !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %#o: the message does not say what to run: %v", mode, err)
		}
	}
}

// TestLoadRefusesDamage checks that a damaged file is refused, and that the error does not contain text from the file.
func TestLoadRefusesDamage(t *testing.T) {
	const secret = "TopSecretTopSecretTopSecretTopSecretTopSecr" // 43 characters of base64url, like a seed
	_, path := newKeyFile(t)
	_, otherPath := newKeyFile(t)
	good, other := readMembers(t, path), readMembers(t, otherPath)
	files := map[string]string{
		"empty": "", "not JSON": secret, "truncated": `{"kty":"OKP","d":"` + secret, "bad escape": `{"d":"\` + secret + `"}`,
		"a list": `["` + secret + `"]`, "trailing data": encodeMembers(t, good) + secret,
	}
	for name, change := range map[string]map[string]any{
		"no kty":              {"kty": nil},
		"other kty":           {"kty": secret},
		"other crv":           {"crv": secret},
		"d not a string":      {"d": 5},
		"d missing":           {"d": nil},
		"d not base64url":     {"d": secret[:42] + "!"},
		"d too short":         {"d": secret[:42]},
		"d too long":          {"d": secret + "AA"},
		"d of an unknown key": {"d": secret},
		"d of another key":    {"d": other["d"]},
		"x of another key":    {"x": other["x"]},
		"x missing":           {"x": nil},
		"kid of another key":  {"kid": other["kid"]},
		"kid missing":         {"kid": nil},
		"the secret in kid":   {"kid": secret},
		"the secret in x":     {"x": secret},
		"d and kid swapped":   {"d": good["kid"], "kid": good["d"]},
		"padded public part":  {"x": good["x"].(string) + "="},
	} {
		members := map[string]any{}
		for member, value := range good {
			members[member] = value
		}
		for member, value := range change {
			members[member] = value
		}
		files[name] = encodeMembers(t, members)
	}
	for name, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		key, err := didkey.Load(path)
		if err == nil || key.DID() != "" {
			t.Errorf("%s: Load = %s, %v; want a refusal", name, key.DID(), err)
			continue
		}
		for _, hidden := range []string{secret[:20], good["d"].(string), other["d"].(string)} {
			if strings.Contains(err.Error(), hidden) {
				t.Errorf("%s: the message quotes the file: %v", name, err)
			}
		}
		if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the message does not name the file: %v", name, err)
		}
	}
}

func readMembers(t *testing.T, path string) (members map[string]any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &members); err != nil {
		t.Fatal(err)
	}
	return members
}

func encodeMembers(t *testing.T, members map[string]any) string {
	t.Helper()
	text, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestLoadOrCreate calls LoadOrCreate in many goroutines and processes at the same time. All must get the same key.
func TestLoadOrCreate(t *testing.T) {
	const file = "AGORA_TEST_KEY_FILE"
	if path := os.Getenv(file); path != "" { // this is one of the processes that are started below
		key, err := didkey.LoadOrCreate(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("key %s\n", key.DID())
		return
	}
	for range 5 {
		path := filepath.Join(t.TempDir(), "key.json")
		var mu sync.Mutex
		seen := map[string]int{}
		note := func(did string) {
			mu.Lock()
			defer mu.Unlock()
			seen[did]++
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				other := exec.Command(os.Args[0], "-test.run=^TestLoadOrCreate$")
				other.Env = append(os.Environ(), file+"="+path)
				out, err := other.CombinedOutput()
				did, _, found := strings.Cut(strings.TrimPrefix(string(out), "key "), "\n")
				if err != nil || !found {
					t.Errorf("%v: %s", err, out)
				}
				note(did)
			})
			all.Go(func() {
				key, err := didkey.LoadOrCreate(path)
				if err != nil {
					t.Error(err)
				}
				note(string(key.DID()))
			})
		}
		all.Wait()
		key, err := didkey.Load(path)
		if err != nil || len(seen) != 1 || seen[string(key.DID())] != 8 {
			t.Errorf("the calls returned these keys: %v; the file has %s, %v", seen, key.DID(), err)
		}
		if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
		}
		if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
			t.Errorf("%d files, %v; want only the key", len(files), err)
		}
	}
}

// TestLoadOrCreateReplacesNothing checks that LoadOrCreate does not change a path where there is something but no key.
func TestLoadOrCreateReplacesNothing(t *testing.T) {
	folder := t.TempDir()
	broken := filepath.Join(folder, "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(folder, "dangling.json")
	if err := os.Symlink(filepath.Join(folder, "gone"), dangling); err != nil {
		t.Fatal(err)
	}
	_, open := newKeyFile(t)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{broken, dangling, open, folder, filepath.Join(folder, "no", "folder")} {
		before, _ := os.ReadFile(path)
		key, err := didkey.LoadOrCreate(path)
		if after, _ := os.ReadFile(path); err == nil || key.DID() != "" || string(after) != string(before) {
			t.Errorf("%s: LoadOrCreate = %s, %v; want an error and an unchanged file", path, key.DID(), err)
		}
	}
}
