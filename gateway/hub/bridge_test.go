package hub_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// worker is an agent of the hub whose endpoint is its DID.
type worker struct {
	*gatetest.Agent
	f    *fixture
	name string // its address
}

// bridged returns the registration of an agent with a DID.
func bridged(name, did string) object {
	body := registrationOf(name)
	body["endpoint"] = "agora:" + did
	return body
}

// worker registers an agent with a DID.
func (f *fixture) worker(name string) worker {
	f.t.Helper()
	w := worker{f.NewAgent(), f, name}
	f.want(w.call("POST", "/register", bridged(name, w.DID())), 201, "")
	return w
}

func (w worker) call(method, path string, body any) answer {
	w.f.t.Helper()
	return answer{w.Call(w.f.t, "/hub", method, path, body)}
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// asked is a REQUEST that a worker has got.
type asked struct {
	thread, text string
	params       object
}

// asked returns the REQUESTs that the worker got.
func (w worker) asked() (all []asked) {
	w.f.t.Helper()
	for _, m := range w.Requests(w.f.t) {
		var request envelope.Request
		w.f.must(m.DecodePayload(&request))
		a := asked{thread: m.Thread}
		w.f.must(json.Unmarshal(request.Params, &a.params))
		a.text = a.params["envelope"].(object)["original_text"].(string)
		all = append(all, a)
	}
	return all
}

// thread returns the thread of the REQUEST with a text.
func (w worker) thread(text string) string {
	w.f.t.Helper()
	for _, a := range w.asked() {
		if a.text == text {
			return a.thread
		}
	}
	w.f.t.Fatalf("the worker has no REQUEST %q", text)
	return ""
}

// wantTexts checks the texts of the REQUESTs, in their order.
func (w worker) wantTexts(what, want string) {
	w.f.t.Helper()
	var texts []string
	for _, a := range w.asked() {
		texts = append(texts, a.text)
	}
	if got := strings.Join(texts, " "); got != want {
		w.f.t.Errorf("%s: the worker has the REQUESTs %q, want %q", what, got, want)
	}
}

// rows returns the history of the worker, as "text state code".
func (w worker) rows() (all []string) {
	w.f.t.Helper()
	a := w.f.want(w.call("GET", "/agent/messages", nil), 200, "")
	for _, row := range a.data("").([]any) {
		all = append(all, described(row.(object)))
	}
	return all
}

func described(row object) string {
	code, _ := row["error_code"].(string)
	return strings.TrimSpace(fmt.Sprintf("%v %v %s", row["envelope"].(object)["original_text"], row["state"], code))
}

// row returns the row with a text in a history.
func (f *fixture) row(key, text string) object {
	f.t.Helper()
	for _, row := range f.history(key, "") {
		if row["envelope"].(object)["original_text"] == text {
			return row
		}
	}
	f.t.Fatalf("the history has no %q", text)
	return nil
}

// wantRow checks a message in a history.
func (f *fixture) wantRow(what, key, text, want string) {
	f.t.Helper()
	if got := described(f.row(key, text)); got != text+" "+want {
		f.t.Errorf("%s: the message is %q, want %q", what, got, text+" "+want)
	}
}

// post sends a message in the background, because the answer may wait for the receiver.
func (f *fixture) sendOff(key, from, to, text string) {
	f.t.Helper()
	go func() {
		_, _ = f.try(f.t.Context(), call{"POST", "/messages", key, messageTo(to, from, text), nil}) // the test may end before
	}()
	synctest.Wait()
}

var free = envelope.Offer{}

func success(output string) envelope.Result {
	return envelope.Result{Status: "success", Output: json.RawMessage(output)}
}

const (
	ann = "ann@relay.example"
	wes = "wes@relay.example"
	wim = "wim@relay.example"
)

// B-1: a registration with a DID as its endpoint belongs to that DID. Its signed calls stand for the key, and registering
// again makes no new key. No key can set or change it.
func TestBridgedRegistration(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(ann)
		w := f.worker(wes)
		other := worker{f.NewAgent(), f, ""}
		body := bridged("new@b", w.DID())
		f.want(f.do(call{"POST", "/register", "", body, nil}), 403, "ERR_ENDPOINT_BLOCKED")
		f.want(f.do(call{"POST", "/register", key, bridged(ann, w.DID()), nil}), 403, "ERR_ENDPOINT_BLOCKED")
		f.want(f.do(call{"POST", "/agents", f.Operator, body, nil}), 403, "ERR_ENDPOINT_BLOCKED")
		f.want(other.call("POST", "/register", body), 403, "ERR_ENDPOINT_BLOCKED")
		f.want(w.call("POST", "/register", registrationOf("new@b")), 403, "ERR_ENDPOINT_BLOCKED")
		f.want(w.call("POST", "/register", bridged("new@b", "alice")), 400, "ERR_ENDPOINT_BLOCKED")
		// It cannot be changed by a key, nor by another DID.
		f.want(f.do(call{"POST", "/register", key, registrationOf(wes), nil}), 409, "ERR_AGENT_ID_TAKEN")
		f.want(f.do(call{"POST", "/agents", f.Operator, object{"agent_id": wes, "endpoint": "https://a.example/"}, nil}), 403,
			"ERR_ENDPOINT_BLOCKED")
		f.want(other.call("POST", "/register", bridged(wes, other.DID())), 409, "ERR_AGENT_ID_TAKEN")
		f.want(w.call("POST", "/register", bridged(ann, w.DID())), 409, "ERR_AGENT_ID_TAKEN")
		again := f.want(w.call("POST", "/register", bridged(wes, w.DID())), 200, "")
		if again.text("api_key") != "" || again.data("registration").(object)["endpoint"] != "agora:"+w.DID() {
			t.Errorf("the answer is %v", again)
		}
		// Strangers see that there is an endpoint.
		for key, want := range map[string]any{"": nil, key: nil, f.Operator: "agora:" + w.DID()} {
			got := f.want(f.do(call{"GET", "/agents/" + wes, key, nil, nil}), 200, "")
			if got.data("endpoint") != want || (got.data("has_endpoint") == true) != (want == nil) {
				t.Errorf("an agent is shown as %v", got)
			}
		}
		if got := f.want(w.call("GET", "/agents/"+wes, nil), 200, ""); got.data("endpoint") != "agora:"+w.DID() {
			t.Errorf("the agent sees itself as %v", got)
		}
		// Signed calls stand for the key.
		f.want(w.call("POST", "/messages", messageTo(ann, wes, "hello")), 202, "")
		f.want(w.call("POST", "/messages", messageTo(wes, ann, "forged")), 403, "ERR_SENDER_MISMATCH")
		f.want(other.call("POST", "/messages", messageTo(ann, wes, "forged")), 401, "ERR_UNAUTHORIZED")
		f.want(other.call("GET", "/agent/messages", nil), 401, "ERR_UNAUTHORIZED")
		f.want(w.call("POST", "/agent/session", nil), 200, "")
		f.want(w.call("POST", "/agent/ack", object{"up_to": 1}), 200, "")
		if got := w.rows(); len(got) != 1 || got[0] != "hello queued" {
			t.Errorf("the history is %q", got)
		}
		// A DID may have several agents. Then it says which one it means.
		f.want(w.call("POST", "/register", bridged("two@b", w.DID())), 201, "")
		f.want(w.call("GET", "/agent/messages", nil), 400, "ERR_VALIDATION")
		f.want(w.call("GET", "/agent/messages?agent_id="+wes, nil), 200, "")
		f.want(w.call("GET", "/agent/messages?agent_id="+ann, nil), 401, "ERR_UNAUTHORIZED")
		f.want(w.call("POST", "/messages", messageTo(ann, "two@b", "hi")), 202, "")
		// A deleted address is for the same DID, or for the operator.
		f.want(other.call("DELETE", "/agents/two@b", nil), 403, "ERR_FORBIDDEN")
		f.want(f.do(call{"DELETE", "/agents/two@b", key, nil, nil}), 403, "ERR_FORBIDDEN")
		for _, deleted := range []bool{true, false} {
			if got := f.want(w.call("DELETE", "/agents/two@b", nil), 200, ""); got.data("deleted") != deleted {
				t.Errorf("DELETE: %v, want %v", got, deleted)
			}
		}
		f.want(other.call("POST", "/register", bridged("two@b", other.DID())), 409, "ERR_AGENT_ID_TAKEN")
		f.want(w.call("POST", "/register", bridged("two@b", w.DID())), 201, "")
		// The own listener takes no signed calls, and says why.
		header := w.Sign("", "GET", "/agent/messages", "")
		if got := f.at(f.Own, call{"GET", "/agent/messages", "", nil, header}); got.Status != 401 ||
			got.errorMember("reason") != "audience" || got.errorMember("aud") != gatetest.PublicURL {
			t.Errorf("at the own listener: %v", got)
		}
	})
}

// B-2, B-7: a message is one sealed REQUEST of the gateway's DID, which says what docs/HUB.md says. B-8: a RESULT confirms it.
func TestMessageAsRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		f.sendOff(key, ann, wes, "hello")
		all := w.Requests(t)
		if len(all) != 1 {
			t.Fatalf("the worker has %d REQUESTs", len(all))
		}
		m, row := all[0], f.row(key, "hello")
		var got any
		f.must(json.Unmarshal(m.Payload, &got))
		want := object{"request_id": m.Thread, "intent": "chorus.hub.message", "params": object{"agent_id": wes,
			"trace_id": row["trace_id"], "id": row["id"], "timestamp": row["timestamp"], "envelope": object{"chorus_version": "0.4",
				"sender_id": ann, "original_text": "hello", "sender_culture": "en"}}}
		if fmt.Sprint(got) != fmt.Sprint(any(want)) {
			t.Errorf("the REQUEST says %v, want %v", got, want)
		}
		if m.ID != m.Thread || !strings.HasPrefix(m.ID, "hub_") || m.TTL != 24*time.Hour ||
			fmt.Sprint(m.Relays) != "["+gatetest.PublicURL+"]" {
			t.Errorf("the REQUEST is %+v", m)
		}
		f.wantRow("at first", key, "hello", "queued")
		// No stream, poll or acknowledgement touches it until its thread ends.
		if got := w.rows(); len(got) != 0 {
			t.Errorf("a poll of the receiver brings %q", got)
		}
		f.want(w.call("POST", "/agent/ack", object{"trace_ids": []any{row["trace_id"]}}), 200, "")
		f.wantRow("after an acknowledgement", key, "hello", "queued")
		w.Says(m.Thread, free)
		w.WantTypes("after the OFFER", m.Thread, "REQUEST ACCEPT")
		f.wantRow("after the OFFER", key, "hello", "sent")
		f.want(w.call("POST", "/agent/ack", object{"up_to": 1}), 200, "")
		f.want(w.call("POST", "/agent/ack", object{"trace_ids": []any{row["trace_id"]}}), 200, "")
		f.wantRow("after another acknowledgement", key, "hello", "sent")
		w.Says(m.Thread, success(`{"anything":1}`))
		f.wantRow("after the RESULT", key, "hello", "delivered")
		row = f.row(key, "hello")
		if fmt.Sprint(row["receiver_response"]) != "map[status:ok]" || row["delivered_via"] != "agora" || row["acknowledged_at"] == nil {
			t.Errorf("the message is %v", row)
		}
		if got := w.rows(); len(got) != 1 {
			t.Errorf("after the RESULT, the history of the receiver is %q", got)
		}
	})
}

// B-8: what each answer means.
func TestAnswersOfWorkers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		for name, test := range map[string]struct {
			offer, answer envelope.Payload
			want, member  string // member: receiver_response or detail
		}{
			"a reply in the form of a webhook": {free, success(`{"response":{"status":"ok","more":1}}`), "delivered", "map[status:ok]"},
			"an error in that form":            {free, success(`{"response":{"status":"error","detail":"no"}}`), "delivered", "map[detail:no status:error]"},
			"another response":                 {free, success(`{"response":"fine"}`), "delivered", "map[status:ok]"},
			"a text":                           {free, success(`"HELLO"`), "delivered", "map[status:ok]"},
			"without an OFFER":                 {nil, success(`{}`), "delivered", "map[status:ok]"},
			"an ERROR":                         {free, envelope.Failure{Code: "MY_CODE", Message: "oh"}, "failed MY_CODE", "oh"},
			"an ERROR at once":                 {nil, envelope.Failure{Code: "OTHER", Message: "no"}, "failed OTHER", "no"},
			"a price": {envelope.Offer{Price: &envelope.Price{Amount: 1, Currency: "EUR"}}, nil, "failed ERR_AGENT_UNREACHABLE",
				"the agent asks for a price; messages of the hub are not paid"},
		} {
			f.sendOff(key, ann, wes, name)
			thread := w.thread(name)
			if test.offer != nil {
				w.Says(thread, test.offer)
			}
			if test.answer != nil {
				if err := w.Post(thread, test.answer); err != nil { // the relay takes no RESULT of a thread without an ACCEPT
					if test.offer != nil {
						t.Fatal(err)
					}
					w.Says(thread, free)
					w.Says(thread, test.answer)
				}
				synctest.Wait()
			}
			f.wantRow(name, key, name, test.want)
			row := f.row(key, name)
			if row["delivered_via"] != "agora" || row["acknowledged_at"] == nil {
				t.Errorf("%s: the message is %v", name, row)
			}
			if got := fmt.Sprint(row["receiver_response"]); got != test.member && row["detail"] != test.member {
				t.Errorf("%s: the message is %v, want %s", name, row, test.member)
			}
		}
	})
}

// B-8: without a RESULT in 24 hours, a message fails with ERR_TIMEOUT. A thread that is open then is canceled (B-2).
func TestTimeoutOfMessages(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, bobs, w := f.register(ann), f.register(bob), f.worker(wes)
		f.sendOff(key, ann, wes, "one")
		f.sendOff(key, ann, wes, "waits")
		f.sendOff(bobs, bob, wes, "silent")
		f.Ahead.Add(int64(time.Hour))
		w.Says(w.thread("one"), free)
		w.Says(w.thread("one"), success(`{}`))
		late := w.thread("waits")
		f.Ahead.Add(int64(23 * time.Hour))
		time.Sleep(2 * time.Minute)
		f.wantRow("after 24 hours", key, "one", "delivered")
		f.wantRow("after 24 hours", key, "waits", "failed ERR_TIMEOUT")
		f.wantRow("after 24 hours", bobs, "silent", "failed ERR_TIMEOUT")
		w.WantTypes("after 24 hours", late, "REQUEST CANCEL")
	})
}

// B-2: the thread of a message that is removed, or whose receiver leaves, is canceled.
func TestCanceledMessages(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(f *fixture, w worker)
		want string
	}{
		"deletion": {func(f *fixture, w worker) { f.want(w.call("DELETE", "/agents/"+wes, nil), 200, "") }, "ERR_AGENT_NOT_FOUND"},
		"removal": {func(f *fixture, w worker) {
			for _, id := range []string{"2", "1", "3"} { // first the one that waits
				f.must(f.hub.Remove(f.t.Context(), id))
			}
		}, "ERR_FORBIDDEN"},
	} {
		inBubble(t, func(t *testing.T, f *fixture) {
			key, bobs, w := f.register(ann), f.register(bob), f.worker(wes)
			f.sendOff(key, ann, wes, "one")
			f.sendOff(key, ann, wes, "waits")
			f.sendOff(bobs, bob, wes, "two")
			one, two := w.thread("one"), w.thread("two")
			w.Says(two, free)
			test.end(f, w)
			synctest.Wait()
			w.WantTypes(name, one, "REQUEST CANCEL")
			w.WantTypes(name, two, "REQUEST ACCEPT CANCEL")
			w.wantTexts(name, "one two")
			for _, row := range append(f.history(key, ""), f.history(bobs, "")...) {
				if row["state"] != "failed" || row["error_code"] != test.want {
					t.Errorf("%s: the message is %v", name, row)
				}
			}
		})
	}
}

// The operator can remove what the agents of a DID have sent.
func TestRemoveSenderByDID(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		f.want(w.call("POST", "/messages", messageTo(ann, wes, "spam")), 202, "")
		f.send(key, ann, ann, "fine")
		if n, err := f.hub.RemoveSender(t.Context(), w.DID(), time.Time{}.AddDate(1970, 0, 0), 10); n != 1 || err != nil {
			t.Errorf("%d messages were removed, %v", n, err)
		}
		if got := fmt.Sprint(f.states(key)); got != "map[The operator of this hub has removed this message.:failed fine:sent]" {
			t.Errorf("the history is %s", got)
		}
	})
}

// B-3: one REQUEST at a time for a pair, in order. 50 REQUESTs wait for an OFFER of one DID; the others follow.
func TestOrderAndWindow(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		for _, text := range []string{"a", "b", "c"} {
			f.sendOff(key, ann, wes, text)
		}
		for i, text := range []string{"a", "b", "c"} {
			w.wantTexts("message "+text, strings.Join([]string{"a", "b", "c"}[:i+1], " "))
			w.Says(w.thread(text), free)
			w.wantTexts("after the OFFER", strings.Join([]string{"a", "b", "c"}[:i+1], " "))
			w.Says(w.thread(text), success(`{}`))
		}
		f.want(w.call("POST", "/register", bridged("two@b", w.DID())), 201, "")
		before := len(w.asked())
		for n := range 60 {
			name := fmt.Sprintf("n%d@b", n)
			f.sendOff(f.register(name), name, []string{wes, "two@b"}[n%2], name)
		}
		if got := len(w.asked()) - before; got != 50 {
			t.Errorf("%d REQUESTs wait for an OFFER, want 50", got)
		}
		for _, a := range w.asked()[before : before+5] {
			w.Says(a.thread, free)
		}
		time.Sleep(time.Second)
		if got := len(w.asked()) - before; got != 55 {
			t.Errorf("after 5 OFFERs there are %d REQUESTs, want 55", got)
		}
	}, func(f *fixture) { f.From = "" })
}

// B-8: a message goes to an open stream, or becomes a REQUEST. What waits for room goes to a stream that opens.
func TestStreamOfWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		session := func() string {
			t.Helper()
			return "/agent/inbox?session=" + f.want(w.call("POST", "/agent/session", nil), 200, "").text("session_token")
		}
		s := f.followPath(session(), "", nil)
		f.sendOff(key, ann, wes, "streamed")
		s.wantTexts("with a stream", "streamed")
		w.wantTexts("with a stream", "")
		s.close()
		synctest.Wait()
		f.sendOff(key, ann, wes, "asked")
		f.sendOff(key, ann, wes, "waits")
		w.wantTexts("without a stream", "asked")
		s = f.followPath(session(), "", nil)
		s.wantTexts("a new stream", "streamed waits") // the first one comes again
		w.Says(w.thread("asked"), free)
		w.Says(w.thread("asked"), success(`{}`))
		w.wantTexts("at the end", "asked")
		f.wantRow("at the end", key, "asked", "delivered")
		f.wantRow("at the end", key, "waits", "sent")
	})
}

// B-9: a reply is sent once, as a message of the agent to the sender, in the same conversation.
func TestReplies(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		body := messageTo(wes, ann, "hello")
		body["envelope"].(object)["conversation_id"], body["envelope"].(object)["turn_number"] = "c1", 7
		f.want(f.do(call{"POST", "/messages", key, body, nil}), 202, "")
		w.Says(w.thread("hello"), free)
		w.Says(w.thread("hello"), success(`{"reply":{"original_text":"HELLO","cultural_context":"in capital letters"}}`))
		_ = w.Post(w.thread("hello"), success(`{"reply":{"original_text":"twice"}}`))
		synctest.Wait()
		row := f.row(key, "HELLO")
		want := object{"chorus_version": "0.4", "sender_id": wes, "original_text": "HELLO", "sender_culture": "en",
			"cultural_context": "in capital letters", "conversation_id": "c1", "turn_number": 8}
		if fmt.Sprint(row["envelope"]) != fmt.Sprint(want) || row["receiver_id"] != ann {
			t.Errorf("the reply is %v, want %v", row, want)
		}
		if got := len(f.history(key, "")); got != 2 {
			t.Errorf("there are %d messages", got)
		}
		f.sendOff(key, ann, wes, "no turn")
		w.Says(w.thread("no turn"), free)
		w.Says(w.thread("no turn"), success(`{"reply":{"original_text":"fr","sender_culture":"fr"}}`))
		if got := f.row(key, "fr")["envelope"].(object); got["turn_number"] != 2.0 || got["sender_culture"] != "fr" ||
			got["conversation_id"] != nil {
			t.Errorf("the reply to a message without a turn is %v", got)
		}
	})
}

// B-5, B-9: a reply that is refused does not undo the delivery, and is in the agent's history as failed.
func TestRefusedReplies(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		n := 0
		refused := func(what, reply, want string) {
			t.Helper()
			n++
			text := fmt.Sprint("m", n)
			f.sendOff(key, ann, wes, text)
			w.Says(w.thread(text), free)
			w.Says(w.thread(text), success(`{"reply":`+reply+`}`))
			got := w.rows()
			if last := got[len(got)-1]; !strings.HasSuffix(last, "failed "+want) {
				t.Errorf("%s: the history of the agent ends with %q, want %s", what, last, want)
			}
			if got := got[len(got)-2]; got != text+" delivered" {
				t.Errorf("%s: the message is %q", what, got)
			}
		}
		refused("a long text", fmt.Sprintf(`{"original_text":%q}`, strings.Repeat("x", 10_001)), "ERR_VALIDATION")
		refused("no text", `{}`, "ERR_VALIDATION")
		refused("no object", `7`, "ERR_VALIDATION")
		refused("a bad culture", `{"original_text":"x","sender_culture":"EN"}`, "ERR_VALIDATION")
		f.sendOff(key, ann, wes, "full")
		w.Says(w.thread("full"), free)
		for i := range 100 { // ann reads nothing, so her queue has no room for this sender
			f.want(w.call("POST", "/messages", messageTo(ann, wes, fmt.Sprint("fill", i))), 202, "")
			time.Sleep(100 * time.Millisecond)
		}
		w.Says(w.thread("full"), success(`{"reply":{"original_text":"too much"}}`))
		if got := w.rows(); got[len(got)-1] != "too much failed ERR_INBOX_FULL" {
			t.Errorf("a reply to a full inbox is %q", got[len(got)-1])
		}
		f.sendOff(key, ann, wes, "leaves")
		w.Says(w.thread("leaves"), free)
		f.want(f.do(call{"DELETE", "/agents/" + ann, key, nil, nil}), 200, "")
		w.Says(w.thread("leaves"), success(`{"reply":{"original_text":"come back"}}`))
		if got := w.rows(); got[len(got)-1] != "come back failed ERR_AGENT_NOT_FOUND" {
			t.Errorf("a reply to an agent that has left is %q", got[len(got)-1])
		}
	})
}

// answers makes a worker answer each of its REQUESTs with a reply. It returns how many it has answered.
func (w worker) answersAll() (answered int) {
	w.f.t.Helper()
	for _, a := range w.asked() {
		if got := w.Types(w.f.t, a.thread); len(got) != 1 {
			continue
		}
		w.Says(a.thread, free)
		w.Says(a.thread, success(`{"reply":{"original_text":"re"}}`))
		answered++
	}
	return answered
}

// B-9: two workers that always answer each other stop: a reply of depth 5 is stored as failed, and never delivered.
func TestLoopOfWorkers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		one, two := f.worker(wes), f.worker(wim)
		f.want(one.call("POST", "/messages", messageTo(wim, wes, "go")), 202, "")
		rounds := 0
		for answered := 1; answered > 0; rounds++ {
			answered = one.answersAll() + two.answersAll()
			time.Sleep(time.Second)
			if rounds > 20 {
				t.Fatal("the workers do not stop")
			}
		}
		// "go" has depth 0. The replies have the depths 1 to 5. Two, who answers "go", sends the odd ones.
		if got := strings.Join(two.rows(), ", "); got != "go delivered, re delivered, re delivered, re delivered, re delivered, "+
			"re failed ERR_RATE_LIMITED" {
			t.Errorf("the history is %q", got)
		}
		if got := len(one.asked()) + len(two.asked()); got != 5 {
			t.Errorf("there were %d REQUESTs, want 5", got)
		}
	})
}

// B-9: the 61st reply of a pair in a minute is stored as failed. After a minute, there are replies again.
func TestRepliesInAMinute(t *testing.T) {
	engine.OnlySQLite(t, "thousands of messages take long; smaller tests run the same statements")
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		reply := func(text string) {
			t.Helper()
			f.sendOff(key, ann, wes, text)
			w.Says(w.thread(text), free)
			w.Says(w.thread(text), success(`{"reply":{"original_text":"re `+text+`"}}`))
			f.history(key, "") // so the queue of ann has room
			time.Sleep(500 * time.Millisecond)
		}
		for i := range 62 {
			reply(fmt.Sprint(i))
		}
		rows := w.rows()
		if got := []string{rows[len(rows)-5], rows[len(rows)-3], rows[len(rows)-1]}; fmt.Sprint(got) !=
			"[re 59 sent re 60 failed ERR_RATE_LIMITED re 61 failed ERR_RATE_LIMITED]" {
			t.Errorf("the last replies are %q", got)
		}
		time.Sleep(time.Minute)
		reply("later")
		if rows := w.rows(); rows[len(rows)-1] != "re later sent" {
			t.Errorf("after a minute, a reply is %q", rows[len(rows)-1])
		}
	})
}

// B-4: plain answers, late ones and those of another DID have no effect.
func TestForeignAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		f.sendOff(key, ann, wes, "hello")
		thread := w.thread("hello")
		eve := f.NewAgent()
		_ = eve.Post(thread, free) // the relay may refuse it
		_ = w.Post(thread, free, func(d *envelope.Draft) { d.Seal = false })
		synctest.Wait()
		w.WantTypes("a plain OFFER and one of a stranger", thread, "REQUEST")
		w.Says(thread, free)
		_ = eve.Post(thread, success(`{"reply":{"original_text":"eve"}}`))
		_ = w.Post(thread, success(`{"reply":{"original_text":"plain"}}`), func(d *envelope.Draft) { d.Seal = false })
		synctest.Wait()
		if got := len(f.history(key, "")); got != 1 {
			t.Errorf("there are %d messages", got)
		}
	})
}

// B-4: after a crash between any two steps, a message has one REQUEST, one ACCEPT and one reply.
func TestBridgeCrashes(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, w := f.register(ann), f.worker(wes)
		f.sendOff(key, ann, wes, "hello")
		f.sendOff(key, ann, wes, "next")
		time.Sleep(time.Minute)
		f.Crash()
		w.wantTexts("after the start", "hello")
		thread := w.thread("hello")
		f.Broken.Store(true) // the OFFER is stored, and nothing that follows from it
		f.must(w.Post(thread, free))
		time.Sleep(10 * time.Second)
		w.WantTypes("before the crash", thread, "REQUEST")
		f.Crash()
		w.WantTypes("after the OFFER", thread, "REQUEST ACCEPT")
		f.Crash()
		f.Broken.Store(true)
		f.must(w.Post(thread, success(`{"reply":{"original_text":"HELLO"}}`)))
		time.Sleep(10 * time.Second)
		f.Crash()
		f.Crash()
		w.WantTypes("after the RESULT", thread, "REQUEST ACCEPT")
		w.wantTexts("after the RESULT", "hello next")
		if got := f.history(key, ""); len(got) != 3 || described(got[0]) != "hello delivered" || described(got[2]) != "HELLO sent" {
			t.Errorf("the history is %v", got)
		}
	})
}

// B-13: an agent is online while the relay hears from it, and a registration that is heard from does not expire.
func TestPresenceAtTheHub(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		w := f.worker(wes)
		online := func() bool {
			t.Helper()
			got := f.do(call{"GET", "/discover?online=true", "", nil, nil})
			return strings.Contains(string(got.Body), wes)
		}
		if online() {
			t.Error("it is online before the relay has heard from it")
		}
		w.Polls()
		if !online() {
			t.Error("it is offline after a signed read")
		}
		f.Ahead.Add(int64(6 * time.Minute))
		if online() {
			t.Error("it is online after 6 minutes of silence")
		}
		for range 100 {
			f.Ahead.Add(int64(24 * time.Hour))
			w.Polls()
			time.Sleep(time.Minute)
			synctest.Wait() // the sweep has ended
		}
		f.want(f.do(call{"GET", "/agents/" + wes, "", nil, nil}), 200, "")
		f.Ahead.Add(int64(91 * 24 * time.Hour))
		time.Sleep(2 * time.Minute)
		f.want(f.do(call{"GET", "/agents/" + wes, "", nil, nil}), 404, "ERR_AGENT_NOT_FOUND")
	})
}

// B-2, B-7: however many messages are stored at a time, each REQUEST says what is stored, and each message has one.
func TestRequestsSayWhatIsStored(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key := f.register(ann)
		var workers []worker
		for n := range 12 {
			workers = append(workers, f.worker(fmt.Sprintf("w%d@b", n)))
		}
		for _, w := range workers {
			for _, text := range []string{"one", "two"} {
				go func() { _, _ = f.try(t.Context(), call{"POST", "/messages", key, messageTo(w.name, ann, text), nil}) }()
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		stored := map[any]object{}
		for _, row := range f.history(key, "") {
			stored[row["trace_id"]] = row
		}
		if len(stored) != 24 {
			t.Fatalf("%d messages are stored, want 24", len(stored))
		}
		for _, w := range workers {
			first := w.asked()
			if len(first) != 1 {
				t.Fatalf("%s has %d REQUESTs, want 1", w.name, len(first))
			}
			w.Says(first[0].thread, free)
			w.Says(first[0].thread, success(`{}`))
			all := w.asked()
			if len(all) != 2 || all[0].params["id"].(float64) >= all[1].params["id"].(float64) {
				t.Fatalf("%s has the REQUESTs %v", w.name, all)
			}
			for _, a := range all {
				row := stored[a.params["trace_id"]]
				if row["id"] != a.params["id"] || row["timestamp"] != a.params["timestamp"] || row["receiver_id"] != w.name ||
					fmt.Sprint(row["envelope"]) != fmt.Sprint(a.params["envelope"]) {
					t.Errorf("the REQUEST says %v, and %v is stored", a.params, row)
				}
			}
		}
	})
}
