package hub_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
)

const (
	asJSON  = "application/json"
	baseURL = gatetest.PublicURL + "/hub" // of the hub
)

// H-23: /discover has both forms: a bare list, and with a valid key the same list in the wrapper.
func TestDirectory(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	if a := f.get("/discover", ""); string(a.Body) != "[]\n" {
		t.Errorf("the empty directory is %v", a)
	}
	card := func(culture string, languages ...string) object {
		return object{"agent_card": object{"card_version": "0.3", "user_culture": culture, "supported_languages": languages}}
	}
	xiaov := f.register("xiaov@agchorus", card("zh-CN", "zh-CN", "en"))
	f.register("Zoe@agchorus", card("en", "en"))
	old := f.register("a-deleted@agchorus", card("en", "en"))
	f.want(f.remove("/agents/a-deleted@agchorus", old), 200, "")
	hook := newFixedHook(t)
	f.want(f.post("/agents", f.Operator, object{"agent_id": "hook@agchorus", "endpoint": hook.URL}), 201, "")
	f.open(xiaov, nil).frame()

	zoe := `{"agent_id":"Zoe@agchorus","culture":"en","languages":["en"],"online":false}`
	hooked := func(online bool) string {
		return fmt.Sprintf(`{"agent_id":"hook@agchorus","culture":null,"languages":[],"online":%v}`, online)
	}
	vee := `{"agent_id":"xiaov@agchorus","culture":"zh-CN","languages":["zh-CN","en"],"online":true}`
	check := func(query string, want ...string) {
		t.Helper()
		list := "[" + strings.Join(want, ",") + "]"
		bare := f.get("/discover"+query, "")
		if bare.Status != 200 || string(bare.Body) != list+"\n" || bare.Header.Get("Content-Type") != asJSON {
			t.Errorf("GET /discover%s: %v, want %s", query, bare, list)
		}
		for _, key := range []string{xiaov, f.Operator} {
			wrapped := f.get("/discover"+query, key)
			if wrapped.Status != 200 || !wrapped.begins(`{"success":true,"data":`+list+`,"metadata":{"timestamp":"`) {
				t.Errorf("GET /discover%s with a key: %v, want %s", query, wrapped, list)
			}
		}
	}
	check("", zoe, hooked(false), vee)
	check("?culture=en", zoe)
	check("?culture=zh-CN", vee)
	check("?culture=zh")
	check("?online=true", vee)
	check("?online=true&culture=en")
	check("?other=1&culture=en", zoe)
	// Online is also an agent whose webhook has replied in the last 5 minutes.
	f.send(xiaov, "xiaov@agchorus", "hook@agchorus", "hello")
	check("", zoe, hooked(true), vee)
	f.wait(5*time.Minute - moment)
	check("?online=true", hooked(true), vee)
	f.wait(2 * moment)
	check("?online=true", vee)
	for _, query := range []string{"?culture=", "?culture=english", "?online=", "?online=1", "?culture=en&culture=ja",
		"?online=true&online=true"} {
		f.want(f.get("/discover"+query, ""), 400, "ERR_VALIDATION")
	}
	f.want(f.get("/discover", "ca_0123456789abcdef0123456789abcdef"), 401, "ERR_UNAUTHORIZED")
	f.want(f.get("/discover", old), 401, "ERR_UNAUTHORIZED")
	basic := map[string]string{"Authorization": "Basic eDp5"}
	f.want(f.do(call{"GET", "/discover", "", nil, basic}), 401, "ERR_UNAUTHORIZED")
}

// H-24: no answer to a stranger contains an endpoint. Only the agent and the operator see it.
func TestEndpointsAreHidden(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	hook := newFixedHook(t)
	hook.status = 500
	endpoint := hook.URL + "/secret-path"
	other := f.register("other@b")
	key := f.register("hook@b", object{"endpoint": endpoint})
	sent := f.send(other, "other@b", "hook@b", "hello")
	seen := []answer{sent}
	for _, stranger := range []string{"", other} {
		for _, path := range []string{"/agents", "/agents/hook@b", "/discover", "/invite/hook@b", "/health", "/skill",
			"/.well-known/chorus.json", "/agent/messages"} {
			for _, accept := range []string{asJSON, "text/html"} {
				seen = append(seen, f.do(call{"GET", path, stranger, nil, map[string]string{"Accept": accept}}))
			}
		}
		seen = append(seen, f.post("/register", stranger, with(registrationOf("hook@b"), object{"endpoint": endpoint})),
			f.remove("/agents/hook@b", stranger))
	}
	for _, a := range seen {
		if a.has("secret-path") || a.has(hook.Listener.Addr().String()) {
			t.Errorf("a stranger sees the endpoint: %v", a)
		}
	}
	const card = `"agent_id":"hook@b",` +
		`"agent_card":{"card_version":"0.3","supported_languages":["en"],"user_culture":"en"},`
	for path, want := range map[string]string{"/agents/hook@b": `"has_endpoint":true}`,
		"/agents/other@b": `"has_endpoint":false}`} {
		a := f.get(path, "")
		if !a.has(want) || a.has(`"endpoint"`) {
			t.Errorf("GET %s: %v", path, a)
		}
	}
	for _, by := range []string{key, f.Operator} {
		for _, path := range []string{"/agents", "/agents/hook@b"} {
			a := f.get(path, by)
			if !a.has(card) || !a.has(`Z","endpoint":"`+endpoint+`"}`) {
				t.Errorf("GET %s by the agent or the operator: %v", path, a)
			}
		}
	}
}

// hostile are parts of paths that should harm a page which shows them.
var hostile = append(strings.Fields(`
	%3Cscript%3Ealert(1)%3C/script%3E %3Cscript%3Ealert(1)%3C%2Fscript%3E@b a@b%3Cimg%20src=x%20onerror=alert(1)%3E
	%22%3E%3Csvg/onload=alert(1)%3E %22onmouseover=%22alert(1)@b '-alert(1)-'@b %27%3E%3Ca%3E@b javascript:alert(1)@b
	a@b%0d%0aSet-Cookie:%20x=1 a@b%0a%0a%3Chtml%3E a%00@b %00 %ff@b %c0%af@b %e2%80%ae@b %ef%bb%bf@b %7B%7B.Hub%7D%7D@b
	%7B%7B.%7D%7D $%7Bjndi:ldap://x%7D@b %25253Cscript%25253E@b %3C!--@b ]]%3E@b &lt;script&gt;@b &%2360;@b .. .
	../../etc/passwd %2e%2e%2f%2e%2e%2f ..%5c..%5c@b a/b@c a%2Fb@c a@b/c a@b?x=<b> a@b#<b> a@b;x=1 %20 a%20@b a+b@c a@@b @
	@b a@ %40 / //evil.example/a@b http://evil.example/ +ADw-script+AD4-@b 好@b a@did.key a@b short -._@-._`),
	"", "\xff\xfe", strings.Repeat("a", 200)+"@b", strings.Repeat("%3C", 500))

// H-25: the invite page is inert for every path.
func TestInvitePages(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	f.register("a@b")
	allowed := regexp.MustCompile(`^[a-zA-Z0-9._-]+@[a-zA-Z0-9._-]+$`)
	tagsOf := func(a answer) []string {
		tags := regexp.MustCompile(`<[^>]*>`).FindAllString(string(a.Body), -1)
		return slices.DeleteFunc(tags, regexp.MustCompile(`^</?d[dt]>$`).MatchString)
	}
	plain := tagsOf(f.get("/invite/short", ""))
	pages := 0
	for _, part := range hostile {
		for _, accept := range []string{"", "text/html", "*/*"} {
			a := f.raw("GET /hub/invite/"+part+" HTTP/1.1", map[string]string{"Accept": accept})
			contentType := a.Header.Get("Content-Type")
			if a.Header.Get("X-Content-Type-Options") != "nosniff" && contentType != "text/plain; charset=utf-8" {
				t.Errorf("%q: the header is %v", part, a.Header)
			}
			switch contentType {
			case asJSON:
				if a.Status != 400 && a.Status != 404 || a.code() == "" {
					t.Errorf("%q: %v", part, a)
				}
			case "text/plain; charset=utf-8": // of net/http, which does not take the request line
				if a.Status != 400 || a.has("<") {
					t.Errorf("%q: %v", part, a)
				}
			case "text/html; charset=utf-8":
				pages++
				id := regexp.MustCompile(`<h1>Talk to (.*)</h1>`).FindSubmatch(a.Body)
				if a.Status != 200 || id == nil || !allowed.Match(id[1]) || len(a.Header["Content-Security-Policy"]) != 1 ||
					a.Header.Get("Content-Security-Policy") != "default-src 'none'; style-src 'unsafe-inline'" {
					t.Errorf("%q: %v %v", part, a.Header, a)
				}
				// The page has the tags of a page with a harmless address, and those of the culture.
				if got := tagsOf(a); !slices.Equal(got, plain) {
					t.Errorf("%q: the tags are %q", part, got)
				}
			default:
				t.Errorf("%q: %v %v", part, a.Header, a)
			}
			if len(a.Header["Set-Cookie"]) > 0 || a.Header.Get("Location") != "" {
				t.Errorf("%q: the header is %v", part, a.Header)
			}
		}
	}
	if pages < 12 {
		t.Errorf("there were only %d pages", pages)
	}
}

// raw sends a request whose first line may be malformed, and returns the answer.
func (f *fixture) raw(line string, header map[string]string) answer {
	f.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	text := line + "\r\n"
	if header["Host"] == "" {
		text += "Host: 127.0.0.1\r\n"
	}
	for name, value := range header {
		text += name + ": " + value + "\r\n"
	}
	if _, err := c.Write([]byte(text + "\r\n")); err != nil {
		f.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer{gatetest.Answer{Status: response.StatusCode, Header: response.Header, Body: body}}
}

// TestInvite checks the content of the invite, and H-26: its hub is the base URL, whatever the header Host says.
func TestInvite(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	f.register("a@b")
	f.open(f.register("online@b"), nil).frame()
	f.want(f.post("/agents", f.Operator, object{"agent_id": "cardless@b", "endpoint": "https://x.example"}), 201, "")
	for id, want := range map[string]string{
		"a@b":      `"culture":"en","online":false,"exists":true`,
		"online@b": `"culture":"en","online":true,"exists":true`, "cardless@b": `"culture":null,"online":false,"exists":true`,
		"unknown@b": `"culture":null,"online":false,"exists":false`,
		"x@did.key": `"culture":null,"online":false,"exists":false`,
	} {
		for _, accept := range []string{asJSON, "text/html, application/json;q=0.9"} {
			a := f.want(f.do(call{"GET", "/invite/" + id, "", nil, map[string]string{"Accept": accept}}), 200, "")
			if !a.begins(`{"success":true,"data":{"agent_id":"`+id+`","hub":"`+baseURL+`",`+want+`,"connect_instructions":"`) ||
				!strings.Contains(a.text("connect_instructions"), baseURL+"/register") {
				t.Errorf("%s: %v", id, a)
			}
		}
		a := f.want(f.do(call{"GET", "/invite/" + id, "", nil, map[string]string{"Accept": "text/html"}}), 200, "")
		if !a.has(id) || !a.has(baseURL) {
			t.Errorf("%s: %v", id, a)
		}
	}
	f.want(f.do(call{"GET", "/invite/a@b@c", "", nil, map[string]string{"Accept": asJSON}}), 400, "ERR_VALIDATION")

	// H-26, also behind a proxy, and on every path: the Host header never appears in an answer.
	const evil = "evil.example:99"
	for _, path := range []string{"/invite/a@b", "/invite/a", "/skill", "/.well-known/chorus.json", "/agents",
		"/agents/x@y", "/health", "/discover", "/nothing", "/agent/inbox", "/agent/messages"} {
		for _, accept := range []string{asJSON, "text/html"} {
			r, err := gatetest.NewRequest(t.Context(), gatetest.PublicURL+"/hub", gatetest.Call{Method: "GET", Path: path,
				Header: map[string]string{"Accept": accept, "X-Forwarded-Host": evil, "Forwarded": "host=" + evil}})
			if err != nil {
				t.Fatal(err)
			}
			r.Host = evil
			a := f.serve(r)
			if strings.Contains(fmt.Sprint(a.Header)+string(a.Body), "evil") {
				t.Errorf("%s: %v %v", path, a.Header, a)
			}
			if strings.HasPrefix(path, "/invite") && (a.Status != 200 || !a.has(baseURL)) {
				t.Errorf("%s: %v", path, a)
			}
		}
	}
	// A listener on loopback accepts only loopback names.
	if a := f.raw("GET /hub/invite/a@b HTTP/1.1", map[string]string{"Host": evil}); a.Status != 403 || a.has("evil") {
		t.Errorf("the answer on loopback is %v", a)
	}
	if a := f.raw("GET /hub/invite/a@b HTTP/1.1", map[string]string{"Host": "localhost:1"}); !a.has(baseURL) ||
		a.has("localhost") {
		t.Errorf("the answer on loopback is %v", a)
	}
}

// TestHealth checks GET /health, also after a restart, which reads the numbers from the tables.
func TestHealth(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	check := func(want string) {
		t.Helper()
		a := f.want(f.get("/health", ""), 200, "")
		got := regexp.MustCompile(`"uptime_seconds":\d+`).ReplaceAllString(string(a.Body), `"uptime_seconds":N`)
		data := `{"status":"ok","version":"test","uptime_seconds":N,` + want + "}"
		if !strings.HasPrefix(got, `{"success":true,"data":`+data+`,"metadata":`) {
			t.Errorf("the health is %v, want %s", a, want)
		}
	}
	check(`"agents_registered":0,"inbox_connections":0,"messages_stored":0,"messages_queued":0,"messages_failed":0`)
	alice, bob := f.register("alice@b"), f.register("bob@b")
	carol := f.register("carol@b")
	for _, to := range []string{"alice@b", "bob@b", "carol@b"} {
		f.send(alice, "alice@b", to, "hello")
	}
	i := f.open(bob, nil)
	i.message()
	f.want(f.remove("/agents/carol@b", carol), 200, "")
	eventually(t, "the message is handed out", func() bool { return f.states(bob)["hello"] == "sent" })
	check(`"agents_registered":2,"inbox_connections":1,"messages_stored":3,"messages_queued":1,"messages_failed":1`)
	f.Restart()
	check(`"agents_registered":2,"inbox_connections":0,"messages_stored":3,"messages_queued":1,"messages_failed":1`)
	if a := f.do(call{"HEAD", "/health", "", nil, nil}); a.Status != 200 || len(a.Body) > 0 {
		t.Errorf("HEAD: %v", a)
	}
}

// TestSkill checks GET /skill.
func TestSkill(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	page := func(query, accept string) answer {
		return f.do(call{"GET", "/skill" + query, "", nil, map[string]string{"Accept-Language": accept}})
	}
	english, chinese := page("?lang=en", "zh-CN"), page("?lang=zh-CN", "en")
	for _, a := range []answer{english, chinese} {
		if a.Status != 200 || a.Header.Get("Content-Type") != "text/markdown; charset=utf-8" || !a.has(baseURL) {
			t.Errorf("the page is %v %.200s", a.Header, a.Body)
		}
	}
	for accept, want := range map[string]answer{"": english, "en": english, "fr": english, "zh-CN": chinese, "zh": chinese,
		"ZH-tw": chinese, "en-US,en;q=0.9,zh;q=0.8": english, "fr, zh;q=0.7, en;q=0.3": chinese, "zh;q=x": english,
		"*": english} {
		if a := page("", accept); string(a.Body) != string(want.Body) {
			t.Errorf("Accept-Language %q: %.100s", accept, a.Body)
		}
	}
	for _, query := range []string{"?lang=", "?lang=fr", "?lang=EN", "?lang=en&lang=en"} {
		f.want(page(query, ""), 400, "ERR_VALIDATION")
	}
}
