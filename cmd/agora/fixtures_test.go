package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/thread"
)

// A fixture is a folder with files that a version of agora has made. See testvectors/fixtures/README.md.
type fixture struct {
	folder string
	At     time.Time `json:"at"`    // when the files were made
	Relay  string    `json:"relay"` // the URL of the relay that made them
}

// eachFixture runs a test with the fixture of each version.
func eachFixture(t *testing.T, f func(*testing.T, fixture)) {
	files, err := filepath.Glob("../../testvectors/fixtures/*/about.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		x := fixture{folder: filepath.Dir(file)}
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &x)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(x.folder), func(t *testing.T) { f(t, x) })
	}
}

// read returns the content of a compressed file.
func (x fixture) read(t *testing.T, name string) []byte {
	t.Helper()
	file, err := os.Open(filepath.Join(x.folder, name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// unpack puts the files of an archive into a new folder.
func (x fixture) unpack(t *testing.T, name string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	archive := tar.NewReader(bytes.NewReader(x.read(t, name+".tar")))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return folder
		}
		path := filepath.Join(folder, filepath.FromSlash(header.Name))
		if err == nil && header.Typeflag == tar.TypeDir {
			if err = os.MkdirAll(path, 0o700); err == nil {
				err = os.Chmod(path, 0o700)
			}
		} else if err == nil {
			var content []byte
			if content, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// answer is a line of answers.jsonl: what the relay of that version answered.
type answer struct {
	Path string          `json:"path"`
	Key  string          `json:"key"` // the file of the client with the key; empty: none
	Body json.RawMessage `json:"body"`
}

// TestFixtureData starts a relay of this version with the data folder of a relay that was killed, and with a backup. The
// check finds nothing. The relay answers as the other version did, and unfinished work continues.
func TestFixtureData(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		client := x.unpack(t, "client")
		for _, name := range []string{"data", "backup"} {
			data := x.unpack(t, name)
			store, err := sqlite.Open(t.Context(), filepath.Join(data, datafolder.Database), x.options())
			if err != nil {
				t.Fatal(err)
			}
			clean(t, data, x.At)
			url, stop := x.serve(t, data, store)
			x.answers(t, client, url)
			x.finish(t, client, url)
			stop()
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			clean(t, data, x.At)
		}
	})
}

// options are for a store whose clock shows when the fixture was made.
func (x fixture) options() sqlite.Options {
	return sqlite.Options{Policy: relay.Policy{Rules: thread.Rules{PendingTimeout: 24 * time.Hour, ActiveTimeout: 24 * time.Hour}},
		Reserve: 1 << 20, Extensions: serve.Extensions(), Now: func() time.Time { return x.At }, Log: slog.New(slog.DiscardHandler)}
}

// clean checks a data folder, as agora check does.
func clean(t *testing.T, data string, at time.Time) {
	t.Helper()
	report, err := check.Database(t.Context(), filepath.Join(data, datafolder.Database), check.Options{Now: at, Extensions: serve.Extensions(),
		Found: func(f check.Finding) { t.Errorf("check: %v", f) }})
	if err != nil || report.Events < 20 || report.Threads < 8 {
		t.Errorf("the check has read %+v, %v", report, err)
	}
}

// serve runs a relay with its gateways over a store. Its clock shows when the fixture was made.
func (x fixture) serve(t *testing.T, data string, store relay.Extender) (url string, stop func()) {
	t.Helper()
	key, err := didkey.Load(filepath.Join(data, datafolder.Key))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Origin: x.Relay, Log: log,
		Now: func() time.Time { return x.At }})
	if err != nil {
		t.Fatal(err)
	}
	var line commandLine
	parser, err := newParser(&line)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"serve", "--hub", "--hub-name", "relay.example", "--channel", "--jobs", "--a2a",
		"--outbound-allow", "127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	g, err := line.Serve.Gateways.Open(t.Context(), data, r, log)
	if err != nil {
		t.Fatal(err)
	}
	front := httpapi.New(r, httpapi.Options{Log: log, Mounts: g.Mounts(), Gateways: g.Document(), Grace: time.Second})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve.Serve(ctx, r, front, g.Tasks(), httpapi.Listener{Listener: l}) }()
	return "http://" + l.Addr().String(), func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// answers checks that a relay answers as the relay of the fixture did. An answer may have more members.
func (x fixture) answers(t *testing.T, client, url string) {
	t.Helper()
	lines := json.NewDecoder(bytes.NewReader(x.read(t, "answers.jsonl")))
	count := 0
	for ; ; count++ {
		var a answer
		if err := lines.Decode(&a); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var got, want any
		status, body := x.call(t, client, http.MethodGet, url+a.Path, a.Key, "")
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", a.Path, status, body)
			continue
		}
		if err := errors.Join(json.Unmarshal([]byte(body), &got), json.Unmarshal(a.Body, &want)); err != nil {
			t.Fatal(err)
		}
		if where := missing(got, want, a.Path); where != "" {
			t.Errorf("%s\nis missing in %s", where, body)
		}
	}
	if count < 10 {
		t.Errorf("only %d answers are compared", count)
	}
}

// volatile are members whose values a relay does not store, or stores later.
var volatile = map[string]bool{"online": true, "lastSeen": true, "metadata": true, "cursor": true}

// missing returns what of want is not in got: it compares lists and values, and the members that both have. where is
// the place of both.
func missing(got, want any, where string) string {
	switch want := want.(type) {
	case map[string]any:
		object, _ := got.(map[string]any)
		for name, value := range want {
			if where := missing(object[name], value, where+" "+name); where != "" && !volatile[name] {
				return where
			}
		}
		return ""
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			return fmt.Sprintf("%s: %d of %d items", where, len(list), len(want))
		}
		for i := range want {
			if where := missing(list[i], want[i], fmt.Sprint(where, " ", i)); where != "" {
				return where
			}
		}
		return ""
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Sprintf("%s: %v", where, want)
	}
	return ""
}

// call sends a request with the key in a file of the client.
func (x fixture) call(t *testing.T, client, method, url, keyFile, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if keyFile != "" {
		text, err := os.ReadFile(filepath.Join(client, keyFile))
		if err != nil {
			t.Fatal(err)
		}
		key := strings.TrimSpace(string(text))
		var credentials struct {
			Key string `json:"api_key"`
		}
		if json.Unmarshal(text, &credentials) == nil {
			key = credentials.Key
		}
		r.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// finish continues what was not finished: an agent delivers the result of a thread and of a job, and a hub and a channel
// take further messages.
func (x fixture) finish(t *testing.T, client, url string) {
	t.Helper()
	bob, err := didkey.Load(filepath.Join(client, "bob.key"))
	if err != nil {
		t.Fatal(err)
	}
	var works struct {
		Thread struct {
			Client    didkey.DID `json:"client"`
			RequestID string     `json:"requestId"`
			State     string     `json:"state"`
		} `json:"thread"`
	}
	x.callInto(t, client, http.MethodGet, url+"/threads/works", "", "", &works)
	if works.Thread.State != "ACTIVE" {
		t.Fatalf("the thread is %+v", works.Thread)
	}
	result, err := envelope.Draft{Recipient: works.Thread.Client, Thread: "works", Payload: envelope.Result{
		RequestID: works.Thread.RequestID, Status: "success", Output: json.RawMessage("1")}, TS: x.At}.Sign(bob, x.At)
	if err != nil {
		t.Fatal(err)
	}
	x.callInto(t, client, http.MethodPost, url+"/events", "", string(result.Canonical()), nil)
	x.callInto(t, client, http.MethodGet, url+"/threads/works", "", "", &works)
	if works.Thread.State != "COMPLETED" {
		t.Errorf("the thread is %+v", works.Thread)
	}

	var job struct {
		ID     string `json:"job_id"`
		Agent  string `json:"agent_id"`
		Status string `json:"status"`
	}
	text, err := os.ReadFile(filepath.Join(client, "waiting.json"))
	if err == nil {
		err = json.Unmarshal(text, &job)
	}
	if err != nil {
		t.Fatal(err)
	}
	x.callInto(t, client, http.MethodPost, url+"/jobs/agents/"+job.Agent+"/results", "acme.cj",
		`{"job_id":"`+job.ID+`","status":"SUCCESS","output_data":{"words":2}}`, nil)
	x.callInto(t, client, http.MethodGet, url+"/jobs/jobs/"+job.ID, "dan.cj", "", &job)
	if job.Status != "SUCCESS" {
		t.Errorf("the job is %+v", job)
	}
	x.callInto(t, client, http.MethodPost, url+"/hub/messages", "hub-bob/chorus-credentials.json",
		`{"receiver_id":"alice","envelope":{"chorus_version":"0.4","sender_id":"bob@relay.example","sender_culture":"en","original_text":"Yes"}}`, nil)
	var channel struct{ URL string }
	if text, err = os.ReadFile(filepath.Join(client, "ops.json")); err == nil {
		err = json.Unmarshal(text, &channel)
	}
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ Deliveries int }
	x.callInto(t, client, http.MethodPost, url+strings.TrimPrefix(channel.URL, x.Relay)+"/messages", "bob.cm", `{"content":"Still here?"}`, &said)
	if said.Deliveries != 1 {
		t.Errorf("what was said: %+v", said)
	}
}

// callInto is like call. It expects success, and decodes the answer into to unless to is nil.
func (x fixture) callInto(t *testing.T, client, method, url, keyFile, body string, to any) {
	t.Helper()
	status, answer := x.call(t, client, method, url, keyFile, body)
	if status < 200 || status > 299 {
		t.Fatalf("%s %s: %d %s", method, url, status, answer)
	}
	if to != nil {
		if err := json.Unmarshal([]byte(answer), to); err != nil {
			t.Fatal(err)
		}
	}
}
