package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver/spending"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/hub/hubclient"
	"github.com/agora-relay/agora/internal/profile"
	"github.com/agora-relay/agora/thread"
)

// TestFixtureClient opens the files of clients: profiles, the address book, keys, cursors, the state of agora work, the
// spending limits, and the folders of agents of a hub.
func TestFixtureClient(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		folder := x.unpack(t, "client")
		keys := x.keys(t, folder)
		config := filepath.Join(folder, "config", "agora")
		if p, err := profile.Load(config, profile.Default); err != nil || p.Text("relay") != x.Relay {
			t.Errorf("the profile is %+v, %v", p, err)
		} else if _, err := didkey.Load(p.File("key")); err != nil {
			t.Errorf("the key of the profile: %v", err)
		}
		if book, err := profile.NewNames(config).Read(); err != nil || book.Name(keys["bob"].DID()) != "bob" {
			t.Errorf("the address book is %+v, %v", book, err)
		}
		for _, name := range []string{"alice", "js-agent", "python-agent"} {
			cursor, err := client.FileCursor(filepath.Join(folder, name+".cursor")).Load(t.Context())
			if epoch, number, ok := strings.Cut(cursor, "-"); err != nil || !ok || len(epoch) != 8 || number == "" {
				t.Errorf("the cursor of %s is %q, %v", name, cursor, err)
			}
		}
		x.checkWork(t, folder, keys)
		book, err := spending.Open(filepath.Join(folder, "alice.key"), keys["alice"].DID(), func() time.Time { return x.At })
		if err != nil {
			t.Fatal(err)
		}
		if s, err := book.Status(t.Context()); err != nil || s.Limits.PerDay.String() != "1" || s.Reserved.String() != "0.01" {
			t.Errorf("the spending is %+v, %v", s, err)
		}
		hub, err := hubclient.OpenFolder(filepath.Join(folder, "hub-bob"))
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		broken, err := hub.History("alice@relay.example", func([]byte) error { lines++; return nil })
		if c, failed := hub.Credentials(); failed != nil || c.AgentID != "bob@relay.example" || err != nil || broken > 0 || lines != 1 {
			t.Errorf("the folder of the hub: %+v, %v, %d lines, %d broken, %v", c.AgentID, failed, lines, broken, err)
		}
		if _, err := serve.ReadKeySecret(filepath.Join(folder, "key-secret")); err != nil {
			t.Error(err)
		}
	})
}

// keys loads the keys of the fixture, by the names of their files.
func (x fixture) keys(t *testing.T, folder string) map[string]didkey.Key {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.key"))
	if err != nil || len(files) < 9 {
		t.Fatalf("the keys: %q, %v", files, err)
	}
	keys := map[string]didkey.Key{}
	for _, file := range files {
		key, err := didkey.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		keys[strings.TrimSuffix(filepath.Base(file), ".key")] = key
	}
	return keys
}

// checkWork opens the state of an agent that was killed while it worked.
func (x fixture) checkWork(t *testing.T, folder string, keys map[string]didkey.Key) {
	t.Helper()
	file := filepath.Join(folder, "bob.state")
	state, err := cli.OpenState(file, keys["bob"].DID())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	job := `"` + string(keys["alice"].DID()) + ` works":{"attempts":1}` // as 0.1.0 wrote it
	if bytes.Contains(text, []byte(`["cursor",`)) {
		job = `"begun":1,"over":false,"thread":{"home":"","id":"works",`
	}
	if err != nil || !strings.Contains(string(text), job) || strings.Contains(string(text), `"cursor":""`) {
		t.Errorf("the state of the agent is %s, %v", text, err)
	}
	if err := state.Close(); err != nil {
		t.Error(err)
	}
}

// TestFixtureConversations reads what the three clients said: each message is valid, the state machine accepts all of
// them, and their keys open what is sealed.
func TestFixtureConversations(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		keys := x.keys(t, x.unpack(t, "client"))
		for _, language := range []string{"go", "js", "python"} {
			var said struct{ Plain, Sealed []json.RawMessage }
			if err := json.Unmarshal(x.read(t, language+".json"), &said); err != nil {
				t.Fatal(err)
			}
			for _, events := range [][]json.RawMessage{said.Plain, said.Sealed} {
				text, err := x.replay(events, keys[language+"-client"])
				if want := fmt.Sprintf("%q", "HELLO, "+strings.ToUpper(language)); err != nil || text != want {
					t.Errorf("%s: the result is %s, %v; want %s", language, text, err, want)
				}
			}
		}
	})
}

// replay checks the messages of a thread, and returns the output of its result.
func (x fixture) replay(events []json.RawMessage, client didkey.Key) (output string, err error) {
	var threads []thread.Thread
	for _, event := range events {
		m, err := envelope.Parse(event, 1<<17)
		if err == nil {
			err = m.Verify()
		}
		if err != nil {
			return "", err
		}
		next, chosen, err := thread.Rules{}.Apply(threads, m, x.At)
		if err != nil {
			return "", err
		}
		if threads = threads[:0]; chosen <= 0 {
			threads = append(threads, next)
		}
		if m.Type != envelope.TypeResult {
			continue
		}
		if m.Sealed() {
			if m, err = m.Open(client); err != nil {
				return "", err
			}
		}
		var result envelope.Result
		if err := json.Unmarshal(m.Payload, &result); err != nil {
			return "", err
		}
		output = string(result.Output)
	}
	if len(threads) != 1 || threads[0].State != thread.Completed {
		return output, fmt.Errorf("the thread is %+v", threads)
	}
	return output, nil
}
