package client_test

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// fakeGateways is a relay with all gateways. Those but the channel gateway answer with what a test says.
type fakeGateways struct {
	*fakeChannel
	answers map[string][]string // by method and path: "STATUS BODY" for one call after the other; the last one stays
	did     []string            // method, path and body of all calls, in order
}

func newFakeGateways() *fakeGateways {
	f := &fakeGateways{newFakeChannel(), map[string][]string{
		"GET /hub/.well-known/chorus.json": {`200 {"server_name":"relay.example"}`},
		"POST /hub/register":               {`201 {"success":true,"data":{}}`},
		"POST /jobs/register":              {`201 {"status":"registered","agent_id":"7f9c24e8-3b12-4fef-91e0-6c4bba1a1b7c"}`},
		"PUT /a2a/DID/endpoint":            {`200 {"ok":true}`},
		"POST /a2a/DID/keys":               {`201 {"ok":true,"name":"k","key":"aa_secret"}`},
	}, nil}
	gateways := f.document["gateways"].(map[string]any)
	for _, name := range []string{"hub", "jobs", "a2a"} {
		gateways[name] = map[string]any{"url": f.relay.URL + "/" + name}
	}
	return f
}

func (f *fakeGateways) RoundTrip(r *http.Request) (*http.Response, error) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if !slices.Contains([]string{"hub", "jobs", "a2a"}, name) {
		return f.fakeChannel.RoundTrip(r)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	path := r.URL.Path
	if name == "a2a" {
		path = "/a2a/DID" + path[strings.LastIndex(path, "/"):]
	}
	call := r.Method + " " + path
	if r.Method != http.MethodGet {
		if _, refused := f.verify(r, body); refused != nil {
			return refused, nil
		}
		f.did = append(f.did, strings.TrimSpace(call+" "+string(body)))
	}
	answers := f.answers[call]
	if len(answers) == 0 {
		answers = []string{`200 {"ok":true}`}
	}
	if len(answers) > 1 {
		f.answers[call] = answers[1:]
	}
	status, text, _ := strings.Cut(answers[0], " ")
	return response(map[string]int{"200": 200, "201": 201, "404": 404, "409": 409, "422": 422, "401": 401}[status], text), nil
}

// calls returns the methods and the paths of the calls since the last time.
func (f *fakeGateways) made() (calls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.did {
		calls = append(calls, strings.Join(strings.SplitN(call, " ", 3)[:2], " "))
	}
	f.did = nil
	return calls
}

// body returns the body of the last call of this path, decoded.
func (f *fakeGateways) body(t *testing.T, call string) (body map[string]any) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, made := range slices.Backward(f.did) {
		if text, ok := strings.CutPrefix(made, call+" "); ok {
			if err := json.Unmarshal([]byte(text), &body); err != nil {
				t.Fatal(err)
			}
			return body
		}
	}
	t.Fatalf("no call %s among %q", call, f.did)
	return nil
}

func (f *fakeGateways) connect(t *testing.T, key envelope.Signer) *client.Client {
	return newClientVia(t, f.relay.URL, key, f.RoundTrip)
}

func openState(t *testing.T, name string, me didkey.DID) *client.State {
	t.Helper()
	s, err := client.OpenState(name, me)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// joinManifest has an intent that no registry can name, and one that only gateways send.
var joinManifest = envelope.Manifest{ID: "cap", Name: "Übersetzer Bot", Intents: []envelope.Intent{
	{ID: "text.upper"}, {ID: "mit leer"}, {ID: client.ChannelIntent}}}

// TestJoin is B-14: the agent registers once at each gateway, also over a restart, and leaves all of them.
func TestJoin(t *testing.T) {
	f, key := newFakeGateways(), newKey(t)
	file := filepath.Join(t.TempDir(), "state")
	c := f.connect(t, key)
	o := client.JoinOptions{Manifest: joinManifest, Credits: 0.1, State: openState(t, file, key.DID())}
	places, err := c.Join(t.Context(), o)
	if err != nil || len(places) != 4 {
		t.Fatalf("%+v, %v", places, err)
	}
	hub := f.body(t, "POST /hub/register")
	card := hub["agent_card"].(map[string]any)
	if hub["agent_id"] != "bersetzer-Bot@relay.example" || hub["endpoint"] != "agora:"+string(key.DID()) || card["user_culture"] != "en" {
		t.Errorf("the hub got %v", hub)
	}
	jobs := f.body(t, "POST /jobs/register")
	skills := jobs["skills"].([]any)
	if len(skills) != 1 || skills[0].(map[string]any)["skill_name"] != "text.upper" || skills[0].(map[string]any)["cost_per_call"] != 0.1 ||
		jobs["owner_id"] != string(key.DID()) || jobs["api_endpoint"] != "agora:"+string(key.DID()) || len(jobs["agent_id"].(string)) != 36 {
		t.Errorf("the registry got %v", jobs)
	}
	endpoint := f.body(t, "PUT /a2a/DID/endpoint")
	if endpoint["access"] != "keys" || endpoint["mode"] != "message" || endpoint["card"] == nil {
		t.Errorf("the A2A gateway got %v", endpoint)
	}
	for i, want := range []client.Place{
		{Protocol: "hub", Address: "bersetzer-Bot@relay.example"},
		{Protocol: "jobs", Address: "7f9c24e8-3b12-4fef-91e0-6c4bba1a1b7c", Skipped: []string{"mit leer"}},
		{Protocol: "channel", Address: f.relay.URL + "/channel/inbox/sk_a"},
		{Protocol: "a2a", Address: f.relay.URL + "/a2a/" + key.DID().Multibase() + "/", Key: "aa_secret"},
	} {
		p := places[i]
		if p.Relay != f.relay.URL || p.Protocol != want.Protocol || p.Address != want.Address || p.Key != want.Key ||
			!slices.Equal(p.Skipped, want.Skipped) {
			t.Errorf("the place is %+v, want %+v", p, want)
		}
	}
	f.made()

	if err := o.State.Close(); err != nil {
		t.Fatal(err)
	}
	o.State = openState(t, file, key.DID())
	again, err := c.Join(t.Context(), o)
	if calls := f.made(); err != nil || len(calls) > 0 || !slices.EqualFunc(again, places, samePlace) {
		t.Errorf("after a restart: %+v, %v, calls %q", again, err, calls)
	}
	o.Credits, o.Name = 0.2, "bob"
	changed, err := c.Join(t.Context(), o)
	if err != nil || !slices.EqualFunc(changed[1:], places[1:], samePlace) {
		t.Fatalf("a changed agent: %+v, %v, want the same inbox and key", changed, err)
	}
	if told := client.Announced(changed); len(told) != 3 || slices.ContainsFunc(told, func(a envelope.Address) bool {
		return strings.Contains(a.Address, "sk_")
	}) {
		t.Errorf("others are told %+v", told)
	}
	want := []string{"POST /hub/register", "DELETE /hub/agents/bersetzer-Bot@relay.example", "POST /jobs/register", "PUT /a2a/DID/endpoint"}
	if calls := f.made(); !slices.Equal(calls, want) {
		t.Errorf("a changed agent: calls %q, want %q", calls, want)
	}
	f.answers["DELETE /hub/agents/bob@relay.example"] = []string{`404 {"success":false,"error":{"code":"ERR_AGENT_NOT_FOUND","message":"no"}}`}
	left, err := c.Leave(t.Context(), o.State)
	want = []string{"DELETE /hub/agents/bob@relay.example", "DELETE /jobs/agents/7f9c24e8-3b12-4fef-91e0-6c4bba1a1b7c", "DELETE /a2a/DID/endpoint"}
	if calls := f.made(); err != nil || len(left) != 4 || !slices.Equal(calls, want) {
		t.Errorf("left %+v, %v, calls %q", left, err, calls)
	}
	if left, err = c.Leave(t.Context(), o.State); err != nil || len(left) > 0 {
		t.Errorf("left again %+v, %v", left, err)
	}
	if inboxes, err := c.Inboxes(t.Context()); err != nil || len(inboxes) > 0 {
		t.Errorf("there are inboxes: %v, %v", inboxes, err)
	}
}

func samePlace(a, b client.Place) bool {
	return a.Relay == b.Relay && a.Protocol == b.Protocol && a.Address == b.Address && a.Key == b.Key
}

// TestJoinTaken is B-14: a name that somebody else has gets six characters of the DID, and an id that somebody else has
// is left to the registry.
func TestJoinTaken(t *testing.T) {
	f, key := newFakeGateways(), newKey(t)
	f.answers["POST /hub/register"] = []string{`409 {"success":false,"error":{"code":"ERR_AGENT_ID_TAKEN","message":"taken"}}`, `200 {"success":true}`}
	f.answers["POST /jobs/register"] = []string{`409 {"detail":"taken"}`, `201 {"agent_id":"x"}`}
	o := client.JoinOptions{Protocols: []string{"hub", "jobs"}, Manifest: joinManifest, Name: "bob"}
	places, err := f.connect(t, key).Join(t.Context(), o)
	want := "bob-" + strings.TrimPrefix(key.DID().Multibase(), "z6Mk")[:6] + "@relay.example"
	if err != nil || places[0].Address != want || places[1].Address != "x" {
		t.Errorf("%+v, %v, want %s", places, err, want)
	}
	if body := f.body(t, "POST /jobs/register"); body["agent_id"] != nil {
		t.Errorf("the registry chooses no id: %v", body)
	}
}

// TestJoinSignsAgain checks that a token that the hub or the registry has seen before is made anew (GATEWAYS §3).
func TestJoinSignsAgain(t *testing.T) {
	f := newFakeGateways()
	f.answers["POST /hub/register"] = []string{`401 {"success":false,"error":{"code":"ERR_UNAUTHORIZED","reason":"used"}}`, `201 {"success":true}`}
	f.answers["POST /jobs/register"] = []string{`401 {"detail":"no","error_code":"UNAUTHORIZED","reason":"used"}`, `201 {"agent_id":"x"}`}
	o := client.JoinOptions{Protocols: []string{"hub", "jobs"}, Manifest: joinManifest}
	if places, err := f.connect(t, newKey(t)).Join(t.Context(), o); err != nil || len(places) != 2 {
		t.Errorf("%+v, %v", places, err)
	}
}

// TestJoinRefusals checks the errors of Join, and that a refusal of each gateway is readable.
func TestJoinRefusals(t *testing.T) {
	for name, test := range map[string]struct{ call, answer, want string }{
		"hub":              {"POST /hub/register", `422 {"success":false,"error":{"code":"ERR_VALIDATION","message":"the name is odd"}}`, "joining hub: ERR_VALIDATION: the name is odd"},
		"jobs":             {"POST /jobs/register", `422 {"detail":[{"msg":"too many"},{"msg":"too dear"}]}`, "joining jobs: 422: too many; too dear"},
		"jobs, in a text":  {"POST /jobs/register", `422 {"detail":"odd","error_code":"ODD"}`, "joining jobs: ODD: odd"},
		"jobs, without id": {"POST /jobs/register", `201 {}`, "no agent_id"},
		"other program":    {"POST /hub/register", `404 <html>`, "not a refusal of a gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeGateways()
			f.answers[test.call] = []string{test.answer}
			_, err := f.connect(t, newKey(t)).Join(t.Context(), client.JoinOptions{Manifest: joinManifest})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	f := newFakeGateways()
	c := f.connect(t, newKey(t))
	if _, err := c.Join(t.Context(), client.JoinOptions{Protocols: []string{"mail"}, Manifest: joinManifest}); err == nil ||
		!strings.Contains(err.Error(), "hub, jobs, channel, a2a") {
		t.Errorf("an unknown protocol: %v", err)
	}
	delete(f.document["gateways"].(map[string]any), "hub")
	c = f.connect(t, newKey(t))
	if _, err := c.Join(t.Context(), client.JoinOptions{Protocols: []string{"hub"}, Manifest: joinManifest}); err != client.ErrNoHub {
		t.Errorf("no hub: %v", err)
	}
}
