package hub_test

import (
	"encoding/base64"
	"encoding/hex"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// tour uses every endpoint of the hub, with success and with errors.
type tour struct {
	*fixture
	answers []answer
	keys    []string // all that were told, and the operator's
	secrets []string // parts of URLs
}

func takeTour(t *testing.T) *tour {
	t.Helper()
	v := &tour{fixture: startLocal(t)}
	hook := newFixedHook(t)
	broken := newFixedHook(t)
	broken.Close()
	v.secrets = []string{"/first-secret", "/second-secret", "/third-secret", "/fourth-secret"}
	do := func(c call) answer {
		t.Helper()
		a := v.do(c)
		v.answers = append(v.answers, a)
		for _, member := range []string{"api_key", "session_token"} {
			if key := a.text(member); key != "" {
				v.keys = append(v.keys, key)
			}
		}
		return a
	}
	register := func(id, key string, more object) string {
		t.Helper()
		return do(call{"POST", "/register", key, with(registrationOf(id), more), nil}).text("api_key")
	}
	alice := register("alice@b", "", object{"endpoint": hook.URL + "/first-secret?token=/second-secret"})
	alice = register("alice@b", alice, object{"endpoint": hook.URL + "/first-secret?token=/second-secret"})
	bob := register("bob@b", "", object{"endpoint": broken.URL + "/third-secret"})
	register("alice@b", bob, nil)
	hidden := object{"agent_id": "carol@b", "endpoint": "https://agent.example/fourth-secret"}
	carol := do(call{"POST", "/agents", v.Operator, hidden, nil}).text("api_key")
	do(call{"POST", "/agents", v.Operator, hidden, nil})
	register("x@b", "", object{"endpoint": "http://10.0.0.1/fourth-secret"})
	for _, key := range []string{"", alice, v.Operator} {
		for _, path := range []string{"/agents", "/agents/alice@b", "/discover", "/invite/alice@b", "/health", "/skill",
			"/.well-known/chorus.json", "/agent/messages", "/nothing"} {
			do(call{"GET", path, key, nil, nil})
		}
		do(call{"POST", "/agent/ack", key, object{"up_to": 1}, nil})
	}
	for _, to := range []string{"alice@b", "bob@b", "carol@b", "nobody@b"} {
		for range 2 {
			id := map[string]string{"Idempotency-Key": "to " + to}
			do(call{"POST", "/messages", alice, messageTo(to, "alice@b", "hello"), id})
		}
	}
	session := do(call{"POST", "/agent/session", alice, nil, nil}).text("session_token")
	v.openPath("/agent/inbox?session="+session, "", nil).frame()
	v.open(bob, nil).frame()
	// Keys at wrong places. An error may repeat the address that the caller has sent, so these answers do not count.
	for _, key := range []string{alice, v.Operator, session} {
		for _, path := range []string{"/agents/" + key, "/invite/" + key, "/" + key, "/agents/x/" + key + "/y",
			"/agent/inbox?session=" + key, "/discover?culture=" + key, "/agent/messages?since=" + key, "/invite/" + key + "@b"} {
			v.get(path, key)
		}
		v.remove("/agents/"+key, alice)
		v.post("/register", "", `{"agent_id":"`+key+`"}`)
	}
	do(call{"DELETE", "/agents/carol@b", carol, nil, nil})
	do(call{"DELETE", "/agents/carol@b", carol, nil, nil})
	v.keys = append(v.keys, v.Operator)
	if len(v.keys) != 6 {
		t.Errorf("the tour has seen %d keys, want 6", len(v.keys))
	}
	return v
}

// G-7: no key and no secret URL is in the database in clear.
func TestDatabaseHasNoSecrets(t *testing.T) {
	engine.OnlySQLite(t, "it reads the files")
	t.Parallel()
	v := takeTour(t)
	scan := func(when string) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(filepath.Dir(v.Path), "*"))
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			size += len(text)
			for _, secret := range slices.Concat(v.keys, v.secrets) {
				hidden := strings.Contains(string(text), secret)
				_, random, isKey := strings.Cut(secret, "_")
				if isKey { // also without its kind, and in its own bytes
					bytes, err := hex.DecodeString(random)
					if err != nil {
						bytes, err = base64.RawURLEncoding.DecodeString(random)
					}
					if err != nil {
						t.Fatal(err)
					}
					hidden = hidden || strings.Contains(string(text), random) || strings.Contains(string(text), string(bytes))
				}
				if hidden {
					t.Errorf("%s, %s has %s", when, filepath.Base(name), secret)
				}
			}
			if strings.Contains(string(text), "alice@b") {
				size += 1 << 30
			}
		}
		if size < 1<<30 {
			t.Errorf("%s: no file has an address; the files are %q", when, files)
		}
	}
	scan("while the relay runs")
	v.Stop()
	scan("after it was stopped")
}

// G-8: no key and no secret URL is in a log line, at the level debug.
func TestLogHasNoSecrets(t *testing.T) {
	t.Parallel()
	v := takeTour(t)
	v.Stop() // ends the streams, so that they are logged
	log := v.Logged()
	for _, secret := range slices.Concat(v.keys, v.secrets, []string{"agent.example"}) {
		for _, form := range []string{secret, url.QueryEscape(secret), strings.ToUpper(secret)} {
			if at := strings.Index(log, form); at >= 0 {
				t.Errorf("the log has %s: %s", secret, log[max(0, at-100):at+100])
			}
		}
		if _, random, isKey := strings.Cut(secret, "_"); isKey && strings.Contains(log, random) {
			t.Errorf("the log has the random part of %s", secret)
		}
	}
	for _, path := range []string{"/hub/register", "/hub/agent/inbox", "/hub/agents/…", "/hub/invite/…@b", "/hub/…"} {
		if !strings.Contains(log, `"path":"`+path+`"`) {
			t.Errorf("the log has no line for %s", path)
		}
	}
}

// G-9: a key is in one answer only. Answers on paths with a key tell caches and browsers to keep nothing.
func TestKeysAreToldOnce(t *testing.T) {
	t.Parallel()
	v := takeTour(t)
	told := map[string]int{}
	for _, a := range v.answers {
		for _, key := range regexp.MustCompile(`c[as]_[0-9a-f]{32}|op_[A-Za-z0-9_-]{43}`).FindAllString(string(a.Body), -1) {
			told[key]++
		}
		if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("the header of %v is %v", a, a.Header)
		}
	}
	want := map[string]int{}
	for _, key := range v.keys {
		want[key] = 1
	}
	delete(want, v.Operator)
	delete(told, "ca_0123456789abcdef0123456789abcdef") // the example in GET /skill
	if !maps.Equal(told, want) {
		t.Errorf("the keys were told so often: %v, want %v", told, want)
	}
}

// G-10: a key is refused for everything it does not belong to.
func TestKeysOfOthers(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice, bob := f.register("alice@b"), f.register("bob@b")
	trace := f.send(alice, "alice@b", "bob@b", "hello").text("trace_id")
	f.history(bob, "")
	session := func(key string) string {
		t.Helper()
		a := f.want(f.post("/agent/session", key, nil), 200, "")
		token := a.text("session_token")
		if !regexp.MustCompile(`^cs_[0-9a-f]{32}$`).MatchString(token) || a.data("expires_in_seconds") != 300. {
			t.Errorf("the session is %v", a)
		}
		return token
	}
	// An agent's key for another agent.
	f.want(f.remove("/agents/bob@b", alice), 403, "ERR_FORBIDDEN")
	f.want(f.rotate("bob@b", alice), 409, "ERR_AGENT_ID_TAKEN")
	f.want(f.post("/messages", alice, messageTo("alice@b", "bob@b", "x")), 403, "ERR_SENDER_MISMATCH")
	f.want(f.post("/agents", alice, object{"agent_id": "bob@b", "endpoint": "https://x.example"}), 403, "ERR_FORBIDDEN")
	// The operator has no inbox, and does not rotate keys.
	for _, c := range []call{{"GET", "/agent/inbox", "", nil, nil}, {"GET", "/agent/messages", "", nil, nil},
		{"POST", "/agent/session", "", nil, nil}, {"POST", "/agent/ack", "", object{"up_to": 9}, nil}} {
		c.Key = f.Operator
		f.want(f.do(c), 403, "ERR_FORBIDDEN")
	}
	f.want(f.rotate("bob@b", f.Operator), 409, "ERR_AGENT_ID_TAKEN")
	// A session token is for one inbox stream, once, for 5 minutes.
	token := session(bob)
	for _, u := range uses {
		if a := f.use(u, "bob@b", token); a.Status != 401 {
			t.Errorf("%s %s with a session token: %v", u.Method, u.Path, a)
		}
	}
	f.want(f.rotate("bob@b", token), 409, "ERR_AGENT_ID_TAKEN")
	for _, key := range []string{bob, f.Operator, "", "cs_", gateway.NewKey(gateway.HubStream)} {
		f.want(f.get("/agent/inbox?session="+key, ""), 401, "ERR_UNAUTHORIZED")
	}
	frame := f.openPath("/agent/inbox?session="+token, "", nil).frame()
	if !strings.Contains(frame, `"agent_id":"bob@b"`) {
		t.Errorf("the stream of the session begins with %q", frame)
	}
	f.want(f.get("/agent/inbox?session="+token, ""), 401, "ERR_UNAUTHORIZED")
	f.want(f.get("/agent/inbox?session="+token, bob), 401, "ERR_UNAUTHORIZED")
	late, tooLate := session(bob), session(bob)
	f.wait(5*60*1e9 - moment)
	f.openPath("/agent/inbox?session="+late, alice, nil).frame()
	f.wait(moment)
	f.want(f.get("/agent/inbox?session="+tooLate, ""), 401, "ERR_UNAUTHORIZED")

	// G-11: a message of others and an unknown one get the same answer where they cannot be listed.
	ack := func(key string, body object) string {
		t.Helper()
		a := f.want(f.post("/agent/ack", key, body), 200, "")
		return string(a.Body[:strings.Index(string(a.Body), `"metadata"`)])
	}
	unknown := "00000000-0000-4000-8000-000000000000"
	for _, key := range []string{alice, f.register("carol@b")} {
		foreign := ack(key, object{"trace_ids": []string{trace}})
		none := ack(key, object{"trace_ids": []string{unknown, "x", "", trace[1:]}})
		if foreign != none || !strings.Contains(none, `"acknowledged":0`) {
			t.Errorf("a foreign message: %s, an unknown one: %s", foreign, none)
		}
		if all := ack(key, object{"up_to": 1 << 50}); !strings.Contains(all, `"acknowledged":0`) {
			t.Errorf("an agent has confirmed the message of another one: %s", all)
		}
	}
	if states := f.states(alice); states["hello"] != "sent" {
		t.Errorf("the states are %v", states)
	}
	if got := ack(bob, object{"trace_ids": []string{unknown, trace, trace}}); !strings.Contains(got, `"acknowledged":1`) {
		t.Errorf("the receiver has confirmed %s", got)
	}
}
