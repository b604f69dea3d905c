package a2a_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// receiver is a server to which the relay pushes.
type receiver struct {
	events
	url    string
	heads  []http.Header
	status func(n int) int // of the n-th answer, from 1 on
}

// receiver starts a server. status says what it answers; nil: always 200.
func (f *fixture) receiver(status func(n int) int) *receiver {
	l := gatetest.NewPipeListener("")
	r := &receiver{events: events{t: f.t}, url: "http://" + l.Addr().String() + "/push", status: status}
	server := &http.Server{Handler: r}
	go server.Serve(l)
	f.t.Cleanup(func() {
		if err := server.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.heads = append(r.heads, q.Header)
	n, answer := len(r.heads), r.status
	r.mu.Unlock()
	status := 200
	if answer != nil {
		status = answer(n)
	}
	if status == 200 {
		r.mu.Lock()
		r.all = append(r.all, string(body))
		r.mu.Unlock()
	}
	w.WriteHeader(status)
}

// posts returns how many requests came.
func (r *receiver) posts() int {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.heads)
}

// answers changes what the receiver answers.
func (r *receiver) answers(status func(n int) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func always(status int) func(int) int { return func(int) int { return status } }

// pushed sends a message that waits for nothing, with a push configuration. It returns the id of the task.
func (c caller) pushed(content string, push object, more ...any) string {
	c.f.t.Helper()
	return text([]byte(raw(c.ok(c.rpc("SendMessage", object{"message": message(content, more...), "configuration": object{
		"returnImmediately": true, "taskPushNotificationConfig": push}})), "task")), "id")
}

// push makes a push configuration.
func (c caller) push(task, id, url string) {
	c.f.t.Helper()
	c.ok(c.rpc("CreateTaskPushNotificationConfig", object{"taskId": task, "id": id, "url": url}))
}

// push has both token headers, the scheme, and the order of the events, also if the receiver fails. A configuration
// in SendMessage gets the task first. Waiting chunks of an artifact are joined. A-37: no url part is fetched.
func TestPush(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Keys)
		c := caller{agent: a.agent, key: a.newKey("alice")}
		r := f.receiver(func(n int) int { // every second request fails
			if n%2 == 1 {
				return 503
			}
			return 200
		})
		fetched := f.receiver(nil)
		id := c.pushed("hello", object{"url": r.url, "token": "tell-me", "authentication": object{"scheme": "Basic",
			"credentials": "abc="}}, "parts", []object{{"text": "x"}, {"url": fetched.url, "mediaType": "text/plain"}})
		turn := <-a.turns
		f.want(a.progress(turn, chunk("a", "1", false, false), chunk("a", "2", true, false), chunk("b", "x", false, false)), 200, "")
		f.want(a.progress(turn, chunk("b", "y", true, true), chunk("a", "3", true, true), chunk("a", "4", false, false)), 200, "")
		a.end("success", `"done"`)
		time.Sleep(time.Minute)
		r.want("the pushes", false, "task SUBMITTED", "WORKING", "a 1+2 false false", "b x+y false true", "a 3 true true", "a 4 false false",
			"result done false true", "COMPLETED")
		if text([]byte(r.all[0]), "task", "id") != id || text([]byte(r.all[1]), "statusUpdate", "contextId") == "" {
			t.Errorf("the first pushes are %s and %s", r.all[0], r.all[1])
		}
		for n, h := range r.heads {
			if h.Get("Content-Type") != "application/a2a+json" || h.Get("Authorization") != "Basic abc=" ||
				h.Get("A2A-Notification-Token") != "tell-me" || h.Get("X-A2A-Notification-Token") != "tell-me" ||
				(n%2 == 1) != (n > 0 && h.Get("Idempotency-Key") == r.heads[n-1].Get("Idempotency-Key")) {
				t.Errorf("push %d has the headers %v", n, h)
			}
		}
		if fetched.posts() != 0 {
			t.Error("the relay has fetched a part")
		}
	})
}

// later events are pushed to a configuration of CreateTaskPushNotificationConfig. DELETE stops it.
func TestPushOfTask(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Keys)
		c := caller{agent: a.agent, key: a.newKey("alice")}
		id := text(c.sayAtOnce("hello"), "id")
		turn := <-a.turns
		one, two := f.receiver(nil), f.receiver(nil)
		c.push(id, "one", one.url)
		if got := c.post("/tasks/"+id+"/pushNotificationConfigs", object{"id": "two", "url": two.url}); got.Status != 200 {
			t.Fatal(got)
		}
		f.want(a.progress(turn, chunk("a", "1", false, false)), 200, "")
		one.want("before DELETE", false, "a 1 false false")
		if got := c.send("DELETE", "/tasks/"+id+"/pushNotificationConfigs/one", nil); got.Status != 200 || strings.TrimSpace(string(got.Body)) != "{}" {
			t.Error(got)
		}
		a.end("input-required", "null")
		second := f.receiver(nil)
		c.pushed("more", object{"id": "three", "url": second.url}, "taskId", id)
		<-a.turns
		a.end("success", "null")
		one.want("after DELETE", false, "a 1 false false")
		two.want("the other one", false, "a 1 false false", "INPUT_REQUIRED", "SUBMITTED", "WORKING", "COMPLETED")
		second.want("that of the second message", false, "task SUBMITTED", "WORKING", "COMPLETED")
		if one.heads[0].Get("Authorization") != "" || one.heads[0].Get("A2A-Notification-Token") != "" {
			t.Errorf("the headers are %v", one.heads[0])
		}
		late := f.receiver(nil) // also a terminal task takes one
		c.push(id, "late", late.url)
	})
}

// A-2, §5: configurations are read, listed, replaced and deleted, in both bindings.
func TestPushConfigurations(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		c := caller{agent: a, key: a.newKey("alice")}
		id := text(c.sayAtOnce("hello"), "id")
		path := "/tasks/" + id + "/pushNotificationConfigs"
		made := c.ok(c.rpc("CreateTaskPushNotificationConfig", object{"taskId": id, "url": "https://a.example/1", "token": "t"}))
		own := text(made, "id")
		if !strings.HasPrefix(own, "pc_") || len(own) != 29 {
			t.Errorf("the relay chooses %s", made)
		}
		if got := c.send("GET", path+"/"+own, nil); strings.TrimSpace(string(got.Body)) != string(made) {
			t.Errorf("%v, want %s", got, made)
		}
		second := object{"id": "mine", "url": "https://a.example/2", "authentication": object{"scheme": "Bearer", "credentials": "k"}}
		if got := c.post(path, second); got.Status != 200 || text(got.Body, "authentication", "credentials") != "k" {
			t.Error(got)
		}
		c.push(id, "mine", "https://a.example/3")
		list := c.ok(c.rpc("ListTaskPushNotificationConfigs", object{"taskId": id}))
		want := fmt.Sprintf(`{"configs":[%s,{"id":"mine","taskId":%q,"url":"https://a.example/3"}],"nextPageToken":""}`, made, id)
		if rest := c.send("GET", path+"/", nil); string(list) != want || strings.TrimSpace(string(rest.Body)) != want {
			t.Errorf("the lists are %s and %v, want %s", list, rest, want)
		}
		for range 2 {
			if got := c.ok(c.rpc("DeleteTaskPushNotificationConfig", object{"taskId": id, "id": "mine"})); string(got) != "{}" {
				t.Errorf("DELETE answers %s", got)
			}
		}
		c.refused(c.rpc("GetTaskPushNotificationConfig", object{"taskId": id, "id": "mine"}), wire.TaskNotFound)
		for i := range 9 {
			c.push(id, fmt.Sprint(i), "https://a.example/")
		}
		if got := c.post(path, object{"url": "https://a.example/"}); got.Status != 429 || text(got.Body, "error", "status") != "RESOURCE_EXHAUSTED" {
			t.Errorf("the 11th: %v", got)
		}
		c.push(id, "0", "https://b.example/")
	})
}

// A-37, §5: a URL that the relay must not call is refused before a task exists, and so are texts that no header can have.
func TestPushIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		c := caller{agent: f.agent(wire.Public)}
		for _, test := range []struct {
			push  object
			field string
		}{
			{object{"url": "http://a.example/"}, "url"}, {object{"url": "https://10.0.0.1/"}, "url"}, {object{"url": "https://localhost/"}, "url"},
			{object{"url": "https://[::1]/"}, "url"}, {object{"url": gatetest.PublicURL + "/a2a/agents"}, "url"}, {object{"url": "x"}, "url"},
			{object{"token": "t"}, "url"}, {object{"url": "https://a.example/#x"}, "url"},
			{object{"url": "https://a.example/", "token": "a\nb"}, "token"},
			{object{"url": "https://a.example/", "id": strings.Repeat("x", 129)}, "id"},
			{object{"url": "https://a.example/", "authentication": object{"scheme": "a b"}}, "authentication.scheme"},
			{object{"url": "https://a.example/", "authentication": object{"scheme": "a", "credentials": "é"}}, "authentication.credentials"},
		} {
			const at = "configuration.taskPushNotificationConfig."
			got := c.rpc("SendMessage", object{"message": message("x"), "configuration": object{"taskPushNotificationConfig": test.push}})
			if c.refused(got, wire.BadParams); len(got.Error.Data) != 1 || text(got.Error.Data[0], "fieldViolations", 0, "field") != at+test.field {
				t.Errorf("%v: %+v, want %s", test.push, got.Error, test.field)
			}
		}
		f.wantRows(t, "a2a_task", 0)
	})
}

// §5, Push: an anonymous caller has one configuration, and 60 POSTs a minute to a host. All of them come at last.
func TestAnonymousPush(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Public)
		c := caller{agent: a.agent}
		r := f.receiver(nil)
		id := c.pushed("hello", object{"id": "one", "url": r.url})
		got := c.post("/tasks/"+id+"/pushNotificationConfigs", object{"id": "two", "url": r.url})
		if got.Status != 429 {
			t.Errorf("the second configuration: %v", got)
		}
		turn := <-a.turns
		for range 80 {
			f.want(a.progress(turn, state(wire.Working)), 200, "")
		}
		time.Sleep(time.Minute - time.Second)
		if n := r.posts(); n < 50 || n > 60 {
			t.Errorf("%d posts in the first minute", n)
		}
		a.end("success", "null")
		time.Sleep(time.Minute)
		if all, _ := r.got(); len(all) != 83 || all[82] != "COMPLETED" {
			t.Errorf("the pushes are %q", all)
		}
	})
}

// §2: the deletion of a key, or of an endpoint, ends pushes at once.
func TestPushEndsWithCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		alice, bob := caller{agent: a, key: a.newKey("alice")}, caller{agent: a, key: a.newKey("bob")}
		one, two := f.receiver(always(503)), f.receiver(always(503))
		alice.pushed("hello", object{"url": one.url})
		bob.pushed("hello", object{"url": two.url})
		time.Sleep(time.Minute)
		f.want(f.signed(a.key, "DELETE", a.path+"/keys/alice", nil), 200, "")
		n := one.posts()
		time.Sleep(10 * time.Minute)
		if one.posts() != n || n == 0 {
			t.Errorf("%d posts before the key is deleted, %d after that", n, one.posts())
		}
		f.want(f.signed(a.key, "DELETE", a.path+"/endpoint", nil), 200, "")
		n = two.posts()
		time.Sleep(20 * time.Minute)
		if two.posts() != n || n < 8 {
			t.Errorf("%d posts before the endpoint is deleted, %d after that", n, two.posts())
		}
		f.wantRows(t, "a2a_push", 0)
		f.wantRows(t, "gate_outbox", 0)
	})
}

// what waits survives a restart, and goes to the new URL of a configuration that is replaced, also if the old one
// refuses it at that moment. An event that is refused frees the lane (G-18).
func TestPushWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Keys)
		c := caller{agent: a.agent, key: a.newKey("alice")}
		down, up := f.receiver(always(503)), f.receiver(nil)
		id := c.pushed("hello", object{"id": "p", "url": down.url})
		turn := <-a.turns
		time.Sleep(10 * time.Minute)
		a.stop()
		f.Restart()
		a.serveAgain()
		<-a.turns
		f.want(a.progress(turn, chunk("a", "1", false, false)), 200, "")
		if n := down.posts(); n < 5 {
			t.Errorf("%d posts to the server that is down", n)
		}
		c.push(id, "p", up.url)
		up.want("the new URL", false, "task SUBMITTED", "WORKING", "a 1 false false")
		up.answers(always(404))
		f.want(a.progress(turn, chunk("a", "2", true, false)), 200, "")
		up.posts()
		release := make(chan struct{})
		up.answers(func(int) int { <-release; return 404 })
		f.want(a.progress(turn, chunk("a", "3", true, false)), 200, "")
		up.posts()
		other := f.receiver(nil)
		c.push(id, "p", other.url)
		close(release)
		a.end("success", "null")
		other.want("the last URL", false, "a 3 true false", "COMPLETED")
		up.want("the URL before", false, "task SUBMITTED", "WORKING", "a 1 false false")
	})
}

// G-18, G-20: an event that is 24 hours old is not sent any more, also if it had to wait for others.
func TestOldPushes(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.stepper(wire.Keys)
		c := caller{agent: a.agent, key: a.newKey("alice")}
		r := f.receiver(always(503))
		id := text(c.sayAtOnce("hello"), "id")
		turn := <-a.turns
		c.push(id, "p", r.url)
		f.want(a.progress(turn, chunk("a", "1", false, false)), 200, "")
		f.pass(time.Hour)
		f.want(a.progress(turn, chunk("b", "2", false, false)), 200, "")
		f.pass(11 * time.Hour)
		f.want(a.progress(turn, chunk("c", "3", false, false)), 200, "")
		f.pass(12*time.Hour + 30*time.Minute) // the first one dies, and so does the turn
		f.pass(time.Hour)                     // the second one dies
		f.pass(12 * time.Hour)                // the third one dies
		r.answers(nil)
		f.pass(2 * time.Hour)
		r.want("at last", false, "FAILED")
		f.wantRows(t, "gate_outbox", 3)
	})
}

// no secret of a push is in a log or in a clear row. A-47: retention removes its rows.
func TestPushSecrets(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(echo)
		r := f.receiver(always(503))
		caller{agent: a}.pushed("hello", object{"url": r.url + "/secret-path", "token": "secret-token",
			"authentication": object{"scheme": "Bearer", "credentials": "secret-key"}})
		time.Sleep(time.Minute)
		if r.posts() == 0 {
			t.Error("nothing was pushed")
		}
		places := map[string]string{"the log": f.Logged()}
		for _, name := range engine.Files(t, f.Path) {
			content, err := os.ReadFile(name)
			f.must(err)
			places[name] = string(content)
		}
		for place, content := range places {
			for _, secret := range []string{"secret-path", "secret-token", "secret-key"} {
				if strings.Contains(content, secret) {
					t.Errorf("%s has %s", place, secret)
				}
			}
		}
		f.pass(7*24*time.Hour + time.Minute)
		f.wantRows(t, "a2a_push", 0)
	})
}
