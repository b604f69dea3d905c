package hubclient

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestLayouts checks which folder and which names are used.
func TestLayouts(t *testing.T) {
	const own, old = "chorus-credentials.json", "config.json"
	mine := string(Credentials{alice, key, hubURL}.text())
	for name, c := range map[string]struct {
		dir   string            // the argument
		files map[string]string // relative to a folder with the folders work, the working directory, and home
		want  string            // the file with the credentials
	}{
		"nothing":                        {"", nil, own},
		"in the working directory":       {"", map[string]string{"work/" + own: mine, "home/.chorus/" + old: mine}, own},
		"in the home":                    {"", map[string]string{"home/.chorus/" + old: mine}, "HOME/.chorus/" + old},
		"damaged, in the home":           {"", map[string]string{"home/.chorus/" + old: "{"}, "HOME/.chorus/" + old},
		"old names in the wrong place":   {"", map[string]string{"work/" + old: mine}, own},
		"new names in the home":          {"", map[string]string{"home/.chorus/" + own: mine}, own},
		"a folder":                       {"a", map[string]string{"work/" + own: mine}, "a/" + own},
		"a folder with new names":        {"a", map[string]string{"work/a/" + own: mine, "work/a/" + old: mine}, "a/" + own},
		"a folder with old names":        {"a", map[string]string{"work/a/" + old: mine}, "a/" + old},
		"the same, without a key":        {"a", map[string]string{"work/a/" + old: `{"agent_id":"x@y"}`}, "a/" + old},
		"the same, damaged":              {"a", map[string]string{"work/a/" + old: "{"}, "a/" + old},
		"a file of another program":      {"a", map[string]string{"work/a/" + old: `{"port":80}`}, "a/" + own},
		"the home, given as an argument": {"../home/.chorus", map[string]string{"home/.chorus/" + old: mine}, "../home/.chorus/" + old},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			home := filepath.Join(root, "home")
			for file, text := range c.files {
				write(t, filepath.Join(root, file), text)
			}
			if err := os.MkdirAll(filepath.Join(root, "work"), 0o700); err != nil {
				t.Fatal(err)
			}
			t.Chdir(filepath.Join(root, "work"))
			t.Setenv("HOME", home)
			f, err := OpenFolder(c.dir)
			if err != nil {
				t.Fatal(err)
			}
			want := filepath.FromSlash(strings.Replace(c.want, "HOME", home, 1))
			history := "chorus-history"
			if strings.HasSuffix(want, old) {
				history = "history"
			}
			if f.CredentialsFile() != want || f.HistoryFolder() != filepath.Join(filepath.Dir(want), history) {
				t.Errorf("the files are %s and %s, want %s", f.CredentialsFile(), f.HistoryFolder(), want)
			}
			if _, err := os.Stat(f.HistoryFolder()); !errors.Is(err, fs.ErrNotExist) {
				t.Error("OpenFolder has created the history folder")
			}
		})
	}
}

// TestCredentials checks which files are credentials. An error never contains the key.
func TestCredentials(t *testing.T) {
	_, f := newHub(t)
	good := Credentials{alice, key, hubURL}
	for text, want := range map[string]error{
		string(good.text()): nil,
		` { "hub_url" : "https://relay.example/hub/", "agent_id":"alice@relay.example","api_key":"` + key + `","more":1}`: nil,
		``: fs.ErrInvalid, `[]`: fs.ErrInvalid, `{}`: ErrNotRegistered, `{"agent_id":"a@b","api_key":""}`: ErrNotRegistered,
		`{"agent_id":"a@b","api_key":"` + key + `"}`:                        fs.ErrInvalid,
		`{"agent_id":"","api_key":"` + key + `","hub_url":"https://x"}`:     fs.ErrInvalid,
		`{"agent_id":"a@b","api_key":"` + key + `","hub_url":"ftp://x"}`:    fs.ErrInvalid,
		`{"agent_id":"a@b","api_key":"` + key + `\n","hub_url":"http://x"}`: fs.ErrInvalid,
		`{"agent_id":"a@b","api_key":"` + key + `","hub_url":"http://x"`:    fs.ErrInvalid,
		`{"agent_id":"a@b","api_key":["` + key + `"],"hub_url":"http://x"}`: fs.ErrInvalid,
	} {
		write(t, f.CredentialsFile(), text)
		if err := os.Chmod(f.CredentialsFile(), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := f.Credentials()
		switch {
		case want == nil && (err != nil || c != good):
			t.Errorf("%s: %+v, %v", text, c, err)
		case want != nil && (err == nil || c != Credentials{} || errors.Is(err, ErrNotRegistered) != (want == ErrNotRegistered)):
			t.Errorf("%s: %+v, %v", text, c, err)
		case err != nil && strings.Contains(err.Error(), key[:9]):
			t.Errorf("the error contains the key: %v", err)
		}
		checkModes(t, f)
	}
	if err := os.Remove(f.CredentialsFile()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Credentials(); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("without a file: %v", err)
	}
}

// newFolderFor returns a folder without credentials, and a hub that counts registrations.
func newFolderFor(t *testing.T) (*fakeHub, *Folder) {
	h, f := newHub(t)
	if err := os.Remove(f.CredentialsFile()); err != nil {
		t.Fatal(err)
	}
	return h, f
}

var registration = Registration{alice, NewCard("zh-CN", nil)}

// readCredentialsFile returns the text of the file with the credentials.
func readCredentialsFile(t *testing.T, f *Folder) string {
	t.Helper()
	text, err := os.ReadFile(f.CredentialsFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

const savedCredentials = `{"agent_id":"alice@relay.example","api_key":"` + key + `","hub_url":"https://relay.example/hub"}` + "\n"

// H-36, H-37: register leaves the credentials to the byte, and a second one sends nothing.
func TestRegister(t *testing.T) {
	h, f := newFolderFor(t)
	write(t, f.stateFile(), `{"last_id":5}`) // of an agent that was here before
	var body, authorization string
	h.before = func(r *http.Request, b []byte) (*http.Response, error) {
		body, authorization = string(b), r.Header.Get("Authorization")
		return nil, nil
	}
	hub := h.client()
	hub.Key = ""
	c, registered, err := f.Register(t.Context(), hub, registration, false)
	if err != nil || !registered || c != (Credentials{alice, key, hubURL}) || readCredentialsFile(t, f) != savedCredentials {
		t.Fatalf("Register = %+v, %v, %v; the file is %s", c, registered, err, readCredentialsFile(t, f))
	}
	want := `{"agent_id":"alice@relay.example","agent_card":{"card_version":"0.3","user_culture":"zh-CN","supported_languages":["zh-CN"]}}`
	if body != want || authorization != "" {
		t.Errorf("sent was %s with %q", body, authorization)
	}
	if s, err := f.loadState(); err != nil || s.LastID != 0 {
		t.Errorf("the new agent has the state %+v, %v", s, err)
	}
	checkModes(t, f)
	h.requests()
	c, registered, err = f.Register(t.Context(), hub, Registration{AgentID: bob}, false)
	if err != nil || registered || c.AgentID != alice || len(h.requests()) != 0 || readCredentialsFile(t, f) != savedCredentials {
		t.Errorf("the second Register = %+v, %v, %v", c, registered, err)
	}
}

// H-37: several processes that register at the same time send one request.
func TestRegisterAtTheSameTime(t *testing.T) {
	h, f := newFolderFor(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			own := newFolder(f.dir, f.layout) // flock tells processes apart by their open files
			if c, _, err := own.Register(t.Context(), h.client(), registration, false); err != nil || c.Key != key {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
	all.Wait()
	if requests := h.requests(); len(requests) != 1 {
		t.Errorf("the requests were %q", requests)
	}
}

// TestNewIdentity replaces the key of the same address, and the credentials for another address.
func TestNewIdentity(t *testing.T) {
	h, f := newHub(t)
	write(t, f.stateFile(), `{"last_id":5}`)
	answer := func(id, key string) func(*http.Request, []byte) (*http.Response, error) {
		return func(r *http.Request, _ []byte) (*http.Response, error) {
			return reply(200, `{"success":true,"data":{"agent_id":"`+id+`","api_key":"`+key+r.Header.Get("Authorization")[len("Bearer "):]+`"}}`), nil
		}
	}
	h.before = answer(alice, "new_")
	hub := h.client()
	hub.Key = ""
	c, registered, err := f.Register(t.Context(), hub, registration, true)
	if s, _ := f.loadState(); err != nil || !registered || c.Key != "new_"+key || s.LastID != 5 {
		t.Errorf("%+v, %v, %v, state %d", c, registered, err, s.LastID)
	}
	h.before = func(r *http.Request, _ []byte) (*http.Response, error) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the key of another address was sent")
		}
		return reply(201, `{"success":true,"data":{"agent_id":"`+bob+`","api_key":"ca_bob"}}`), nil
	}
	hub = h.client()
	hub.Key = ""
	c, registered, err = f.Register(t.Context(), hub, Registration{AgentID: bob}, true)
	if s, _ := f.loadState(); err != nil || !registered || c.Key != "ca_bob" || s.LastID != 0 {
		t.Errorf("%+v, %v, %v, state %d", c, registered, err, s.LastID)
	}
}

// TestRegisterFails checks that after a failure the folder is as before, and that the error says whether to try again.
func TestRegisterFails(t *testing.T) {
	for name, c := range map[string]struct {
		answer *http.Response
		err    error
		want   string
	}{
		"taken":       {reply(409, `{"error":{"code":"ERR_AGENT_ID_TAKEN","message":"taken"}}`), nil, "ERR_AGENT_ID_TAKEN"},
		"lost":        {nil, errors.New("connection reset"), "choose another one"},
		"no key":      {reply(201, `{"success":true,"data":{"agent_id":"`+alice+`"}}`), nil, "no valid key"},
		"other agent": {reply(201, `{"success":true,"data":{"agent_id":"`+bob+`","api_key":"k"}}`), nil, "no valid key"},
		"hostile key": {reply(201, `{"success":true,"data":{"agent_id":"`+alice+`","api_key":"k\r\nHost: x"}}`), nil, "no valid key"},
	} {
		h, f := newFolderFor(t)
		h.before = func(*http.Request, []byte) (*http.Response, error) { return c.answer, c.err }
		who, registered, err := f.Register(t.Context(), h.client(), registration, false)
		if err == nil || registered || who != (Credentials{}) || !strings.Contains(err.Error(), c.want) || len(h.requests()) != 1 {
			t.Errorf("%s: %+v, %v", name, who, err)
		}
		if text := readCredentialsFile(t, f); text != "" {
			t.Errorf("%s: the file is %s", name, text)
		}
		checkModes(t, f)
	}
}

// TestRegisterSendsNothingInVain checks that nothing is sent if the credentials could not be saved.
func TestRegisterSendsNothingInVain(t *testing.T) {
	h, f := newFolderFor(t)
	if err := os.MkdirAll(filepath.Join(tempName(f.CredentialsFile()), "not empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Register(t.Context(), h.client(), registration, false); err == nil || len(h.requests()) != 0 {
		t.Errorf("got %v", err)
	}
}

// TestRegisterTellsTheKey checks that Register returns the key if the credentials cannot be saved after all.
func TestRegisterTellsTheKey(t *testing.T) {
	h, f := newFolderFor(t)
	h.after = func(*http.Request) error { return os.MkdirAll(filepath.Join(f.CredentialsFile(), "not empty"), 0o700) }
	c, registered, err := f.Register(t.Context(), h.client(), registration, false)
	if err == nil || !registered || c.Key != key || !strings.Contains(err.Error(), "cannot be saved") {
		t.Errorf("%+v, %v, %v", c, registered, err)
	}
}

// TestRegisterGoesOn interrupts a registration. It continues, because the hub tells the key only once.
func TestRegisterGoesOn(t *testing.T) {
	h, f := newFolderFor(t)
	ctx, interrupt := context.WithCancel(t.Context())
	h.after = func(r *http.Request) error {
		interrupt()
		return r.Context().Err()
	}
	if _, registered, err := f.Register(ctx, h.client(), registration, false); err != nil || !registered {
		t.Errorf("%v, %v", registered, err)
	}
	if readCredentialsFile(t, f) != savedCredentials {
		t.Error("the credentials were not saved")
	}
}

// H-36: a process that was killed while it saved the credentials loses nothing: the next one finds them.
func TestUnsavedCredentials(t *testing.T) {
	other := string(Credentials{bob, "ca_bob", hubURL}.text())
	for name, c := range map[string]struct {
		text        string // of the new file that is not in its place
		present     bool   // there are credentials
		newIdentity bool
		want        string // the agent and its key
		requests    int
	}{
		"complete":          {savedCredentials, false, false, alice + key, 0},
		"before it was cut": {savedCredentials + strings.Repeat(" ", 100), false, false, alice + key, 0},
		"other address":     {other, false, false, bob + "ca_bob", 0},
		"not written yet":   {strings.Repeat(" ", 4096), false, false, alice + key, 1},
		"half written":      {savedCredentials[:40] + strings.Repeat(" ", 100), false, false, alice + key, 1},
		"for a new one":     {strings.Replace(savedCredentials, "ca_", "cb_", 1), true, true, alice + strings.Replace(key, "ca_", "cb_", 1), 0},
		"of another one":    {other, true, true, alice + key, 1},
		"not wanted":        {other, true, false, alice + key, 0},
	} {
		h, f := newHub(t)
		if !c.present {
			if err := os.Remove(f.CredentialsFile()); err != nil {
				t.Fatal(err)
			}
		}
		write(t, tempName(f.CredentialsFile()), c.text)
		who, registered, err := f.Register(t.Context(), h.client(), registration, c.newIdentity)
		if err != nil || registered != (c.requests > 0) || who.AgentID+who.Key != c.want || len(h.requests()) != c.requests {
			t.Errorf("%s: %+v, %v, %v", name, who, registered, err)
		}
		if saved, err := f.Credentials(); err != nil || saved != who {
			t.Errorf("%s: saved are %+v, %v", name, saved, err)
		}
	}
}

// TestState checks that a damaged state means that the whole history is read again.
func TestState(t *testing.T) {
	_, f := newHub(t)
	for text, want := range map[string]int64{`{"last_id":17}`: 17, "": 0, "{": 0, `{"last_id":-1}`: 0, `{"last_id":"17"}`: 0, `{"last_id":17} `: 17} {
		write(t, f.stateFile(), text)
		if s, err := f.loadState(); err != nil || s.LastID != want {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}

// H-39: init writes every file, repeats nothing, and replaces changed files only with force.
func TestInstall(t *testing.T) {
	_, f := newHub(t)
	dir := filepath.Join(t.TempDir(), "chorus")
	files := []File{{"a.md", "a\n"}, {"b.md", "b\n"}, {"examples/c.json", "{}\n"}}
	check := func(want ...string) {
		t.Helper()
		for i, file := range files {
			text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(file.Path)))
			if err != nil || string(text) != want[i] {
				t.Errorf("%s is %q, %v; want %q", file.Path, text, err, want[i])
			}
		}
		if found, _ := filepath.Glob(filepath.Join(dir, "*")); len(found) != 3 {
			t.Errorf("the folder has %q", found)
		}
	}
	for range 2 {
		if err := f.Install(t.Context(), dir, files, false); err != nil {
			t.Fatal(err)
		}
		check("a\n", "b\n", "{}\n")
	}
	if _, err := os.Stat(f.HistoryFolder()); err != nil {
		t.Error(err)
	}
	write(t, filepath.Join(dir, "a.md"), "mine\n")
	write(t, filepath.Join(dir, "examples", "c.json"), "[]\n")
	if err := os.Remove(filepath.Join(dir, "b.md")); err != nil {
		t.Fatal(err)
	}
	err := f.Install(t.Context(), dir, files, false)
	changed, ok := errors.AsType[*ChangedError](err)
	if !ok || len(changed.Paths) != 2 || changed.Paths[0] != filepath.Join(dir, "a.md") || changed.Paths[1] != filepath.Join(dir, "examples", "c.json") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "b.md")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file was written all the same")
	}
	if err := f.Install(t.Context(), dir, files, true); err != nil {
		t.Error(err)
	}
	check("a\n", "b\n", "{}\n")
}
