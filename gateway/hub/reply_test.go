package hub_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// replyCase is what a webhook replies, and what the sender learns.
type replyCase struct {
	status int
	body   string
	header string // Retry-After or Location
	want   string // data of the answer, without trace_id
	again  time.Duration
}

func confirmedWith(reply string) string {
	return `{"delivery":"delivered","receiver_response":` + reply + `,"state":"delivered"}`
}

var confirmedWithoutReply = confirmedWith("null")

func httpError(status int) string {
	return fmt.Sprintf(`{"delivery":"%%s","detail":"HTTP %d","error_code":"ERR_AGENT_UNREACHABLE","state":"%%[1]s"}`,
		status)
}

func failedWith(status int) string { return fmt.Sprintf(httpError(status), "failed") }
func queuedWith(status int) string { return fmt.Sprintf(httpError(status), "queued") }

var long = strings.Repeat("😀", 600) // 1200 code units

var replies = map[string]replyCase{
	"ok": {200, `{"status":"ok"}`, "", confirmedWith(`{"status":"ok"}`), 0},
	"ok with others": {201, `{"status":"ok","detail":"a","secret":1}`, "",
		confirmedWith(`{"status":"ok","detail":"a"}`), 0},
	"long text": {200, `{"status":"ok","detail":"` + long + `"}`, "",
		confirmedWith(`{"status":"ok","detail":"` + long[:4*500] + `"}`), 0},
	"no content":        {204, ``, "", confirmedWithoutReply, 0},
	"no JSON":           {200, `secret`, "", confirmedWithoutReply, 0},
	"an array":          {200, `["secret"]`, "", confirmedWithoutReply, 0},
	"another status":    {200, `{"status":"secret"}`, "", confirmedWithoutReply, 0},
	"no text as status": {200, `{"status":1}`, "", confirmedWithoutReply, 0},
	"64 KiB": {200, `{"status":"ok","more":"` + strings.Repeat("a", 65_536-25) + `"}`, "",
		confirmedWith(`{"status":"ok"}`), 0},
	"more than 64 KiB": {200, `{"status":"ok","more":"` + strings.Repeat("a", 65_536-24) + `"}`, "",
		confirmedWithoutReply, 0},

	"error": {200, `{"status":"error","error_code":"INVALID_ENVELOPE","detail":"no culture","secret":1}`, "",
		`{"delivery":"failed","error_code":"INVALID_ENVELOPE","detail":"no culture","state":"failed"}`, 0},
	"error without code": {200, `{"status":"error","detail":"busy"}`, "",
		`{"delivery":"failed","error_code":"ERR_AGENT_UNREACHABLE","detail":"busy","state":"failed"}`, 0},
	"error with 400": {400, `{"status":"error","error_code":"INVALID_ENVELOPE"}`, "",
		`{"delivery":"failed","error_code":"INVALID_ENVELOPE","state":"failed"}`, 0},
	"error with 429": {429, `{"status":"error","error_code":"BUSY"}`, "",
		`{"delivery":"failed","error_code":"BUSY","state":"failed"}`, 0},
	"error with 500": {500, `{"status":"error","error_code":"MODEL_DOWN","detail":"later"}`, "",
		`{"delivery":"queued","error_code":"MODEL_DOWN","detail":"later","state":"queued"}`, 2 * time.Second},
	"error with 600": {600, `{"status":"error","error_code":"NO_STATUS"}`, "",
		`{"delivery":"failed","error_code":"NO_STATUS","state":"failed"}`, 0},

	"400 without JSON":  {400, `secret`, "", failedWith(400), 0},
	"404":               {404, ``, "", failedWith(404), 0},
	"301":               {301, `secret`, "http://127.0.0.1:2000/other", failedWith(301), 0},
	"304":               {304, ``, "", failedWith(304), 0},
	"408":               {408, `secret`, "", queuedWith(408), 2 * time.Second},
	"425":               {425, ``, "", queuedWith(425), 2 * time.Second},
	"429":               {429, ``, "30", queuedWith(429), 30 * time.Second},
	"500":               {500, `secret`, "", queuedWith(500), 2 * time.Second},
	"503":               {503, `<html>secret</html>`, "7", queuedWith(503), 7 * time.Second},
	"503 for two hours": {503, ``, "7200", queuedWith(503), time.Hour},
	"600":               {600, ``, "", failedWith(600), 0},
}

// H-30: each kind of webhook reply has the effect that HUB describes. G-16: the sender learns nothing else of the
// response.
func TestWebhookReplies(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, f *fixture) {
		key, hooks := f.register(alice), map[string]*hook{}
		for name, c := range replies {
			var h *hook
			receiver := strings.ReplaceAll(name, " ", "-") + "@x"
			_, h = f.registerHook(receiver, func(w http.ResponseWriter, _ hookCall) {
				if len(h.seen()) > 1 {
					return // a later attempt succeeds
				}
				w.Header().Set("Retry-After", c.header)
				w.Header().Set("Location", c.header)
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			hooks[name] = h
			c.checkAnswer(t, name, f.send(key, alice, receiver, name), h.seen()[0].trace)
		}
		time.Sleep(2 * time.Minute)
		f.Ahead.Add(int64(time.Hour))
		time.Sleep(2 * time.Minute)
		rows := f.history(key, "")
		if len(rows) != len(replies) {
			t.Fatalf("the history has %d rows", len(rows))
		}
		for _, row := range rows {
			checkReplyRow(t, row, replies[row["envelope"].(object)["original_text"].(string)])
		}
		for name, h := range hooks {
			replies[name].checkAttempts(t, name, h.seen())
		}
	})
}

// checkAnswer compares the answer to a sender with the one in the table.
func (c replyCase) checkAnswer(t *testing.T, name string, a answer, trace string) {
	t.Helper()
	var want object
	if err := json.Unmarshal([]byte(c.want), &want); err != nil {
		t.Fatal(err)
	}
	want["trace_id"] = trace
	wantStatus := 200
	if c.again > 0 {
		wantStatus = 202
	}
	if got := a.data(""); a.Status != wantStatus || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: the sender has %v, want %d %v", name, a, wantStatus, want)
	}
}

// checkAttempts checks whether and when a second attempt was made.
func (c replyCase) checkAttempts(t *testing.T, name string, calls []hookCall) {
	t.Helper()
	if c.again == 0 {
		if len(calls) != 1 {
			t.Errorf("%s: %d attempts were made, want 1", name, len(calls))
		}
		return
	}
	if len(calls) != 2 || calls[0].trace != calls[1].trace {
		t.Fatalf("%s: %d attempts were made, want 2 with the same trace", name, len(calls))
	}
	took, least, most := calls[1].at.Sub(calls[0].at), c.again*8/10, c.again*12/10
	if c.again == time.Hour {
		least, most = time.Minute, 5*time.Minute // the clock was set forward by an hour
	}
	if took < least || took > most {
		t.Errorf("%s: the second attempt was made after %v, want %v", name, took, c.again)
	}
}

// checkReplyRow checks the row in the sender's history.
func checkReplyRow(t *testing.T, row object, c replyCase) {
	t.Helper()
	text, err := json.Marshal(row)
	if err != nil || strings.Contains(string(text), "secret") {
		t.Errorf("the history has %s, %v", text, err)
	}
	var want object
	if err := json.Unmarshal([]byte(c.want), &want); err != nil {
		t.Fatal(err)
	}
	if c.again > 0 { // a later attempt has succeeded
		want = object{"state": "delivered", "receiver_response": nil}
	}
	for _, name := range []string{"state", "error_code", "detail"} {
		if row[name] != want[name] {
			t.Errorf("the history has %s, want %v", text, want)
		}
	}
	response, given := row["receiver_response"]
	if want["state"] == "delivered" && (!given || !reflect.DeepEqual(response, want["receiver_response"])) {
		t.Errorf("the history has %s, want %v", text, want)
	}
	_, confirmed := row["acknowledged_at"]
	if confirmed != (want["state"] == "delivered") || row["delivered_via"] != "webhook" {
		t.Errorf("the history has %s", text)
	}
}
