package envelope_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

var noon = time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)

// testKey returns the key whose seed is the byte seed, 32 times.
func testKey(t testing.TB, seed byte) didkey.Key {
	t.Helper()
	key, err := didkey.FromSeed(bytes.Repeat([]byte{seed}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// body returns the JSON of an envelope that is valid except for its signature. changes are pairs of a member's name and
// its new raw value; the value "" removes the member. Names are written as given, so they may contain escapes.
func body(t testing.TB, changes ...string) string {
	t.Helper()
	members := []string{
		"version", `"1.0"`, "id", `"msg_1"`, "ts", `"2026-02-02T12:00:00Z"`, "type", `"REQUEST"`,
		"sender", `{"id":"` + string(testKey(t, 1).DID()) + `"}`, "recipient", `{"id":"` + string(testKey(t, 2).DID()) + `"}`,
		"payload", `{"intent":"x","request_id":"req_1"}`, "thread", `{"id":"thread_1"}`, "meta", `{"hop":0,"ttl":300}`,
		"sig", `"` + strings.Repeat("A", 86) + `"`,
	}
	for i := 0; i < len(changes); i += 2 {
		index := 0
		for index < len(members) && members[index] != changes[i] {
			index += 2
		}
		if index == len(members) {
			members = append(members, changes[i], "")
		}
		members[index+1] = changes[i+1]
	}
	var text []string
	for i := 0; i < len(members); i += 2 {
		if members[i+1] != "" {
			text = append(text, `"`+members[i]+`":`+members[i+1])
		}
	}
	return "{" + strings.Join(text, ",") + "}"
}

// sign returns text with the signature of the first test key as its first member. text is an envelope in JSON without
// sig.
func sign(t testing.TB, text string) string {
	t.Helper()
	canonical, err := envelope.Canonicalize([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	sig, err := testKey(t, 1).Sign(canonical)
	if err != nil {
		t.Fatal(err)
	}
	return `{"sig":"` + base64.RawURLEncoding.EncodeToString(sig) + `",` + text[1:]
}

func parse(t testing.TB, text string) *envelope.Envelope {
	t.Helper()
	e, err := envelope.Parse([]byte(text), 0)
	if err != nil {
		t.Fatalf("%v: %.200s", err, text)
	}
	return e
}

func codeOf(t testing.TB, err error) envelope.Code {
	t.Helper()
	if err == nil {
		return ""
	}
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		t.Fatalf("not an *envelope.Error: %v", err)
	}
	return refusal.Code
}

func TestParsedFields(t *testing.T) {
	text := body(t, "sender", `{"id":"`+string(testKey(t, 1).DID())+`","name":"N \"q\" é","url":"https://a.example","x":1}`,
		"meta", `{"hop":16,"ttl":7e1,"relay":["https://a.example","https://b.example"]}`, "extra", `{"b":[2.50],"a":null}`)
	e := parse(t, text)
	if e.ID != "msg_1" || !e.TS.Equal(noon) || e.Type != envelope.TypeRequest || e.Thread != "thread_1" || e.RequestID != "req_1" {
		t.Errorf("ID, TS, Type, Thread or RequestID is wrong: %+v", e)
	}
	if want := (envelope.Party{ID: testKey(t, 1).DID(), Name: `N "q" é`, URL: "https://a.example"}); e.Sender != want {
		t.Errorf("Sender = %+v", e.Sender)
	}
	if e.Recipient != testKey(t, 2).DID() || string(e.Payload) != `{"intent":"x","request_id":"req_1"}` {
		t.Errorf("Recipient = %s, Payload = %s", e.Recipient, e.Payload)
	}
	if e.TTL != 70*time.Second || e.Hop != 16 || strings.Join(e.Relays, " ") != "https://a.example https://b.example" {
		t.Errorf("TTL = %v, Hop = %d, Relays = %v", e.TTL, e.Hop, e.Relays)
	}
	if !e.ExpiresAt().Equal(noon.Add(70 * time.Second)) {
		t.Errorf("ExpiresAt = %v", e.ExpiresAt())
	}
	if !bytes.Contains(e.Canonical(), []byte(`"extra":{"a":null,"b":[2.5]}`)) {
		t.Errorf("the unknown member was not kept: %s", e.Canonical())
	}
	marshalled, err := json.Marshal(map[string]any{"e": e})
	if err != nil || string(marshalled) != `{"e":`+string(e.Canonical())+`}` {
		t.Errorf("as JSON it is %s, %v", marshalled, err)
	}
	if parse(t, string(e.Canonical())).Hash() != e.Hash() || parse(t, body(t)).Hash() == e.Hash() {
		t.Error("equal canonical forms must have the same Hash, and different ones different Hashes")
	}
	var payload envelope.Request
	if err := e.DecodePayload(&payload); err != nil || payload.Intent != "x" || payload.RequestID != "req_1" {
		t.Errorf("DecodePayload: %+v, %v", payload, err)
	}
	if e.PayloadString("intent") != "x" || e.PayloadString("Intent") != "" || e.PayloadString("nothing") != "" {
		t.Error("PayloadString does not read members by their exact names")
	}
}

func TestDefaults(t *testing.T) {
	e := parse(t, body(t, "recipient", "", "thread", "", "meta", ""))
	if e.TTL != envelope.DefaultTTL || e.Hop != 0 || e.Relays != nil || e.Recipient != "" || e.Thread != "req_1" {
		t.Errorf("got %+v", e)
	}
	if e := parse(t, body(t, "meta", `{}`)); e.TTL != envelope.DefaultTTL {
		t.Errorf("TTL = %v", e.TTL)
	}
	if e := parse(t, body(t, "type", `"MANIFEST"`, "thread", "", "payload", `{"request_id":5}`)); e.Thread != "" || e.RequestID != "" {
		t.Errorf("a MANIFEST has thread %q and request_id %q; want none", e.Thread, e.RequestID)
	}
}

// Refusals are sent to clients and logged, so their text must not contain the refused input.
func TestErrorsDoNotQuoteTheInput(t *testing.T) {
	const mark = "XYZZY"
	texts := []string{mark, `"` + mark, `{"` + mark + `":}`, "\xff" + mark, "\ufeff" + mark, `{"` + mark + `":1,"` + mark + `":2}`,
		`["` + mark + `"]`, body(t, "id", `"`+mark+`!"`), body(t, "payload", `{"request_id":["`+mark+`"]}`)}
	for _, member := range []string{"version", "ts", "type", "sender", "recipient", "payload", "thread", "meta", "sig"} {
		texts = append(texts, body(t, member, `"`+mark+`"`), body(t, member, `{"id":"`+mark+`"}`), body(t, member, `["`+mark+`"]`))
	}
	refused := 0
	for _, text := range texts {
		e, err := envelope.Parse([]byte(text), 0)
		if err == nil {
			err = e.Verify()
		}
		if err != nil {
			refused++
		}
		if codeOf(t, err) != "" && strings.Contains(err.Error(), mark) {
			t.Errorf("%q quotes its input: %v", text, err)
		}
	}
	if refused != len(texts) {
		t.Errorf("only %d of %d texts were refused", refused, len(texts))
	}
}

// TestTables checks that every code and every type of the package has one complete row in its table.
func TestTables(t *testing.T) {
	constants := map[string]int{}
	for _, name := range []string{"code.go", "envelope.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if kind, ok := spec.Type.(*ast.Ident); ok && (kind.Name == "Code" || kind.Name == "Type") {
				text, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				constants[kind.Name+" "+text]++
			}
			return true
		})
	}
	rows := map[string]int{}
	for _, row := range envelope.Codes() {
		rows["Code "+string(row.Code)]++
		if row.Text == "" || row.Status < 400 || row.Status > 599 || row.Retryable && row.Settles {
			t.Errorf("the row of %s is incomplete: %+v", row.Code, row)
		}
	}
	numbers := map[int]envelope.Type{}
	for _, row := range envelope.TypeTable() {
		rows["Type "+string(row.Type)]++
		if other, used := numbers[row.Number]; used || row.By == "" || row.ID == "" || (row.Before == nil) != (row.After == "") {
			t.Errorf("the row of %s is incomplete, or %q has its number: %+v", row.Type, other, row)
		}
		numbers[row.Number] = row.Type
	}
	if len(rows) == 0 || !maps.Equal(constants, rows) {
		t.Errorf("the constants are %v, and the tables have %v", constants, rows)
	}
}

// TestAgentCodes checks which failures of agents are retryable.
func TestAgentCodes(t *testing.T) {
	for code, want := range map[envelope.AgentCode]bool{ // the table in the specification
		envelope.AgentInvalidRequest: false, envelope.AgentIntentNotSupported: false, envelope.AgentInsufficientBudget: true,
		envelope.AgentTimeout: true, envelope.AgentUnavailable: true, envelope.AgentForbidden: false,
		envelope.AgentInternal: true, "SOMETHING_ELSE": false,
	} {
		if code.Retryable() != want {
			t.Errorf("AgentCode %s: retryable %v", code, !want)
		}
	}
}
