package a2a_test

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/a2a"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

// another caller gets, for every operation, the bytes of an unknown task.
func TestTasksOfOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		signer := newKey(t)
		alice := caller{agent: a, key: a.newKey("alice")}
		id := text(alice.sayAtOnce("hello"), "id")
		alice.push(id, "p", "https://a.example/")
		unknown := "tsk_" + strings.Repeat("a", 26)
		for _, c := range []caller{{agent: a, key: a.newKey("bob")}, {agent: a}, {agent: a, did: &signer}} {
			for method, params := range map[string]func(id string) any{
				"GetTask":                          func(id string) any { return object{"id": id} },
				"CancelTask":                       func(id string) any { return object{"id": id} },
				"SubscribeToTask":                  func(id string) any { return object{"id": id} },
				"SendMessage":                      func(id string) any { return object{"message": message("x", "taskId", id)} },
				"CreateTaskPushNotificationConfig": func(id string) any { return object{"taskId": id, "url": "https://a.example/"} },
				"ListTaskPushNotificationConfigs":  func(id string) any { return object{"taskId": id} },
				"GetTaskPushNotificationConfig":    func(id string) any { return object{"taskId": id, "id": "p"} },
				"DeleteTaskPushNotificationConfig": func(id string) any { return object{"taskId": id, "id": "p"} },
			} {
				body := func(id string) object {
					return object{"jsonrpc": "2.0", "id": 1, "method": method, "params": params(id)}
				}
				got, want := c.post("/rpc", body(id)), c.post("/rpc", body(unknown))
				if strings.ReplaceAll(string(got.Body), id, unknown) != string(want.Body) || member(want.Body, "error", "code") != -32001.0 {
					t.Errorf("%s: %v, want %v", method, got, want)
				}
			}
			got, want := c.send("GET", "/tasks/"+id, nil), c.send("GET", "/tasks/"+unknown, nil)
			if strings.ReplaceAll(got.String(), id, unknown) != want.String() || got.Status != 404 {
				t.Errorf("%v, want %v", got, want)
			}
		}
		alice.wantState(alice.task(id), wire.Submitted)
	})
}

// §3: a key of another endpoint is refused, also where nobody needs one, and so is what is no key.
func TestForeignKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a, b := f.agent(wire.Keys), f.agent(wire.Public)
		key := a.newKey("alice")
		for _, c := range []caller{{agent: b, key: key}, {agent: a, key: b.newKey("alice")}, {agent: a, key: "aa_x"}, {agent: a}} {
			for _, path := range []string{"/message:send", "/rpc"} {
				if got := c.post(path, object{"message": message("hello")}); got.Status != 401 {
					t.Errorf("%s with the key %.5s: %v", path, c.key, got)
				}
			}
		}
		f.wantRows(t, "a2a_task", 0)
	})
}

// a contextId is kept; two callers with one have two conversations. A-27: anonymous lists show only contexts that the
// relay named.
func TestContexts(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(echo)
		alice, bob, nobody := caller{agent: a, key: a.newKey("alice")}, caller{agent: a, key: a.newKey("bob")}, caller{agent: a}
		for _, c := range []caller{alice, alice, bob, nobody, nobody} {
			if got := text(c.say("hello", "contextId", "shared"), "contextId"); got != "shared" {
				t.Errorf("the contextId is %s", got)
			}
		}
		named := text(nobody.say("hello"), "contextId")
		nobody.say("again", "contextId", named)
		var contexts []string
		for _, turn := range a.worked() {
			contexts = append(contexts, turn.Context)
		}
		if contexts[0] != contexts[1] || contexts[5] != contexts[6] || len(slices.Compact(slices.Sorted(slices.Values(contexts)))) != 5 {
			t.Errorf("the conversations are %q", contexts)
		}
		for _, test := range []struct {
			caller
			context string
			want    float64
		}{{alice, "", 2}, {alice, "shared", 2}, {bob, "shared", 1}, {bob, "", 1}, {bob, named, 0},
			{nobody, "", 0}, {nobody, "shared", 0}, {nobody, named, 2}} {
			got := test.ok(test.rpc("ListTasks", object{"contextId": test.context}))
			if member(got, "totalSize") != test.want || member(got, "nextPageToken") != "" || strings.Contains(string(got), "null") {
				t.Errorf("the list of %q is %s, want %v tasks", test.context, got, test.want)
			}
		}
	})
}

// pages have no gap or repeat, and nextPageToken is always there. A-29: historyLength absent, 0, 1 and 2 hold.
func TestListTasks(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(echo)
		c := caller{agent: a, key: a.newKey("alice")}
		var want []string
		for i := range 7 {
			want = append([]string{text(c.say(fmt.Sprint(i)), "id")}, want...)
		}
		for _, size := range []int{1, 2, 3, 7, 50} {
			var got []string
			for token, more := "", true; more; more = token != "" {
				page := c.ok(c.rpc("ListTasks", object{"pageSize": size, "pageToken": token}))
				var parsed wire.Page
				f.must(json.Unmarshal(page, &parsed))
				if parsed.TotalSize != 7 || parsed.PageSize != size || len(parsed.Tasks) > size {
					t.Fatalf("the page is %s", page)
				}
				for _, task := range parsed.Tasks {
					if got = append(got, task.ID); task.Artifacts != nil || task.History != nil {
						t.Errorf("the list shows %+v", task)
					}
				}
				token = parsed.NextPageToken
			}
			if !slices.Equal(got, want) {
				t.Errorf("with pages of %d: %q, want %q", size, got, want)
			}
		}
		rest := c.send("GET", "/tasks?pageSize=2&includeArtifacts=true&historyLength=1&status=TASK_STATE_COMPLETED", nil)
		if text(rest.Body, "tasks", 1, "artifacts", 0, "parts", 0, "text") != "echo: 5" ||
			text(rest.Body, "tasks", 1, "history", 0, "messageId") != "m-5" {
			t.Errorf("with artifacts: %v", rest)
		}
		after := c.ok(c.rpc("ListTasks", object{"statusTimestampAfter": f.Now().Add(time.Hour).UTC().Format(time.RFC3339)}))
		if member(after, "totalSize") != 0.0 || string(raw(after, "tasks")) != "[]" {
			t.Errorf("after an hour: %s", after)
		}
		for _, params := range []object{{"pageToken": "x"}, {"pageSize": 0}, {"pageSize": 101}, {"status": "x"}, {"tenant": "x"}} {
			c.refused(c.rpc("ListTasks", params), wire.BadParams)
		}
	})
}

// historyLength absent, 0, 1 and 2 hold for all operations.
func TestHistoryLength(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		a.serve(askTwice)
		c := caller{agent: a}
		id := text(c.say("one"), "id")
		c.say("two", "taskId", id)
		all := []string{"m-one", "q1", "m-two", "q2"}
		for _, test := range []struct {
			length any
			want   []string
		}{{nil, all}, {0, nil}, {1, all[3:]}, {2, all[2:]}, {9, all}} {
			params, query := object{"id": id}, ""
			if test.length != nil {
				params["historyLength"], query = test.length, fmt.Sprint("?historyLength=", test.length)
			}
			for what, got := range map[string][]byte{"GetTask": c.ok(c.rpc("GetTask", params)), "GET": c.send("GET", "/tasks/"+id+query, nil).Body} {
				var task wire.Task
				f.must(json.Unmarshal(got, &task))
				var ids []string
				for _, m := range task.History {
					ids = append(ids, m.MessageID)
				}
				if !slices.Equal(ids, test.want) {
					t.Errorf("%s with %v: %q, want %q", what, test.length, ids, test.want)
				}
			}
			configuration := object{"returnImmediately": true}
			if test.length != nil {
				configuration["historyLength"] = test.length
			}
			sent := c.ok(c.rpc("SendMessage", object{"message": message("x"), "configuration": configuration}))
			if (raw([]byte(raw(sent, "task")), "history") == "") != (test.length == 0) {
				t.Errorf("SendMessage with %v: %s", test.length, sent)
			}
		}
	})
}

// limits hold at both sides. New tasks and unfinished tasks of anonymous callers are limited.
func TestTasksAreLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Public)
		c := caller{agent: a}
		for range a2a.MaxOfSource {
			c.sayAtOnce("hello")
		}
		refused := func(what string, c caller, status int) {
			t.Helper()
			got := c.post("/rpc", object{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": object{
				"message": message("x"), "configuration": object{"returnImmediately": true}}})
			if got.Status != status || status == 429 && (got.Header.Get("Retry-After") == "" ||
				text(got.Body, "error", "status") != "RESOURCE_EXHAUSTED" || raw(got.Body, "id") != "null") {
				t.Errorf("%s: %v", what, got)
			}
		}
		refused("too many new tasks", c, 429)
		time.Sleep(10 * time.Minute)
		refused("too many unfinished tasks", c, 429)
		refused("another caller", caller{agent: a, key: a.newKey("alice")}, 200)
	}, func(f *fixture) { f.Public, f.From = true, "192.0.2.1:9" })
}

// turns leave room in the agent's inbox, however many there are in a day (PROTOCOL §7).
func TestTurnsLeaveRoom(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		c := caller{agent: a, key: a.newKey("alice")}
		a.serve(echo)
		for i := range 30 {
			if got := text(c.ok(c.rpc("SendMessage", object{"message": message(fmt.Sprint("turn ", i))})), "task", "status", "state"); got != "TASK_STATE_COMPLETED" {
				t.Fatalf("turn %d is %s", i, got)
			}
		}
	}, func(f *fixture) { f.Policy.Inbox = relay.Quota{Events: 10} })
}

// no caller can keep back another's turn. At most 50 turns of an endpoint, and 5 of one caller, wait for an OFFER.
func TestTurnsTakeTurns(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		a := f.agent(wire.Keys)
		greedy := caller{agent: a, key: a.newKey("greedy")}
		for i := range 7 {
			greedy.sayAtOnce(fmt.Sprint("greedy ", i))
		}
		synctest.Wait()
		a.wantSealed(t, a2a.MaxSentOfOne)
		modest := caller{agent: a, key: a.newKey("modest")}
		modest.sayAtOnce("modest")
		synctest.Wait()
		a.wantSealed(t, a2a.MaxSentOfOne+1)
		f.Restart()
		synctest.Wait()
		a.wantSealed(t, a2a.MaxSentOfOne+1)
		for i := range 9 {
			c := caller{agent: a, key: a.newKey(fmt.Sprint("k", i))}
			for range 5 {
				c.sayAtOnce("more")
			}
		}
		synctest.Wait()
		a.wantSealed(t, a2a.MaxSent)
		late := caller{agent: a, key: a.newKey("late")}
		late.sayAtOnce("late")
		a.serve(echo)
		synctest.Wait()
		texts := map[string]string{} // by the turn; the agent works on several turns at a time, in any order
		for _, turn := range a.worked() {
			texts[path.Base(turn.Work)] = *turn.Message.Parts[0].Text
		}
		var order []string
		for _, id := range a.wantSealed(t, 54) {
			order = append(order, texts[id])
		}
		if len(texts) != 54 || slices.Index(order, "late") > slices.Index(order, "greedy 5") {
			t.Errorf("the agent works on %d turns, sent in the order %q", len(texts), order)
		}
	})
}
