package hubclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/agora-relay/agora/internal/jsontext"
)

// layout has the names of an agent's files.
type layout struct{ credentials, history string }

var (
	workspaceLayout = layout{"chorus-credentials.json", "chorus-history"} // in the root of a workspace
	homeLayout      = layout{"config.json", "history"}                    // in ~/.chorus, made by older agents
)

// Folder is where an agent keeps its credentials and its history. A Folder is used by one goroutine at a time.
type Folder struct {
	dir string
	layout
	known map[string]*historyFile // by name
}

// OpenFolder returns the folder of an agent. It creates nothing. If dir is empty, it is the working directory if that
// has credentials; else ~/.chorus if that has credentials; else the working directory.
func OpenFolder(dir string) (*Folder, error) {
	if dir != "" {
		return inFolder(dir)
	}
	if found, err := exists(workspaceLayout.credentials); found || err != nil {
		return newFolder(".", workspaceLayout), err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return newFolder(".", workspaceLayout), nil // without a home there is no ~/.chorus
	}
	old := newFolder(filepath.Join(home, ".chorus"), homeLayout)
	if found, err := exists(old.CredentialsFile()); found || err != nil {
		return old, err
	}
	return newFolder(".", workspaceLayout), nil
}

// inFolder returns the folder dir with the layout of its files. If it has no credentials, it gets workspaceLayout.
func inFolder(dir string) (*Folder, error) {
	workspace, home := newFolder(dir, workspaceLayout), newFolder(dir, homeLayout)
	if found, err := exists(workspace.CredentialsFile()); found || err != nil {
		return workspace, err
	}
	// Other programs have files with the name config.json too.
	text, err := os.ReadFile(home.CredentialsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return workspace, nil
	}
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) == nil && members["agent_id"] == nil && members["api_key"] == nil {
		return workspace, nil
	}
	return home, nil
}

func newFolder(dir string, l layout) *Folder {
	return &Folder{dir: dir, layout: l, known: map[string]*historyFile{}}
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// CredentialsFile is the name of the file with the credentials.
func (f *Folder) CredentialsFile() string { return filepath.Join(f.dir, f.credentials) }

func (f *Folder) stateFile() string { return filepath.Join(f.dir, f.history, ".state.json") }

// HistoryFolder is the name of the folder with the history files.
func (f *Folder) HistoryFolder() string { return filepath.Join(f.dir, f.history) }

// Lock runs do while no other process changes the files of the folder. It creates the folder and the history folder if
// they do not exist.
func (f *Folder) Lock(ctx context.Context, do func() error) (err error) {
	if err := os.MkdirAll(f.HistoryFolder(), 0o700); err != nil {
		return err
	}
	lock := flock.New(filepath.Join(f.HistoryFolder(), ".lock"), flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	return do()
}

// Credentials say who an agent is. Their file has exactly these members.
type Credentials struct {
	AgentID string `json:"agent_id"`
	Key     string `json:"api_key"`
	HubURL  string `json:"hub_url"`
}

// ErrNotRegistered means that a folder has no credentials.
var ErrNotRegistered = errors.New("not registered")

// maxCredentials is the size in bytes of the longest file with credentials.
const maxCredentials = 4 << 10

// Credentials reads the credentials. If there are none, the error is ErrNotRegistered. If other users may read the
// file, Credentials takes that permission away.
func (f *Folder) Credentials() (Credentials, error) { return readCredentials(f.CredentialsFile()) }

func readCredentials(path string) (c Credentials, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("%w: %s does not exist; run: agora hub register", ErrNotRegistered, path)
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return c, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	damaged := fmt.Errorf("%s is damaged: it must be a JSON object with agent_id, api_key and hub_url; "+
		"restore it, or move it away to register again", path)
	if len(text) > maxCredentials || json.Unmarshal(text, &c) != nil { // the parser's error may quote the key
		return Credentials{}, damaged
	}
	if c.Key == "" {
		return Credentials{}, fmt.Errorf("%w: %s has no api_key; run: agora hub register", ErrNotRegistered, path)
	}
	if c.HubURL, err = CheckURL(c.HubURL); err != nil || !isAddress(c.AgentID) || !isKey(c.Key) {
		return Credentials{}, damaged
	}
	return c, nil
}

func (c Credentials) text() []byte { return append(jsontext.Compact(c), '\n') }

// isKey reports whether a text can be sent as a key.
func isKey(key string) bool {
	return key != "" && len(key) <= 1024 && !strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7F })
}

// Register registers an agent and saves its credentials. If the folder has credentials and newIdentity is false, it
// sends nothing and returns those. If newIdentity is true, it replaces them. If the old credentials are for the same
// address and the same hub, only the key changes.
//
// registered means that the hub has sent a new key. c then has this key, even if Register fails because it cannot save
// the credentials.
//
// The hub sends a key only once. So before the request, Register does everything that can fail without the hub. The end
// of ctx does not stop a request that was sent. If the process dies while it saves the credentials, the next call
// finds them.
func (f *Folder) Register(
	ctx context.Context, hub *Client, r Registration, newIdentity bool,
) (c Credentials, registered bool, err error) {
	err = f.Lock(ctx, func() (err error) {
		if c, err = f.Credentials(); err == nil && !newIdentity || err != nil && !errors.Is(err, ErrNotRegistered) {
			return err
		}
		if found, err := f.unsaved(r.AgentID, hub.URL, newIdentity); err != nil || found.Key != "" {
			c = found
			return err
		}
		c, err = f.registerNow(ctx, hub, r, c)
		registered = c.Key != ""
		return err
	})
	return c, registered, err
}

// unsaved returns the credentials of a process that died while it saved them, and saves them. With newIdentity it
// returns only those of this agent. It returns the zero Credentials if there are none.
func (f *Folder) unsaved(agentID, hubURL string, newIdentity bool) (Credentials, error) {
	c, err := readCredentials(tempName(f.CredentialsFile()))
	if err != nil || newIdentity && (c.AgentID != agentID || c.HubURL != hubURL) {
		return Credentials{}, nil // the file is missing, incomplete, or of another registration
	}
	return c, replaceFile(f.CredentialsFile(), 0o600, c.text())
}

// registerNow sends the registration and saves the new credentials. old are the present credentials, or zero.
func (f *Folder) registerNow(
	ctx context.Context, hub *Client, r Registration, old Credentials,
) (c Credentials, err error) {
	saved, err := prepare(f.CredentialsFile(), 0o600, maxCredentials)
	if err != nil {
		return c, err
	}
	if old.AgentID == r.AgentID && old.HubURL == hub.URL {
		hub.Key = old.Key
	} else if err := remove(f.stateFile()); err != nil { // a new agent has an empty history
		return c, errors.Join(err, saved.discard())
	}
	key, err := hub.Register(context.WithoutCancel(ctx), r)
	if err != nil {
		return c, errors.Join(err, saved.discard())
	}
	c = Credentials{r.AgentID, key, hub.URL}
	if err := saved.commit(c.text()); err != nil {
		return c, fmt.Errorf("%s is registered, but its credentials cannot be saved: %w", r.AgentID, err)
	}
	return c, nil
}

// state is the content of .state.json.
type state struct {
	LastID int64 `json:"last_id"` // all messages up to this id are in the history and were shown
}

// loadState returns the saved state, or the zero state if there is no valid file. With the zero state, Follow reads the
// whole history of the hub again and drops repeats.
func (f *Folder) loadState() (s state, err error) {
	text, err := os.ReadFile(f.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if json.Unmarshal(text, &s) != nil || s.LastID < 0 {
		return state{}, nil
	}
	return s, nil
}

// saveState saves the state.
func (f *Folder) saveState(ctx context.Context, s state) error {
	return f.Lock(ctx, func() error { return replaceFile(f.stateFile(), 0o600, append(jsontext.Compact(s), '\n')) })
}

// File is a file of the protocol folder: the folder with the pages that teach an agent to use a hub.
type File struct {
	Path string // relative to the protocol folder, with slashes
	Text string
}

// Install writes files into the protocol folder dir, which need not exist. It also creates the history folder. If a
// file exists with another content, Install replaces it only if force is true. Otherwise it writes nothing, and the
// error is a *ChangedError.
func (f *Folder) Install(ctx context.Context, dir string, files []File, force bool) error {
	return f.Lock(ctx, func() error {
		var missing []File
		var changed []string
		for _, file := range files {
			path := filepath.Join(dir, filepath.FromSlash(file.Path))
			text, err := os.ReadFile(path)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				missing = append(missing, file)
			case err != nil:
				return err
			case string(text) != file.Text:
				changed = append(changed, path)
				missing = append(missing, file)
			}
		}
		if len(changed) > 0 && !force {
			return &ChangedError{changed}
		}
		for _, file := range missing {
			path := filepath.Join(dir, filepath.FromSlash(file.Path))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := replaceFile(path, 0o644, []byte(file.Text)); err != nil {
				return err
			}
		}
		return nil
	})
}

// ChangedError says which files Install would replace.
type ChangedError struct{ Paths []string }

func (e *ChangedError) Error() string {
	return "these files exist with another content: " + strings.Join(e.Paths, ", ")
}
