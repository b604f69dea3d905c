package hub_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/relay"
)

const day = 24 * time.Hour

// Times of registrations.
const (
	rotation = 10 * time.Minute // in which the old key can repeat a rotation
	reserved = 30 * day         // a deleted address
	unused   = 90 * day         // then a registration expires
)

// rotate registers an address again with a key, and returns the answer.
func (f *fixture) rotate(address, key string, more ...object) answer {
	f.t.Helper()
	body := registrationOf(address)
	for _, m := range more {
		body = with(body, m)
	}
	return f.post("/register", key, body)
}

// rotated registers an address again with its key, and returns the new key.
func (f *fixture) rotated(address, key string) string {
	f.t.Helper()
	return f.want(f.rotate(address, key), 200, "").text("api_key")
}

// works reports whether a key has all rights of its agent.
func (f *fixture) works(key string) bool {
	f.t.Helper()
	a := f.get("/agent/messages", key)
	if a.Status != 200 {
		f.want(a, 401, "ERR_UNAUTHORIZED")
	}
	return a.Status == 200
}

// wantWorks checks which keys work.
func (f *fixture) wantWorks(keys map[string]bool) {
	f.t.Helper()
	for key, want := range keys {
		if f.works(key) != want {
			f.t.Errorf("the key %s works: %v, want %v", key, !want, want)
		}
	}
}

// H-3: POST /register answers 201, 200 with a new key, and 409.
func TestRegister(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	first := f.want(f.post("/register", "", registrationOf("a@b")), 201, "")
	key := first.text("api_key")
	if !regexp.MustCompile(`^ca_[0-9a-f]{32}$`).MatchString(key) {
		t.Errorf("the key is %q", key)
	}
	form := regexp.MustCompile(`^\{"success":true,"data":\{"agent_id":"a@b","api_key":"ca_[0-9a-f]{32}",` +
		`"registration":\{"agent_id":"a@b",` +
		`"agent_card":\{"card_version":"0.3","supported_languages":\["en"\],"user_culture":"en"\},` +
		`"registered_at":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"\}\},"metadata":\{"timestamp":"[^"]*\d\d\.\d{3}Z"\}\}\n$`)
	if !form.Match(first.Body) {
		t.Errorf("the answer is %v", first)
	}
	other := f.register("other@b")
	for name, header := range map[string]map[string]string{
		"no key": nil, "an unknown key": {"Authorization": "Bearer ca_0123456789abcdef0123456789abcdef"},
		"the key of another agent": {"Authorization": "Bearer " + other},
		"the key of the operator":  {"Authorization": "Bearer " + f.Operator},
		"another scheme":           {"Authorization": "Basic " + key},
		"the key in capitals":      {"Authorization": "Bearer " + strings.ToUpper(key)},
	} {
		body := with(registrationOf("a@b"), object{"endpoint": "https://x.example/"})
		a := f.do(call{"POST", "/register", "", body, header})
		if a.Status != 409 || a.code() != "ERR_AGENT_ID_TAKEN" {
			t.Errorf("%s: %v", name, a)
		}
		// For a free id the header is ignored.
		free := strings.ReplaceAll(name, " ", "-") + "@b"
		if a := f.do(call{"POST", "/register", "", registrationOf(free), header}); a.Status != 201 {
			t.Errorf("%s, a free id: %v", name, a)
		}
	}
	f.wantWorks(map[string]bool{key: true})
	// The record is replaced as a whole.
	card := object{"card_version": "0.3", "user_culture": "ja", "supported_languages": []string{"ja", "en"}}
	second := f.want(f.rotate("a@b", key, object{"agent_card": card, "endpoint": "https://agent.example/in"}), 200, "")
	third := f.want(f.get("/agents/a@b", second.text("api_key")), 200, "")
	replaced := fmt.Sprintf("%v %v", third.data("agent_card"), third.data("endpoint"))
	if second.text("api_key") == key ||
		replaced != "map[card_version:0.3 supported_languages:[ja en] user_culture:ja] https://agent.example/in" {
		t.Errorf("the agent is %v after %v", third, second)
	}
	fourth := f.want(f.rotate("a@b", second.text("api_key")), 200, "")
	if registration, _ := fourth.data("registration").(object); registration["endpoint"] != nil {
		t.Errorf("the old endpoint is still there: %v", fourth)
	}
}

// uses are requests that an agent may make with its key. {id} stands for its address.
var uses = []call{
	{"GET", "/agents", "", nil, nil}, {"GET", "/agents/{id}", "", nil, nil}, {"GET", "/discover", "", nil, nil},
	{"POST", "/agent/session", "", nil, nil}, {"GET", "/agent/messages", "", nil, nil},
	{"POST", "/agent/ack", "", object{"up_to": 0}, nil}, {"POST", "/messages", "", nil, nil},
	{"GET", "/agent/inbox", "", nil, map[string]string{"Last-Event-ID": "x"}}, // 400, but the key is checked before
	{"POST", "/agents", "", object{}, nil},                                    // 403
	{"DELETE", "/agents/{id}", "", nil, nil},
}

// use makes one of the uses.
func (f *fixture) use(u call, address, key string) answer {
	f.t.Helper()
	u.Path, u.Key = strings.ReplaceAll(u.Path, "{id}", address), key
	if u.Path == "/messages" {
		u.Body = messageTo(address, address, "hi")
	}
	return f.do(u)
}

// H-4: after a rotation the old key does nothing but repeat the rotation.
func TestOldKey(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	old := f.register("a@b")
	i := f.open(old, nil)
	i.frame()
	session := f.want(f.post("/agent/session", old, nil), 200, "").text("session_token")
	key := f.rotated("a@b", old)
	if frame := i.frame(); frame != "event: closed\ndata: {\"reason\":\"rotated\"}\n" {
		t.Errorf("the stream of the old key ends with %q", frame)
	}
	f.want(f.get("/agent/inbox?session="+session, ""), 401, "ERR_UNAUTHORIZED")
	for _, u := range uses {
		if a := f.use(u, "a@b", old); a.Status != 401 || a.code() != "ERR_UNAUTHORIZED" {
			t.Errorf("%s %s with the old key: %v", u.Method, u.Path, a)
		}
	}
	f.register("c@d")
	f.want(f.rotate("c@d", old), 409, "ERR_AGENT_ID_TAKEN")
	// A repeated rotation replaces the new key, which nobody has used.
	again := f.rotated("a@b", old)
	last := f.rotated("a@b", old)
	f.wantWorks(map[string]bool{old: false, key: false, again: false, last: true})
	// The new key was used.
	f.want(f.rotate("a@b", old), 409, "ERR_AGENT_ID_TAKEN")
	f.wantWorks(map[string]bool{old: false, last: true})
}

// H-4: each use of the new key ends the time in which the old one can repeat the rotation. A rotation is a use, too.
func TestFirstUseOfNewKey(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	for n, u := range uses {
		address := fmt.Sprintf("a%d@b", n)
		old := f.register(address)
		key := f.rotated(address, old)
		if a := f.use(u, address, key); a.Status == 401 {
			t.Errorf("%s %s: %v", u.Method, u.Path, a)
		}
		if a := f.rotate(address, old); a.Status != 409 {
			t.Errorf("after %s %s the old key can still repeat the rotation: %v", u.Method, u.Path, a)
		}
	}
	old := f.register("x@b")
	second := f.rotated("x@b", old)
	third := f.rotated("x@b", second)
	f.want(f.rotate("x@b", old), 409, "ERR_AGENT_ID_TAKEN")
	fourth := f.rotated("x@b", second)
	f.wantWorks(map[string]bool{old: false, second: false, third: false, fourth: true})
}

// H-4: the old key can repeat the rotation for 10 minutes, by the clock of the relay. Repeats do not prolong that.
func TestRotationTime(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	old := f.register("a@b")
	f.rotated("a@b", old)
	f.wait(rotation - moment)
	key := f.rotated("a@b", old)
	f.Restart() // forgets nothing
	f.wait(moment)
	f.want(f.rotate("a@b", old), 409, "ERR_AGENT_ID_TAKEN")
	f.wantWorks(map[string]bool{old: false, key: true})
}

// H-5: only the agent and the operator can DELETE an agent. H-6: a repeated DELETE is 200 false.
func TestDelete(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	other := f.register("other@b")
	old := f.register("a@b")
	key := f.rotated("a@b", old)
	session := f.want(f.post("/agent/session", key, nil), 200, "").text("session_token")
	remove := func(path, key string) answer { return f.remove(path, key) }
	for _, c := range []struct {
		key    string
		status int
		code   string
	}{{"", 401, "ERR_UNAUTHORIZED"}, {old, 401, "ERR_UNAUTHORIZED"}, {session, 401, "ERR_UNAUTHORIZED"},
		{"x", 401, "ERR_UNAUTHORIZED"}, {other, 403, "ERR_FORBIDDEN"}} {
		f.want(remove("/agents/a@b", c.key), c.status, c.code)
	}
	f.send(other, "other@b", "a@b", "1")
	i := f.open(key, nil)
	i.message()
	i.close()
	eventually(t, "the stream is closed", func() bool {
		return f.get("/health", "").data("inbox_connections") == 0.
	})
	f.send(other, "other@b", "a@b", "2")
	i = f.open(other, nil)
	i.frame()
	session = f.want(f.post("/agent/session", key, nil), 200, "").text("session_token")

	if a := f.want(remove("/agents/a@b", key), 200, ""); !strings.Contains(string(a.Body),
		`"data":{"deleted":true,"agent_id":"a@b"},`) {
		t.Errorf("the answer is %v", a)
	}
	for _, by := range []string{key, f.Operator} {
		if a := f.want(remove("/agents/a@b", by), 200, ""); a.data("deleted") != false || a.text("agent_id") != "a@b" {
			t.Errorf("the repeated DELETE: %v", a)
		}
	}
	// The key does nothing else.
	for _, u := range uses[:len(uses)-1] {
		if a := f.use(u, "a@b", key); a.Status != 401 {
			t.Errorf("%s %s with the key of a deleted agent: %v", u.Method, u.Path, a)
		}
	}
	f.want(remove("/agents/other@b", key), 401, "ERR_UNAUTHORIZED")
	f.want(f.get("/agent/inbox?session="+session, ""), 401, "ERR_UNAUTHORIZED")
	f.want(f.get("/agents/a@b", ""), 404, "ERR_AGENT_NOT_FOUND")
	f.want(f.post("/messages", other, messageTo("a@b", "other@b", "3")), 404, "ERR_AGENT_NOT_FOUND")
	// What was queued has failed; what was handed out has not.
	rows := f.history(other, "")
	if rows[0]["state"] != "sent" || rows[1]["state"] != "failed" || rows[1]["error_code"] != "ERR_AGENT_NOT_FOUND" {
		t.Errorf("the sender sees %v", rows)
	}
	// The operator deletes an agent that has an open stream.
	f.want(remove("/agents/other@b", f.Operator), 200, "")
	if frame := i.frame(); frame != "event: closed\ndata: {\"reason\":\"deleted\"}\n" {
		t.Errorf("the stream of the deleted agent ends with %q", frame)
	}
	f.want(remove("/agents/nobody@b", key), 401, "ERR_UNAUTHORIZED")
	third := f.register("third@b")
	f.want(remove("/agents/nobody@b", third), 404, "ERR_AGENT_NOT_FOUND")
	// H-6 and the key's other right end after 30 days.
	f.wait(reserved - moment)
	f.want(remove("/agents/a@b", key), 200, "")
	f.wait(moment)
	f.want(remove("/agents/a@b", key), 401, "ERR_UNAUTHORIZED")
}

// A DELETE counts as one request, even if the store runs its operation twice.
func TestDeleteCountsOnce(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		for n := range 41 {
			a := p.do(call{"DELETE", "/agents/" + bob, p.bob, nil, nil})
			if n < 40 {
				p.want(a, 200, "")
			} else {
				p.wantLimit(a, "ERR_RATE_LIMITED", "requests")
			}
		}
	}, func(f *fixture) {
		f.From = "192.0.2.1:9"
		f.Limits.PostsPerAddress.PerSecond = relay.Unlimited
	})
}

// H-7: a deleted id is reserved for 30 days. Only its key and the operator can register it again.
func TestReserved(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	other := f.register("other@b")
	keys := map[string]string{}
	for _, id := range []string{"own@b", "by-operator@b", "by-operator-2@b", "late@b", "swept@b"} {
		old := f.register(id)
		keys[id] = f.rotated(id, old)
		f.want(f.remove("/agents/"+id, keys[id]), 200, "")
		for _, key := range []string{"", other, old, "ca_0123456789abcdef0123456789abcdef"} {
			f.want(f.rotate(id, key), 409, "ERR_AGENT_ID_TAKEN")
		}
	}
	f.want(f.rotate("late@b", keys["own@b"]), 409, "ERR_AGENT_ID_TAKEN")
	own := f.want(f.rotate("own@b", keys["own@b"]), 201, "").text("api_key")
	f.want(f.rotate("by-operator@b", f.Operator), 201, "")
	f.want(f.post("/agents", f.Operator, object{"agent_id": "by-operator-2@b", "endpoint": "https://a.example"}), 201, "")
	// The old keys are of no use now.
	for _, id := range []string{"own@b", "by-operator@b", "by-operator-2@b"} {
		f.want(f.remove("/agents/"+id, keys[id]), 401, "ERR_UNAUTHORIZED")
		f.want(f.rotate(id, keys[id]), 409, "ERR_AGENT_ID_TAKEN")
	}
	f.wantWorks(map[string]bool{own: true})
	f.send(own, "own@b", "other@b", "so that these two are not idle")
	f.wait(reserved - moment)
	f.want(f.rotate("late@b", ""), 409, "ERR_AGENT_ID_TAKEN")
	f.wait(moment)
	f.want(f.rotate("late@b", ""), 201, "")
	f.hub.SweepNow(t.Context())
	f.want(f.rotate("swept@b", other), 201, "")
	f.wantWorks(map[string]bool{own: true, other: true})
}

// H-8: an id that is registered again has an empty history, and gets nothing that was sent to the agent before.
func TestRegisteredAgain(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	other := f.register("other@b")
	old := f.register("a@b")
	f.send(other, "other@b", "a@b", "to the old agent")
	f.send(old, "a@b", "other@b", "from the old agent")
	f.want(f.remove("/agents/a@b", old), 200, "")
	key := f.want(f.rotate("a@b", old), 201, "").text("api_key")
	for _, query := range []string{"", "?since=0", "?since=1970-01-01T00:00:00Z", "?limit=5"} {
		if rows := f.history(key, query); len(rows) != 0 {
			t.Errorf("GET /agent/messages%s: the new agent sees %v", query, rows)
		}
	}
	f.send(other, "other@b", "a@b", "to the new agent")
	if text := f.open(key, map[string]string{"Last-Event-ID": "0"}).message().text(); text != "to the new agent" {
		t.Errorf("the stream begins with %q", text)
	}
	if a := f.want(f.post("/agent/ack", key, object{"up_to": 1 << 40}), 200, ""); a.data("acknowledged") != 1. {
		t.Errorf("the new agent confirms more than its own message: %v", a)
	}
	want := map[string]string{"to the old agent": "failed", "to the new agent": "delivered"}
	states := f.states(other)
	delete(states, "from the old agent") // it was queued, and other@b reads it now
	if fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("the sender sees %v, want %v", states, want)
	}
}

// TestOperatorRegisters checks POST /agents.
func TestOperatorRegisters(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	post := func(body object) answer { return f.post("/agents", f.Operator, body) }
	body := with(registrationOf("a@b"), object{"endpoint": "https://agent.example/in"})
	a := f.want(post(body), 201, "")
	key := a.text("api_key")
	if a.text("agent_id") != "a@b" || a.text("endpoint") != "https://agent.example/in" || a.data("agent_card") == nil ||
		a.text("registered_at") == "" || !f.works(key) {
		t.Errorf("the answer is %v", a)
	}
	f.want(post(registrationOf("c@b")), 400, "ERR_VALIDATION") // no endpoint
	i := f.open(key, nil)
	i.frame()
	a = f.want(post(object{"agent_id": "a@b", "endpoint": "https://agent.example/new"}), 200, "")
	if a.data("api_key") != nil || a.data("agent_card") != nil || a.text("endpoint") != "https://agent.example/new" {
		t.Errorf("the answer is %v", a)
	}
	f.send(key, "a@b", "a@b", "the stream and the key are as before")
	i.message()
	for _, endpoint := range []any{"", "agent.example", "http://agent.example/", "https://10.0.0.1/", "https://localhost/",
		"https://agent.example:25/", "https://u:p@agent.example/", "https://relay.example/hub/messages"} {
		for _, path := range []string{"/agents", "/register"} {
			f.want(f.post(path, f.Operator, with(registrationOf("c@b"), object{"endpoint": endpoint})), 400,
				"ERR_ENDPOINT_BLOCKED")
		}
	}
}
