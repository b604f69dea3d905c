package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/gateway/jobs"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
	"github.com/agora-relay/agora/relay/mirror"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/store/sqlite"
)

// This file has the tests of rules that hold for each field of each gateway (G-35, G-38). They take the routes and the
// fields from the OpenAPI documents, and the callers from the fixture. A new route or field is tested without a change here.

// gatewayAPIs are the documents of all gateways. TestGatewayAPIs checks that none is missing.
var gatewayAPIs = map[string]apidocs.Part{"hub": hub.API, "channel": channel.API, "jobs": jobs.API, "a2a": a2a.API}

// noGateways are the extensions that are no gateways.
var noGateways = []string{gateway.Extension.Name, admin.Extension.Name, witness.Extension.Name, mirror.Extension.Name}

// TestGatewayAPIs checks that each extension with tables of a gateway is in gatewayAPIs.
func TestGatewayAPIs(t *testing.T) {
	for _, x := range serve.Extensions() {
		if _, known := gatewayAPIs[x.Name]; !known && !slices.Contains(noGateways, x.Name) {
			t.Errorf("add the API of the gateway %s to gatewayAPIs", x.Name)
		}
	}
}

// apiOperation is a method of a path of a gateway, with its parameters.
type apiOperation struct {
	gateway, method, path string
	security              []map[string]any
	parameters            []map[string]any
	body                  map[string]any // the example; nil: there is none
	schema                map[string]any
	components            map[string]any
}

// resolve follows a reference to the components of the document.
func (o apiOperation) resolve(v any) map[string]any {
	object, _ := v.(map[string]any)
	for ref, ok := object["$ref"].(string); ok; ref, ok = object["$ref"].(string) {
		place := strings.Split(strings.TrimPrefix(ref, "#/components/"), "/")
		kind, _ := o.components[place[0]].(map[string]any)
		object, _ = kind[place[1]].(map[string]any)
		if object == nil {
			return map[string]any{}
		}
	}
	return object
}

// operations returns all operations of all gateways.
func operations(t *testing.T) (all []apiOperation) {
	t.Helper()
	for name, part := range gatewayAPIs {
		var doc struct {
			Paths      map[string]map[string]any
			Components map[string]any
		}
		if err := json.Unmarshal(part.Text, &doc); err != nil {
			t.Fatal(err)
		}
		for path, item := range doc.Paths {
			for method, text := range item {
				fields, ok := text.(map[string]any)
				if !ok {
					continue
				}
				o := apiOperation{gateway: name, method: strings.ToUpper(method), path: path, components: doc.Components}
				for _, list := range []any{item["parameters"], fields["parameters"]} {
					parameters, _ := list.([]any)
					for _, p := range parameters {
						o.parameters = append(o.parameters, o.resolve(p))
					}
				}
				schemes, _ := fields["security"].([]any)
				for _, s := range schemes {
					o.security = append(o.security, s.(map[string]any))
				}
				body := o.resolve(fields["requestBody"])
				content, _ := body["content"].(map[string]any)
				media, _ := content["application/json"].(map[string]any)
				o.schema = o.resolve(media["schema"])
				o.body, _ = media["example"].(map[string]any)
				if media != nil && o.body == nil {
					t.Errorf("%s %s: the body has no example", method, path)
				}
				all = append(all, o)
			}
		}
	}
	slices.SortFunc(all, func(a, b apiOperation) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	return all
}

// variants returns the body of an operation once for each of its texts, with change in the place of that text, and the
// names of the places. Members that the schema has and the example has not are texts too.
func (o apiOperation) variants(change func(string) string) map[string][]byte {
	all := map[string][]byte{}
	add := func(where string) { all[where], _ = json.Marshal(o.body) }
	var walk func(where string, v any, set func(any))
	walk = func(where string, v any, set func(any)) {
		switch v := v.(type) {
		case string:
			set(change(v))
			add(where)
			set(v)
		case []any:
			for i := range v {
				walk(fmt.Sprintf("%s[%d]", where, i), v[i], func(x any) { v[i] = x })
			}
		case map[string]any:
			for name := range v {
				walk(where+"."+name, v[name], func(x any) { v[name] = x })
			}
		}
	}
	walk("", o.body, nil)
	properties, _ := o.schema["properties"].(map[string]any)
	for name := range properties {
		if _, given := o.body[name]; !given {
			text := "x"
			if namesURL.MatchString(name) {
				text = "https://agent.example/x"
			}
			o.body[name] = change(text)
			add("." + name)
			delete(o.body, name)
		}
	}
	return all
}

// namesURL matches the names of members that are URLs.
var namesURL = regexp.MustCompile(`(?i)url|endpoint|callback`)

// caller makes requests at the relay of a fixture.
type caller struct {
	x           fixture
	data, files string // the folders of the relay and of the client
	url         string
	agent       string // the path of an A2A endpoint that bob has, without the prefix
	a2aKey      string // of a caller of it
	hook        string // the key in the URL of a hook that bob has
}

// token returns what the file has of this kind of key, such as ck.
func (c caller) token(t *testing.T, kind, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(kind + "_[A-Za-z0-9_-]{32,}").FindString(string(text))
}

// authorize sets the header for a scheme of the documents. It fails the test if the fixture has no such key.
func (c caller) authorize(t *testing.T, r *http.Request, scheme string, body []byte) {
	t.Helper()
	file := func(name string) string { return filepath.Join(c.files, name) }
	key := ""
	switch scheme {
	case "":
		return
	case "operatorKey":
		key = c.token(t, "op", filepath.Join(c.data, datafolder.OperatorKey))
	case "hubKey":
		key = c.token(t, "ca", file("hub-alice/chorus-credentials.json"))
	case "channelKey":
		key = c.token(t, "ck", file("ops.ck"))
	case "memberKey":
		key = c.token(t, "cm", file("bob.cm"))
	case "toolToken":
		key = c.token(t, "mt", file("bob.deliveries"))
	case "jobsKey":
		key = c.token(t, "cj", file("acme.cj"))
	case "a2aKey":
		key = c.a2aKey
	case "signedCall":
		bob, err := didkey.Load(file("bob.key"))
		if err != nil {
			t.Fatal(err)
		}
		call := envelope.Call{}
		call.Audience, call.Target, call.TS, call.Method = c.x.Relay, r.URL.RequestURI(), c.x.At, r.Method
		call.Body = sha256.Sum256(body)
		token, err := call.Sign(bob)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Agora "+token)
		return
	}
	if key == "" {
		t.Fatalf("the fixture has no key for %s", scheme)
	}
	r.Header.Set("Authorization", "Bearer "+key)
}

// path returns the path of an operation with values of the fixture for its parameters, except for those in other.
func (c caller) path(t *testing.T, o apiOperation, other map[string]string) string {
	t.Helper()
	file := func(name string) string {
		text, err := os.ReadFile(filepath.Join(c.files, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	find := func(text, expression string) string { return regexp.MustCompile(expression).FindString(text) }
	values := map[string]string{"channel": find(file("ops.json"), "ch_[a-z2-7]{26}"), "name": "bot", "inbox": find(file("bob.deliveries"), "in_[a-z2-7]{26}"),
		"key": find(file("bot.url"), "sk_.*"), "token": find(file("bob.deliveries"), "tok_[A-Za-z0-9_-]{43}"), "id": "alice",
		"agent": c.agent, "turn": "trn_" + strings.Repeat("a", 26), "cid": "c"}
	if o.gateway == "a2a" {
		values["key"] = c.hook
	}
	if o.gateway == "jobs" {
		values["id"] = find(file("job.json"), `[0-9a-f-]{36}","status`)[:36]
	}
	return regexp.MustCompile(`{(\w+)}`).ReplaceAllStringFunc(o.path, func(name string) string {
		name = strings.Trim(name, "{}")
		if value, given := other[name]; given {
			return value
		}
		if values[name] == "" {
			t.Fatalf("%s: there is no value for {%s}", o.path, name)
		}
		return values[name]
	})
}

// do sends a request of an operation, and returns the answer.
func (c caller) do(t *testing.T, o apiOperation, path, scheme string, body []byte) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), o.method, c.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	c.authorize(t, r, scheme, body)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// schemes returns the schemes of an operation; "" if it needs no key.
func (o apiOperation) schemes() (names []string) {
	for _, s := range o.security {
		name := ""
		for name = range s {
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return []string{""}
	}
	return names
}

// tokenOnly are paths whose token the fixture has not. Their bodies cannot be reached, so only the status is checked.
var tokenOnly = []string{"/channel/channels/{channel}/inbox/{token}", "/jobs/cb/{token}", "/a2a/work/{turn}/events"}

// refused reports whether an answer is a refusal. Errors of JSON-RPC have the status 200.
func refused(o apiOperation, status int, answer string) bool {
	rpc := o.gateway == "a2a" && status == http.StatusOK && strings.Contains(answer, `"error":{"code":-32`)
	return rpc || status >= 400 && status < 500
}

// refusesNUL checks that each text of each gateway refuses U+0000 (G-35): in bodies, in paths and in queries.
func (c caller) refusesNUL(t *testing.T) {
	t.Helper()
	fields := map[string]int{}
	for _, o := range operations(t) {
		for _, scheme := range o.schemes() {
			for where, body := range o.variants(func(text string) string { return text + "\x00" }) {
				status, answer := c.do(t, o, c.path(t, o, nil), scheme, body)
				named := strings.Contains(answer, "U+0000") || slices.Contains(tokenOnly, o.path)
				if !refused(o, status, answer) || !named {
					t.Errorf("%s %s as %q with U+0000 in %s: %d %.200s", o.method, o.path, scheme, where, status, answer)
				}
				fields[o.gateway]++
			}
			if strings.HasSuffix(o.path, "/inbox") && o.method == http.MethodGet {
				continue // an answer without end
			}
			for _, p := range o.parameters {
				name, _ := p["name"].(string)
				for _, text := range []string{"x%00", "%00", "%ff"} {
					path := ""
					switch p["in"] {
					case "path":
						path = c.path(t, o, map[string]string{name: text})
					case "query":
						path = c.path(t, o, nil) + "?" + url.QueryEscape(name) + "=" + text
					default:
						continue
					}
					if status, answer := c.do(t, o, path, scheme, nil); status >= 500 {
						t.Errorf("%s %s as %q: %d %.200s", o.method, path, scheme, status, answer)
					}
				}
			}
		}
	}
	for name := range gatewayAPIs {
		if fields[name] < 10 {
			t.Errorf("%s: only %d texts are tested", name, fields[name])
		}
	}
}

// refusesSpellings checks that no field of a gateway with a URL takes one of an excluded host in another spelling (G-38).
func (c caller) refusesSpellings(t *testing.T) {
	t.Helper()
	hosts := []string{"x.ｌｏｃａｌｈｏｓｔ", "x。local", "１０.0.0.1", "ｘ.internal.", "１６９.254.169.254", "10。0。0。1"}
	urls := map[string]int{}
	for _, o := range operations(t) {
		for _, host := range hosts {
			changed := map[string]bool{}
			variants := o.variants(func(text string) string {
				if !strings.HasPrefix(text, "https://") {
					return text
				}
				changed[text] = true
				return "https://" + host + "/x"
			})
			for where, body := range variants {
				if len(changed) == 0 || !bytes.Contains(body, []byte("https://"+host+"/x")) || slices.Contains(tokenOnly, o.path) {
					continue
				}
				for _, scheme := range o.schemes() {
					status, answer := c.do(t, o, c.path(t, o, nil), scheme, body)
					if !refused(o, status, answer) {
						t.Errorf("%s %s as %q with %s in %s: %d %.200s", o.method, o.path, scheme, host, where, status, answer)
					}
					urls[o.gateway]++
				}
			}
		}
	}
	for name := range gatewayAPIs {
		if urls[name] == 0 {
			t.Errorf("%s: no URL is tested", name)
		}
	}
}

// publish gives bob an A2A endpoint and a hook, which the fixture has not.
func (c *caller) publish(t *testing.T) {
	t.Helper()
	bob, err := didkey.Load(filepath.Join(c.files, "bob.key"))
	if err != nil {
		t.Fatal(err)
	}
	at := wire.NewEndpoint(c.x.Relay+"/a2a", bob.DID())
	card, err := at.Sign(at.FromManifest(envelope.Manifest{Name: "Bob", Version: "1",
		Intents: []envelope.Intent{{ID: "demo.echo"}}}, wire.Public), wire.Public, bob)
	if err != nil {
		t.Fatal(err)
	}
	c.agent = bob.DID().Multibase()
	signed := func(gateway, method, path, body string) string {
		o := apiOperation{gateway: gateway, method: method}
		status, answer := c.do(t, o, "/"+gateway+path, "signedCall", []byte(body))
		if status > 299 {
			t.Fatalf("%s %s: %d %s", method, path, status, answer)
		}
		return answer
	}
	signed("a2a", "PUT", "/"+c.agent+"/endpoint", fmt.Sprintf(`{"card":%s,"access":"public","mode":"message","listed":false}`, card))
	c.a2aKey = regexp.MustCompile(`aa_[A-Za-z0-9_-]{32,}`).FindString(signed("a2a", "POST", "/"+c.agent+"/keys", `{"name":"alice"}`))
	c.hook = regexp.MustCompile(`ah_[A-Za-z0-9_-]{32,}`).FindString(signed("a2a", "POST", "/hooks", `{}`))
	signed("hub", "POST", "/register", fmt.Sprintf(`{"agent_id":"signed@b","endpoint":"agora:%s","agent_card":`+
		`{"card_version":"0.3","user_culture":"en","supported_languages":["en"]}}`, bob.DID()))
}

// TestTexts checks the texts and the URLs of all gateways on SQLite (G-35, G-38). TestTextsOnPostgres does so on PostgreSQL.
func TestTexts(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		data := x.unpack(t, "backup")
		store, err := sqlite.Open(t.Context(), filepath.Join(data, datafolder.Database), x.options())
		if err != nil {
			t.Fatal(err)
		}
		x.checkTexts(t, data, store)
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		clean(t, data, x.At)
	})
}

func (x fixture) checkTexts(t *testing.T, data string, store relay.Extender) {
	t.Helper()
	url, stop := x.serve(t, data, store)
	defer stop()
	c := caller{x: x, data: data, files: x.unpack(t, "client"), url: url}
	c.publish(t)
	c.refusesNUL(t)
	c.refusesSpellings(t)
}

// TestRepairTexts checks a text with U+0000 that an early version has stored. agora check finds it, and with --repair
// it replaces the character.
func TestRepairTexts(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		data := x.unpack(t, "backup")
		spoilLabel(t, x, data)
		code, output := runAgora(t.Context(), "check", "--data", data)
		if code != cli.ExitFailed || !strings.Contains(output, "channel_inbox n=1: the text in the column label has the character U+0000") {
			t.Errorf("%d: %s", code, output)
		}
		code, output = runAgora(t.Context(), "check", "--data", data, "--repair")
		if code != cli.ExitOK || !strings.Contains(output, "replaced U+0000 in channel_inbox n=1") {
			t.Errorf("%d: %s", code, output)
		}
		code, output = runAgora(t.Context(), "check", "--data", data, "--repair")
		if code != cli.ExitOK || strings.Contains(output, "replaced") {
			t.Errorf("%d: %s", code, output)
		}
	})
}

// spoilLabel stores a label with U+0000, as version 0.1.0 did.
func spoilLabel(t *testing.T, x fixture, data string) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(data, datafolder.Database), x.options())
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Update(t.Context(), func(tx relay.StoreTx) error {
		var n, created, deleted int64
		var id, owner string
		err := tx.Query(func(scan func(...any) error) error { return scan(&n, &id, &owner, &created, &deleted) },
			"SELECT n, id, owner, created, deleted FROM channel_inbox WHERE n = 1")
		if err != nil {
			return err
		}
		const label = "two\x00words"
		_, err = tx.Exec("UPDATE channel_inbox SET label = ?, sum = ? WHERE n = 1", label,
			gateway.Sum("channel_inbox", n, id, owner, label, created, deleted))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}
