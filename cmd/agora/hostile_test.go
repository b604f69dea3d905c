package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/hub/hubclient"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/internal/safetext"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// hostile is a text that would make a terminal change colours, move the cursor, hide text and reverse it, and that
// tries to forge a line. It contains ESC, a C1 control, DEL, bidi controls, separators, zero-width characters, a tag, a
// variation selector, and a line break before the forged line.
const hostile = "a\x1b[31m\u009b2J\x07\x7f\u202e\u2066\u200e\u2028\u2029\u200b\ufeff\u00ad\U000E0041\U000E0101\r\nagora: forged \"\\"

// foundIn returns what an output contains but must not contain: unsafe characters, bytes that are not UTF-8, and the
// forged line.
func foundIn(text string) (found []string) {
	if !utf8.ValidString(text) {
		found = append(found, "bytes that are not UTF-8")
	}
	for _, r := range text {
		if r != '\n' && r != '\t' && safetext.Unsafe(r) {
			found = append(found, fmt.Sprintf("%U", r))
		}
	}
	if strings.Contains("\n"+text, "\nagora: forged") {
		found = append(found, "a forged line")
	}
	return found
}

// hostileRelay answers every request with the bytes that answer returns.
func hostileRelay(t *testing.T, answer func(r *http.Request) string) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = conn.Write([]byte(answer(r)))
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return "http://" + listener.Addr().String()
}

func raw(head string, body []byte) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", head, len(body), body)
}

// hostileRelays returns relays that answer in all the ways in which a relay can: with refusals, with a page of another
// program, with a redirect, with bytes that are not HTTP, and with valid answers full of hostile text.
func hostileRelays(t *testing.T, bob, eve didkey.Key) []func(*http.Request) string {
	refusal := func(code string) []byte {
		text, err := json.Marshal(map[string]any{"ok": false, "error": code, "message": hostile, "retryable": true,
			"detail": hostile, "error_code": hostile, "limit": hostile, "aud": hostile, "reason": hostile,
			"details": map[string]any{"reason": hostile, "now": hostile, "state": hostile, hostile: hostile}})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	line := strings.NewReplacer("\r", "", "\n", "").Replace(hostile)
	return []func(*http.Request) string{
		func(*http.Request) string { return raw("400 Bad", refusal("INVALID_REQUEST")) },
		func(*http.Request) string { return raw("429 "+line+"\r\nRetry-After: "+line, refusal(hostile)) },
		func(*http.Request) string { return raw("429 Busy\r\nRetry-After: 3600", refusal("RATE_LIMITED")) },
		func(*http.Request) string { return raw("400 Bad", refusal("STALE_TIMESTAMP")) },
		func(*http.Request) string { return raw("401 No\r\nWWW-Authenticate: Agora", refusal("UNAUTHORIZED")) },
		func(*http.Request) string { return raw("502 "+line, []byte(hostile+"\xff\x9b")) },
		func(*http.Request) string { return raw("302 "+line+"\r\nLocation: http://x/"+line, nil) },
		func(*http.Request) string { return hostile },
		func(*http.Request) string { return "HTTP/1.1 200 OK\r\n" + line + "\r\n\r\n" },
		func(r *http.Request) string {
			if r.URL.Path == "/agent/inbox" {
				return raw("200 "+line+"\r\nContent-Type: text/event-stream", []byte("event: message\ndata: "+hubData(t, "/stream")+"\n\n"))
			}
			return raw("200 "+line, goodAnswer(t, r, bob, eve))
		},
		func(r *http.Request) string { // a relay whose document allows signed calls, and a channel gateway
			document := fmt.Sprintf(`{"ok":true,"did":"%s","url":"http://%s","gateways":{"did":"%s","channel":{"url":"http://%s/channel"}}}`, eve.DID(), r.Host, eve.DID(), r.Host)
			switch {
			case r.URL.Path == "/.well-known/agora.json":
				return raw("200 OK", []byte(document))
			case r.URL.Path == "/events":
				return raw("200 OK", deliveries(t, bob, eve))
			case r.Method == http.MethodPost:
				return raw("201 Created", channelAnswer(t, bob))
			}
			return raw("200 OK", channelAnswer(t, bob))
		},
	}
}

// channelAnswer returns an answer of a channel gateway to any request, with hostile text wherever it has text.
func channelAnswer(t *testing.T, bob didkey.Key) []byte {
	event := map[string]any{"seq": 7, "id": hostile, "ts": time.Now(), "sender": hostile, "kind": hostile, "type": "message", "content": hostile, hostile: hostile}
	odd := map[string]any{"seq": 8, "sender": hostile, "kind": "member", "type": hostile, hostile: hostile}
	failed := map[string]any{"seq": 9, "sender": hostile, "type": "error", "message": hostile, "code": hostile}
	text, err := json.Marshal(map[string]any{"ok": true, "channel": map[string]any{"id": hostile, "name": hostile}, "key": hostile,
		"url": hostile, "member": map[string]any{"name": hostile}, "members": []any{map[string]any{"name": hostile}, map[string]any{"name": "bot"}},
		"inbox": map[string]any{"id": hostile, "label": hostile, "owner": bob.DID()}, "inboxes": []any{map[string]any{"id": hostile, "label": hostile, "owner": hostile}},
		"connection":  map[string]any{"name": hostile, "host": hostile, "status": hostile, "mcp": hostile},
		"connections": []any{map[string]any{"name": hostile, "host": hostile, "status": hostile, "mcp": hostile}},
		"event":       event, "deliveries": 1, "events": []any{event, odd, failed}, "cursor": 9})
	if err != nil {
		t.Error(err)
	}
	return text
}

// jobsAnswer returns an answer of a jobs gateway to any request, with hostile text wherever it has text.
func jobsAnswer(t *testing.T, r *http.Request) []byte {
	job := strings.TrimPrefix(r.URL.Path, "/jobs/jobs/")
	if r.Method == http.MethodPost {
		var asked struct {
			ID string `json:"job_id"`
		}
		if json.Unmarshal(readAll(r), &asked) == nil {
			job = asked.ID
		}
	}
	record := map[string]any{"transfer_id": hostile, "from_owner": hostile, "to_owner": hostile, "amount": 1, "job_id": hostile, "timestamp_utc": time.Now(), "kind": hostile}
	skill := map[string]any{"skill_name": hostile, "description": hostile, "cost_per_call": 1, "input_schema": map[string]any{hostile: hostile}}
	agent := map[string]any{"agent_id": hostile, "agent_name": hostile, "owner_id": hostile, "api_endpoint": hostile, "job_url": hostile, "skill": skill,
		"skills": []any{skill}, "reputation_score": 50, "status": hostile, "registered_at": time.Now(), "last_heartbeat": time.Now()}
	answer := map[string]any{"balance": 1, "api_key": hostile, "agents": []any{agent}, "skills": []any{hostile}, "transactions": []any{record}, "total": 9,
		"all_balances": map[string]any{hostile: 1}, "transfer": record, "score": 50, "stats": map[string]any{"total": 1}, hostile: hostile,
		"jobs": []any{map[string]any{"job_id": hostile, "skill_name": hostile, "input_data": map[string]any{hostile: hostile}, "budget": 1}}}
	switch {
	case strings.HasPrefix(r.URL.Path, "/jobs/agents/") && r.Method == http.MethodGet && !strings.HasSuffix(r.URL.Path, "/jobs"), r.URL.Path == "/jobs/register":
		maps.Copy(answer, agent)
	case strings.HasPrefix(r.URL.Path, "/jobs/jobs/"), strings.HasPrefix(r.URL.Path, "/jobs/a/"):
		answer = map[string]any{"job_id": job, "agent_id": hostile, "status": "FAILURE", "output_data": map[string]any{hostile: hostile}, "error_message": hostile, "error_code": hostile}
	case r.URL.Path == "/jobs/operator/grants":
		maps.Copy(answer, record)
	default:
		answer["owner_id"] = hostile
	}
	text, err := json.Marshal(answer)
	if err != nil {
		t.Error(err)
	}
	return text
}

// deliveries returns the answer to a poll, with a delivery of eve to bob and one that is not sealed.
func deliveries(t *testing.T, bob, eve didkey.Key) []byte {
	text, err := json.Marshal(hostile)
	if err != nil {
		t.Error(err)
	}
	params := fmt.Sprintf(`{"inbox":%[1]s,"channel":{"id":%[1]s,"name":%[1]s},"message":{"id":%[1]s,"sender":%[1]s,"content":%[1]s},`+
		`"callback":"https://x.example/","mcp":[{"name":%[1]s,"url":%[1]s,"headers":{%[1]s:%[1]s}}]}`, text)
	var events []*envelope.Envelope
	for _, seal := range []bool{true, false} {
		e, err := envelope.Draft{Recipient: bob.DID(), Seal: seal, Payload: envelope.Request{RequestID: "dlv_1", Intent: client.ChannelIntent,
			Params: json.RawMessage(params)}}.Sign(eve, time.Now())
		if err != nil {
			t.Error(err)
		}
		events = append(events, e)
	}
	page, err := json.Marshal(map[string]any{"ok": true, "events": events, "cursor": "7", "hasMore": false})
	if err != nil {
		t.Error(err)
	}
	return page
}

// goodAnswer returns a valid answer to a request, with hostile text wherever it has text. The envelopes in it are
// signed by eve and sent to bob.
func goodAnswer(t *testing.T, r *http.Request, bob, eve didkey.Key) []byte {
	sign := func(typ, extra string) json.RawMessage {
		text, err := json.Marshal(hostile)
		if err != nil {
			t.Error(err)
		}
		e, err := envelope.SignJSON(eve, []byte(fmt.Sprintf(`{"type":%q,"recipient":{"id":%q},"sender":{"id":%q,"name":%s,"url":%s},`+
			`%s"payload":{"request_id":%s,"intent":%s,"id":"cap",%s:%s}}`, typ, bob.DID(), eve.DID(), text, text, extra, text, text, text, text)), time.Now())
		if err != nil {
			t.Error(err)
			return nil
		}
		return e.Canonical()
	}
	events := []json.RawMessage{sign("REQUEST", `"thread":{"id":"t1"},`), sign("OFFER", `"thread":{"id":"t1"},`)}
	manifest := sign("MANIFEST", "")
	body, err := envelope.Parse(events[0], 0)
	if err != nil {
		t.Error(err)
	}
	answer := map[string]any{"ok": true, "events": events, "hasMore": false, "cursor": hostile, "lastTs": hostile, "id": body.ID,
		"expiresAt": time.Now(), "expired": 3, "did": hostile, "url": hostile, "reads": hostile, "build": hostile, "version": hostile, hostile: hostile}
	switch {
	case hubData(t, r.URL.Path) != "" && r.Header.Get("User-Agent") == "agora-hubclient":
		answer = map[string]any{"data": json.RawMessage(hubData(t, r.URL.Path)), "metadata": map[string]any{"timestamp": time.Now()}}
	case r.URL.Path == "/.well-known/chorus.json":
		answer["server_name"] = hostile
	case r.URL.Path == "/.well-known/agora.json":
		delete(answer, "reads")
		answer["did"] = eve.DID()
	case strings.HasPrefix(r.URL.Path, "/channel"):
		return channelAnswer(t, bob)
	case strings.HasPrefix(r.URL.Path, "/jobs/"):
		return jobsAnswer(t, r)
	case strings.HasPrefix(r.URL.Path, "/threads/"):
		step := map[string]any{"from": hostile, "to": hostile, "type": hostile, "by": hostile, "id": hostile, "at": time.Now()}
		answer["thread"] = map[string]any{"id": "t1", "client": r.URL.Query().Get("client"), "state": hostile, "requestId": hostile, "agent": hostile,
			"recipient": hostile, "offers": []any{map[string]any{"agent": hostile, "id": hostile}}, "transitions": []any{step, step}, "deadline": time.Now()}
	case r.URL.Path == "/agents":
		answer["agents"] = []any{map[string]any{"id": eve.DID(), "online": true, "lastSeen": time.Now(), "envelope": manifest}}
	case strings.HasPrefix(r.URL.Path, "/agents/"):
		answer["agent"] = map[string]any{"id": strings.TrimPrefix(r.URL.Path, "/agents/"), "manifests": []any{manifest}}
	case r.Method == http.MethodPost:
		sent, err := envelope.Parse(readAll(r), 0)
		if err == nil {
			answer["id"] = sent.ID
		}
		answer["thread"] = map[string]any{"id": hostile, "client": hostile, "state": hostile}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		t.Error(err)
	}
	return text
}

// hostileAgent is the address of an agent of a hub.
const hostileAgent = hostile + "@x"

// hubData returns the data of a hub's answer to a request for this path, with hostile text wherever it has text; empty:
// there is no such path.
func hubData(t *testing.T, path string) string {
	row := map[string]any{"id": 7, "trace_id": hostile, "sender_id": hostile + "@y", "receiver_id": hostileAgent, "timestamp": time.Now(),
		"envelope": map[string]any{"original_text": hostile, hostile: hostile}}
	registration := map[string]any{"agent_id": hostileAgent, "api_key": "ca_key", "agent_card": map[string]any{"user_culture": hostile}}
	data := map[string]any{"/stream": row, "/agent/messages": []any{row}, "/agent/ack": hostile, "/register": registration,
		"/discover": []any{registration, hostile}, "/messages": map[string]any{"delivery": "failed", "trace_id": hostile, "detail": hostile, hostile: hostile}}[path]
	if strings.HasPrefix(path, "/agents/") {
		data = registration
	}
	if data == nil {
		return ""
	}
	text, err := json.Marshal(data)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func readAll(r *http.Request) []byte {
	var b bytes.Buffer
	_, _ = b.ReadFrom(r.Body)
	return b.Bytes()
}

// hostileFolder is a data folder with a hostile name whose database contains hostile text.
func hostileFolder(t *testing.T) (folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), strings.ReplaceAll(hostile, "/", ""))
	if err := os.Rename(newDataFolder(t), folder); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(folder, datafolder.Database))
	if err != nil {
		t.Fatal(err)
	}
	const late = int64(1) << 62
	record := ledger.Thread{Thread: thread.Thread{RequestID: hostile, Recipient: hostile, Agent: hostile,
		Transitions: []thread.Transition{{To: thread.Pending, Type: envelope.TypeOffer, By: hostile, ID: hostile}},
		Offers:      []thread.Offer{{Agent: hostile, ID: hostile}}}}
	for _, row := range []struct {
		statement string
		args      []any
	}{
		{"INSERT INTO party (id, did) VALUES (7, ?)", []any{hostile}},
		{"INSERT INTO event (seq, sender, id, recipient, type, thread, ts, received, expires, forget, body, charged, network) VALUES (1, 7, ?1, 7, ?1, 1, 1, 1, ?2, ?2, CAST(?1 AS BLOB), 0, 0)",
			[]any{hostile, late}},
		{"INSERT INTO thread (n, id, client, due, open, state, record) VALUES (1, ?, 7, ?, 0, 1, ?)", []any{hostile, late, record.Encode()}},
		{"INSERT INTO manifest (n, sender, id, seq, ts, expires, intents, text, recipient) VALUES (1, 7, ?1, 1, 1, ?2, json_array(?1), ?1, 7)", []any{hostile, late}},
		{"INSERT INTO meta (name, value) VALUES (?1, ?1)", []any{hostile}},
	} {
		if _, err := db.Exec(row.statement, row.args...); err != nil {
			t.Fatalf("%s: %v", row.statement, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return folder
}

// hostileCalls returns, for each command, the arguments that the test runs it with. hostileFiles.fill replaces words in
// capitals and names of files. A line with URL is run with each relay.
func hostileCalls() map[string][]string {
	const ofChannel = " --channel CHANNELURL --channel-key "
	const asBob = " --jobs JOBSURL --key-file principal.txt"
	const inThread = "--key KEY --relay URL --thread t1 --client EVE --request-id r1 --plain"
	return map[string][]string{
		"serve": {"--addr 127.0.0.1:0 --data DATA", "--addr 127.0.0.1:0 --data FRESH", "--config hostile.txt --check-config",
			"--config HOSTILE --check-config", "--data FRESH --print-config", "--data FRESH --tls-cert HOSTILE --tls-key HOSTILE",
			"--domain HOSTILE --check-config", "--data FRESH --addr unix:HOSTILE", "--ban HOSTILE", "--store HOSTILE"},
		"health":     {"--relay URL", "--relay HOSTILE"},
		"completion": {"bash", "HOSTILE"},
		"complete": {"HOSTILE", "-- send --mode=HOSTILE", "-- HOSTILE HOSTILE", "-- agents --relay=URL EVE", "-- thread --relay=URL --key KEY t",
			"-- agents --relay URL --intent i", "-- follow --profile h", "-- agents --relay HOSTILE d"},
		"generate":     {"FRESH", "--date HOSTILE FRESH", "hostile.txt"},
		"keygen":       {"HOSTILE", "FRESH"},
		"migrate":      {"--from HOSTILE --to postgres://127.0.0.1:1/a", "--from DATA --to HOSTILE", "--from DATA --to postgres://127.0.0.1:1/a"},
		"key secret":   {"HOSTILE"},
		"key fetch":    {"--store HOSTILE --key-secret HOSTILE", "--store postgres://127.0.0.1:1/a --key-secret HOSTILE --data FRESH"},
		"did":          {"HOSTILE", "DATA", "hostile.txt", "--key hostile.txt", "FRESHKEY"},
		"canonicalize": {"hostile.txt", "hostile.json", "HOSTILE"},
		"sign":         {"--key KEY hostile.txt", "--key KEY hostile.json", "--key hostile.txt hostile.json"},
		"verify": {"hostile.txt", "hostile.json", "signed.json", "evidence.json", "HOSTILE", "--now HOSTILE",
			"--text chain.json", "chain.json"},
		"proof get": {"--relay URL EVE HOSTILE", "--relay URL HOSTILE msg_1", "--relay URL EVE msg_1", "--relay " +
			"HOSTILE EVE msg_1"},
		"proof verify": {"hostile.txt", "HOSTILE", "--event signed.json hostile.txt", "--event HOSTILE hostile.txt",
			"--relay HOSTILE hostile.txt", "--witness HOSTILE hostile.txt"},
		"relays": {"--key KEY --relay URL", "--key KEY --relay URL --json", "--key KEY --relay HOSTILE",
			"--key KEY --relay URL --forgive HOSTILE", "--key KEY --relay URL --state hostile.txt"},
		"audit": {"--relay URL", "--relay URL hostile.txt signed.json", "--offline hostile.json", "--offline HOSTILE",
			"--relay URL --policy HOSTILE", "--relay URL --policy hostile.txt", "--relay URL --policy policy.txt", "--offline --evidence HOSTILE hostile.txt", "--relay HOSTILE"},
		"admin status": {"--data HOSTILE", "--data DATA --json"},
		"admin ban":    {"HOSTILE --data DATA", "192.0.2.1 --data HOSTILE --reason HOSTILE", "EVE --for HOSTILE"},
		"admin unban":  {"HOSTILE", "192.0.2.1 --data HOSTILE"},
		"admin bans":   {"--data HOSTILE", "--data DATA"},
		"admin remove": {"--event HOSTILE --sender EVE", "--thread t1 --client HOSTILE", "--seq 1 --data HOSTILE",
			"--hub HOSTILE", "--channel HOSTILE --data DATA", "--jobs HOSTILE"},
		"admin top":        {"--by HOSTILE", "--data HOSTILE"},
		"admin waiters":    {"--data HOSTILE", "--limit HOSTILE"},
		"admin drain":      {"--data HOSTILE", "--undo --data DATA"},
		"admin checkpoint": {"--data HOSTILE"},
		"admin backup":     {"--data HOSTILE"},
		"admin profile":    {"HOSTILE --data HOSTILE --out FRESH", "heap --data DATA --out HOSTILE"},
		"stats":            {"--data DATA", "--data DATA --json", "--data HOSTILE"},
		"prune":            {"--data DATA", "--data HOSTILE", "--data DATA --older-than 1s --type HOSTILE"},
		"fold":             {"--data DATA", "--data HOSTILE", "--data DATA --dry-run --json", "--store HOSTILE"},
		"restore":          {"DATA --data FRESH", "HOSTILE", "DATA --data HOSTILE"},
		"ask": {"HOSTILE --key KEY --relay URL --timeout 300ms", "i --key KEY --relay URL --wait 100ms --settle 10ms --thread t1 --json", "--key KEY --relay URL --thread t1 --raw --timeout 300ms",
			"i --key KEY --relay URL --to EVE --seal --params hostile.json --wait 100ms", "i --key KEY --params @HOSTILE", "i --key KEY --params @hostile.txt", "i --key KEY --relay URL --params -",
			"i --key KEY --relay URL --choose --wait 100ms", "--key KEY --thread HOSTILE", "i --key KEY --best HOSTILE"},
		"send request": {"--key KEY --relay URL --intent HOSTILE --title HOSTILE", "--key KEY --relay URL --intent i --json",
			"--key KEY --intent i --params HOSTILE"},
		"send offer":    {inThread, inThread + " --json", "--key KEY --relay URL --thread t1", "--key KEY --relay URL --thread HOSTILE"},
		"send accept":   {"--key KEY --relay URL --thread t1 --max-cost 1", "--key KEY --relay URL --thread t1 --request-id r1 --agent EVE"},
		"send result":   {inThread, "--key KEY --relay URL --thread t1", "--key KEY --relay URL --thread t1 --status HOSTILE --client EVE"},
		"send error":    {inThread + " --code HOSTILE --message HOSTILE", "--key KEY --relay URL --thread t1 --code C --message m"},
		"send cancel":   {inThread + " --reason HOSTILE", "--key KEY --relay URL --thread t1"},
		"send manifest": {"--key KEY --relay URL manifest.json", "--key KEY --relay URL hostile.txt"},
		"send raw":      {"--relay URL signed.json", "--relay URL --json signed.json", "--relay URL hostile.txt", "HOSTILE"},
		"follow": {"--key KEY --relay URL --count 2 --timeout 300ms", "--key KEY --relay URL --count 2 --timeout 300ms --format x{{.}}", "--key KEY --relay URL --count 1 --timeout 300ms --text", "--key KEY --relay URL --count 1 --timeout 300ms --json --all",
			"--key KEY --relay URL --timeout 300ms --thread t1", "--key KEY --type HOSTILE",
			"--key KEY --relay URL --count 1 --timeout 300ms --cursor-file hostile.txt"},
		"init":    {"--relay URL --key FRESH --name HOSTILE", "--relay URL --key FRESH", "--relay URL --key FRESH --intent HOSTILE", "--relay URL --key FRESH --intent i --announce --profile h1", "--key HOSTILE --relay HOSTILE", "--profile HOSTILE --relay URL"},
		"profile": {"", "--json", "--text", "--format x{{.}}", "--format {{HOSTILE", "--profile HOSTILE"},
		"name":    {"", "--text", "--json", "HOSTILE EVE", "eve HOSTILE", "--remove HOSTILE", "nobody", "--format {{.HOSTILE}}"},
		"threads": {"--key KEY --relay URL", "--key KEY --relay URL --text", "--key KEY --relay URL --json --state ACTIVE", "--key KEY --relay URL --format x{{.}}", "--key HOSTILE", "--key KEY --relay URL --state HOSTILE"},
		"thread":  {"t1 --relay URL", "t1 --relay URL --format x{{.}}", "t1 --relay URL --watch --client EVE", "t1 --relay URL --watch --text --key KEY", "t1 --relay URL --format {{HOSTILE", "t1 --relay URL --text --key KEY", "t1 --relay URL --json --client EVE", "HOSTILE"},
		"agents":  {"--relay URL", "--relay URL --text", "--relay URL --format x{{.}}", "--relay URL EVE --text", "--relay URL --intent HOSTILE -q HOSTILE --online", "--relay URL EVE", "HOSTILE"},
		"hub register": {"eve --hub URL --culture HOSTILE --dir FRESH", "HOSTILE@x --hub URL --culture en --language HOSTILE --dir FRESH",
			"eve@x --hub URL --culture en --new-identity --dir AGENTURL", "eve --hub HOSTILE --culture en --dir AGENTURL", "eve --hub URL --culture en --dir HOSTILE"},
		"hub send": {"bob hello --dir AGENTURL", "HOSTILE@x HOSTILE --context HOSTILE --culture HOSTILE --dir AGENTURL",
			"bob@x - --conversation HOSTILE --turn 1 --dir AGENTURL", "bob hello --dir HOSTILE", "bob hello --dir DAMAGED"},
		"hub inbox":       {"--count 1 --timeout 300ms --dir AGENTURL", "--timeout 300ms --dir AGENTURL", "--dir HOSTILE", "--dir DAMAGED"},
		"hub history":     {"bob@x --dir AGENT", "bob --dir AGENT", "HOSTILE --dir AGENT", "HOSTILE@x --dir AGENT", "bob --dir HOSTILE"},
		"hub discover":    {"--hub URL", "--hub URL --culture HOSTILE --online", "--dir AGENTURL", "--dir HOSTILE"},
		"hub invite":      {"--dir AGENT", "--dir HOSTILE", "--dir DAMAGED"},
		"hub init":        {"--dir AGENT FRESH", "FRESH --hub URL", "--hub URL --dir HOSTILE FRESH", "--dir FRESH DATA", "--dir DAMAGED FRESH", "--lang HOSTILE"},
		"channel new":     {"HOSTILE --url URL --operator-key operator.txt --context HOSTILE", "ops --url URL --operator-key operator.txt --save FRESH", "ops --url HOSTILE --operator-key hostile.txt", "ops --url URL --operator-key hostile.txt", "ops --url URL --operator-key owner.txt --save DATA"},
		"channel member":  {"HOSTILE" + ofChannel + "owner.txt", "eve" + ofChannel + "owner.txt --save FRESH", "eve" + ofChannel + "HOSTILE", "eve --channel HOSTILE --channel-key owner.txt"},
		"channel connect": {"HOSTILE HOSTILE" + ofChannel + "owner.txt --replace", "bot -" + ofChannel + "owner.txt", "bot x --mcp HOSTILE"},
		"channel remove":  {"HOSTILE" + ofChannel + "owner.txt", "bot" + ofChannel + "owner.txt", "bot" + ofChannel + "member.txt"},
		"channel roster":  {ofChannel + "owner.txt", ofChannel + "owner.txt --json", ofChannel + "hostile.txt"},
		"channel say":     {"HOSTILE" + ofChannel + "member.txt", "-" + ofChannel + "member.txt", "hi" + ofChannel + "HOSTILE"},
		"channel read": {ofChannel + "member.txt", ofChannel + "member.txt --json", ofChannel + "owner.txt --follow --timeout 300ms",
			ofChannel + "member.txt --limit 1 --after 1 --follow --timeout 300ms"},
		"channel inbox new":    {"--key KEY --relay URL --label HOSTILE", "--key hostile.txt --relay URL"},
		"channel inbox list":   {"--key KEY --relay URL", "--key HOSTILE --relay URL"},
		"channel inbox rotate": {"in_1 --key KEY --relay URL", "HOSTILE --key KEY --relay URL"},
		"channel inbox delete": {"in_1 --key KEY --relay URL", "HOSTILE --key KEY --relay URL"},
		"channel probe": {"URL --wait 50ms --quiet 10ms", "URL --wait 50ms --quiet 10ms --json --content HOSTILE --old-url HOSTILE", "HOSTILE", "-",
			"URL --listen HOSTILE", "URL --url HOSTILE", "URL --mcp HOSTILE"},
		"channel follow":  {"--key KEY --relay URL --timeout 300ms", "--key KEY --relay URL --count 1 --timeout 300ms --cursor-file hostile.txt"},
		"a2a expose":      {"URL --key KEY --relay URL", "URL --key KEY --relay URL --public --bearer hostile.txt", "HOSTILE --key KEY"},
		"a2a call":        {"URL hello", "URL HOSTILE --stream --json --task HOSTILE", "URL - --bearer hostile.txt", "HOSTILE HOSTILE", "URL x --did HOSTILE --allow-origin HOSTILE"},
		"a2a bridge":      {"URL --key KEY --relay URL --intent HOSTILE", "HOSTILE --key KEY --intent HOSTILE"},
		"a2a publish":     {"--key KEY --relay URL", "--key KEY --relay URL --manifest hostile.json --public --listed", "--key KEY --relay URL --mode HOSTILE", "--key KEY --relay URL --intent HOSTILE"},
		"a2a show":        {"--key KEY --relay URL", "--key hostile.txt --relay URL"},
		"a2a unpublish":   {"--key KEY --relay URL", "--key HOSTILE"},
		"a2a keys new":    {"HOSTILE --key KEY --relay URL", "eve --key KEY --relay URL --save FRESH"},
		"a2a keys list":   {"--key KEY --relay URL", "--key KEY --relay URL --text", "--key KEY --relay URL --format x{{.}}"},
		"a2a keys revoke": {"HOSTILE --key KEY --relay URL"},
		"a2a hook new":    {"HOSTILE --key KEY --relay URL"},
		"a2a hook list":   {"--key KEY --relay URL", "--key KEY --relay URL --text", "--key KEY --relay URL --format x{{.}}"},
		"a2a hook delete": {"HOSTILE --key KEY --relay URL"},
		"a2a verify":      {"URL --did EVE --task HOSTILE --bearer hostile.txt", "URL --did EVE", "URL", "HOSTILE"},
		"jobs account": {"HOSTILE" + asBob, "eve --jobs JOBSURL --key-file FRESH", "eve --jobs JOBSURL", "eve --jobs JOBSURL --key KEY", "eve --jobs HOSTILE",
			"eve --jobs JOBSURL --key-file hostile.txt --initial HOSTILE", "eve --jobs JOBSURL/k/HOSTILE", "eve --jobs JOBSURL --key-file HOSTILE/x"},
		"jobs balance":    {asBob, asBob + " --text", "HOSTILE" + asBob + " --json", "--jobs JOBSURL --key-file HOSTILE"},
		"jobs register":   {"HOSTILE --owner HOSTILE --skill s=1 --endpoint HOSTILE" + asBob, "eve --owner eve --skills hostile.json" + asBob, "eve --owner eve --jobs JOBSURL --key-file FRESH", "eve --owner eve --skill HOSTILE"},
		"jobs discover":   {"--jobs JOBSURL", "HOSTILE --jobs JOBSURL --text", "s --jobs JOBSURL --json --max-cost 1"},
		"jobs agent":      {"UUID --jobs JOBSURL", "UUID --jobs JOBSURL --text", "HOSTILE"},
		"jobs hire":       {"UUID HOSTILE --budget 1" + asBob, "UUID s --budget 1 --input HOSTILE" + asBob, "UUID s --budget 1 --input - --no-wait --orchestrator HOSTILE --callback HOSTILE" + asBob, "UUID s --budget HOSTILE" + asBob},
		"jobs status":     {"UUID" + asBob, "UUID --timeout 300ms" + asBob, "HOSTILE" + asBob},
		"jobs pull":       {"UUID --timeout 300ms" + asBob, "UUID" + asBob, "HOSTILE" + asBob},
		"jobs deliver":    {"UUID UUID --output {}" + asBob, "UUID UUID --output -" + asBob, "UUID UUID --failure HOSTILE" + asBob},
		"jobs heartbeat":  {"UUID" + asBob, "UUID --every 1s" + asBob, "HOSTILE" + asBob},
		"jobs unregister": {"UUID" + asBob, "UUID --jobs JOBSURL --key-file hostile.txt"},
		"jobs transfer":   {"HOSTILE HOSTILE 1" + asBob, "a b 1 --job HOSTILE" + asBob, "a b HOSTILE" + asBob},
		"jobs audit":      {asBob, asBob + " --text", asBob + " --json --owner HOSTILE --job HOSTILE"},
		"jobs grant":      {"HOSTILE 1 --jobs JOBSURL --operator-key operator.txt", "eve 1 --jobs JOBSURL --operator-key hostile.txt", "eve 1 --operator-key HOSTILE"},
		"mcp serve": {"--key KEY --relay URL", "--key HOSTILE/x", "--key hostile.txt", "--print-config HOSTILE", "--print-config codex --key HOSTILE",
			"--print-config vscode --key HOSTILE --relay URL", "--print-skill", "--http HOSTILE", "--key KEY --http 127.0.0.1:0 --token-file hostile.txt",
			"--key KEY --http 127.0.0.1:0 --token-file FRESH"},
		"mcp limits": {"--key FRESH", "--key FRESH --intent HOSTILE", "--key FRESH --agent HOSTILE", "--key FRESH --per-job HOSTILE", "--key hostile.txt"},
		"conformance": {"URL --timeout 500ms", "URL --timeout 500ms --json", "HOSTILE", "--list --only HOSTILE",
			"--hub URL --timeout 500ms", "--hub URL --timeout 500ms --json", "--hub HOSTILE",
			"--channel URL --timeout 500ms", "--channel HOSTILE", "--list --channel HOSTILE",
			"--jobs URL --timeout 500ms", "--jobs HOSTILE", "--list --jobs HOSTILE",
			"--hub URL --operator-key hostile.txt", "--hub URL --webhook-listen HOSTILE"},
		"work": {"--key KEY --relay URL --state FRESH --intent HOSTILE --name HOSTILE --plan HOSTILE -- cat",
			"--key KEY --relay URL --state FRESH --manifest manifest.json --exec cat", "--key KEY --manifest hostile.json --exec cat",
			"--key KEY --manifest HOSTILE -- cat", "--key KEY --intent i -- HOSTILE", "--key KEY --intent i --exec HOSTILE", "--key HOSTILE --intent i -- cat",
			"--key hostile.txt --intent i -- cat", "--key KEY --intent i --state hostile.txt -- cat", "--key KEY --intent i --state HOSTILE/x -- cat"},
		"page": {"URL --addr 127.0.0.1:0", "HOSTILE", "URL --addr HOSTILE"},
		"bench": {"URL --count 5 --warmup 0s --connections 1 --senders 1",
			"URL --count 5 --warmup 0s --connections 1 --senders 1 --json", "HOSTILE", "URL --nodes HOSTILE"},
		"backup":  {"--data DATA FRESH", "--data DATA DATA", "--data HOSTILE FRESH"},
		"check":   {"--data DATA", "--data DATA --json", "--data HOSTILE"},
		"version": {"", "HOSTILE"}, "monitoring": {"alerts", "HOSTILE"},
		"help": {"", "HOSTILE"},
	}
}

// hostileFiles is a folder with keys and hostile files.
type hostileFiles struct {
	path, data string
	eve        didkey.DID
	fresh      int
}

func newHostileFiles(t *testing.T, bob, eve didkey.Key) *hostileFiles {
	t.Helper()
	p := &hostileFiles{path: t.TempDir(), data: hostileFolder(t), eve: eve.DID()}
	t.Chdir(p.path) // commands create files with hostile names here
	for _, key := range []string{"bob.key", strings.ReplaceAll(hostile, "/", "")} {
		if err := didkey.Save(filepath.Join(p.path, key), bob); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		"hostile.txt": hostile + "\xff\x9b",
		"hostile.json": fmt.Sprintf(`{%s:%s,"type":"REQUEST","thread":{"id":"t1"},"payload":{"request_id":"r1","intent":%s}}`,
			text, text, text),
		"manifest.json": fmt.Sprintf(`{"id":"cap","name":%s,"intents":[{"id":%s}]}`, text, text),
		"owner.txt":     "ck_" + strings.Repeat("A", 43) + "\n",
		"member.txt":    "cm_" + strings.Repeat("A", 43) + "\n",
		"principal.txt": "cj_" + strings.Repeat("A", 43) + "\n",
		"operator.txt":  "op_" + strings.Repeat("A", 43) + "\n",
		"policy.txt":    "witness " + hostile + "\nquorum none\n",
		"evidence.json": fmt.Sprintf(`{"typ":"agora-evidence/1","kind":%s,"proofs":[%s,%s]}`, text, text, text),
		"signed.json":   string(signed(t, eve, envelope.Request{RequestID: hostile, Intent: hostile}, bob.DID())),
		"chain.json":    hostileChain(t, bob, eve),
	} {
		if err := os.WriteFile(filepath.Join(p.path, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// hostileChain returns a chain of two messages that prove a deal.
func hostileChain(t *testing.T, bob, eve didkey.Key) string {
	t.Helper()
	home, now := &envelope.Home{DID: bob.DID(), URL: "https://a.example"}, time.Now()
	request, err := envelope.Draft{Thread: "t1", Home: home,
		Payload: envelope.Request{RequestID: "r1", Intent: hostile, Params: mustJSON(t, hostile)}}.Sign(eve, now)
	if err != nil {
		t.Fatal(err)
	}
	offer, err := envelope.Draft{Thread: "t1", Home: home, Re: request.Hash(),
		Payload: envelope.Offer{RequestID: "r1", Price: &envelope.Price{Amount: 1, Currency: hostile}}}.Sign(bob, now)
	if err != nil {
		t.Fatal(err)
	}
	return string(mustJSON(t, []*envelope.Envelope{request, offer}))
}

func mustJSON(t *testing.T, v any) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// agent returns a new folder of an agent with these credentials and hostile histories.
func (p *hostileFiles) agent(who hubclient.Credentials) string {
	p.fresh++
	folder := filepath.Join(p.path, fmt.Sprintf("agent%d%s", p.fresh, strings.ReplaceAll(hostile, "/", "")))
	text, err := json.Marshal(who)
	for name, content := range map[string]string{"chorus-credentials.json": string(text), "chorus-history/.state.json": hostile,
		"chorus-history/bob@x.jsonl": string(text) + "\n" + hostile + "\n", "chorus-history/bob@" + strings.ReplaceAll(hostile, "/", "") + ".jsonl": hostile} {
		path := filepath.Join(folder, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600))
	}
	if err != nil {
		panic(err)
	}
	return folder
}

// fill returns the argument that replaces a word of hostileCalls.
func (p *hostileFiles) fill(word, url string) string {
	switch word {
	case "URL":
		return url
	case "JOBSURL":
		return url + "/jobs"
	case "UUID":
		return testAgent
	case "CHANNELURL":
		return url + "/channel/channels/ch_1"
	case "KEY":
		return filepath.Join(p.path, "bob.key")
	case "EVE":
		return string(p.eve)
	case "FRESHKEY":
		return filepath.Join(p.path, strings.ReplaceAll(hostile, "/", ""))
	case "DATA":
		return p.data
	case "AGENT", "AGENTURL":
		return p.agent(hubclient.Credentials{AgentID: hostileAgent, Key: "ca_key", HubURL: url})
	case "DAMAGED":
		return p.agent(hubclient.Credentials{AgentID: hostile, Key: hostile, HubURL: hostile})
	case "FRESH":
		p.fresh++
		return filepath.Join(p.path, fmt.Sprintf("%d%s", p.fresh, strings.ReplaceAll(hostile, "/", "")))
	}
	if strings.HasSuffix(word, ".txt") || strings.HasSuffix(word, ".json") {
		return filepath.Join(p.path, word)
	}
	return strings.ReplaceAll(word, "HOSTILE", hostile)
}

// ownColours matches the codes that agora writes.
var ownColours = regexp.MustCompile("\x1b\\[(3[1-6]|0)m")

// tryHostile runs a command, with or without a terminal, and checks its output.
func tryHostile(t *testing.T, command string, args []string, terminal bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(cli.Environment{Ctx: ctx, Stdin: strings.NewReader(hostile), Stdout: &stdout, Stderr: &stderr,
		StdoutIsTerminal: terminal, StdinIsTerminal: terminal}, append(strings.Fields(command), args...))
	// The output of these two commands is bytes to sign or to post, and is not escaped.
	exact := !terminal && (command == "canonicalize" || command == "sign")
	shown := stdout.String()
	if terminal { // the colours of agora itself; the hostile text has one of them too, but also characters of other kinds
		shown = ownColours.ReplaceAllString(shown, "")
	}
	if found := foundIn(shown); len(found) > 0 && !exact {
		t.Errorf("agora %s %q (exit code %d) prints %q to stdout: %q", command, args, code, found, stdout.String())
	}
	if found := foundIn(stderr.String()); len(found) > 0 {
		t.Errorf("agora %s %q (exit code %d) prints %q to stderr: %q", command, args, code, found, stderr.String())
	}
	if text := stdout.String(); strings.HasPrefix(text, "{") && !exact && !json.Valid([]byte(text)) {
		for line := range strings.Lines(text) {
			if !json.Valid([]byte(line)) {
				t.Errorf("agora %s %q prints a line that is not JSON: %q", command, args, line)
			}
		}
	}
}

// TestNothingHostileIsShown runs every command with relays, databases, files and flags that contain unsafe characters.
// None of these characters may be printed, with or without a terminal, as text or as JSON (GATEWAYS G-39). A command
// without lines in hostileCalls fails.
func TestNothingHostileIsShown(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir()) // agora init and agora name write there
	t.Setenv("NO_COLOR", "")
	bob, eve := newKey(t), newKey(t)
	files, calls := newHostileFiles(t, bob, eve), hostileCalls()
	var urls []string
	for _, answer := range hostileRelays(t, bob, eve) {
		urls = append(urls, hostileRelay(t, answer))
	}
	runs := 0
	for _, command := range commandNames(t) {
		t.Run(command, func(t *testing.T) {
			if len(calls[command]) == 0 {
				t.Fatal("hostileCalls has no arguments for this command; add some")
			}
			var all sync.WaitGroup
			slots := make(chan struct{}, 16)
			for _, line := range append(calls[command], "--nonsense=HOSTILE", "HOSTILE HOSTILE HOSTILE") {
				to := urls
				if !strings.Contains(line, "URL") {
					to = urls[:1]
				}
				for _, url := range to {
					for _, terminal := range []bool{true, false} {
						// Each run makes a parser, which takes 10 ms, or 50 ms with race detection.
						if runs++; racing.Detector && runs%29 != 0 || testing.Short() && runs%11 != 0 {
							continue
						}
						var args []string
						for word := range strings.FieldsSeq(line) {
							args = append(args, files.fill(word, url))
						}
						slots <- struct{}{}
						all.Go(func() {
							tryHostile(t, command, args, terminal)
							<-slots
						})
					}
				}
			}
			all.Wait()
		})
	}
}
