package faults

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// operation is a method of a path in the OpenAPI document, with many requests for it.
type operation struct {
	method, path string // the path as the document has it

	targets []string // paths with queries
	headers []http.Header
	callers []string // names of security schemes; empty: none
	bodies  []string
	signed  int // how many signed messages stand in the place of a short body; 0: none do
	victim  *victim
}

// victim has what callers of a relay know of real objects.
type victim struct {
	url    string
	keys   map[string]string // by security scheme
	real   *strings.Replacer // replaces names of the document's examples by those of real objects
	values map[string]string // of parameters that have neither an example nor a telling schema
	tokens map[string]string // the value of {token}, by path
	signer didkey.Key
}

type object = map[string]any

// document is an OpenAPI document.
type document struct{ all object }

// follow returns what a reference refers to, or the value itself.
func (d document) follow(value any) object {
	o, _ := value.(object)
	ref, isRef := o["$ref"].(string)
	if !isRef {
		return o
	}
	at := any(d.all)
	for _, name := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		at = at.(object)[name]
	}
	return d.follow(at)
}

// operations returns all operations of a relay. Those that remove something come last.
func (v *victim) operations(t testing.TB) (all []*operation) {
	t.Helper()
	d := document{}
	_, text := v.send(t, "GET", "/openapi.json", "", "")
	must(t, json.Unmarshal([]byte(text), &d.all))
	for path, item := range d.all["paths"].(object) {
		shared, _ := item.(object)["parameters"].([]any)
		for method, o := range item.(object) {
			if method != "parameters" {
				o := o.(object)
				own, _ := o["parameters"].([]any)
				all = append(all, v.operation(d, strings.ToUpper(method), path, o, slices.Concat(shared, own)))
			}
		}
	}
	rank := map[string]int{"HEAD": 1, "GET": 1, "DELETE": 3}
	slices.SortFunc(all, func(a, b *operation) int {
		return cmp.Or(cmp.Compare(cmp.Or(rank[a.method], 2), cmp.Or(rank[b.method], 2)),
			cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method))
	})
	return all
}

func (v *victim) operation(d document, method, path string, o object, parameters []any) *operation {
	p := &operation{method: method, path: path, callers: []string{""}, victim: v, headers: []http.Header{{}}}
	required, dear := url.Values{}, url.Values{}
	optional, target := url.Values{}, path
	for _, parameter := range parameters {
		parameter := d.follow(parameter)
		name, value := parameter["name"].(string), v.value(d, parameter)
		switch {
		case parameter["in"] == "path":
			target = strings.ReplaceAll(target, "{"+name+"}", value)
		case parameter["in"] == "header":
			p.headers = append(p.headers, http.Header{name: {value}})
		case parameter["required"] == true:
			required.Set(name, value)
		case name == "limit" || name == "cursor" && parameter["example"] == "0":
			dear.Set(name, value)
			fallthrough
		default:
			optional.Set(name, value)
		}
	}
	if token, known := v.tokens[path]; known {
		target = strings.ReplaceAll(path, "{token}", token)
		target = strings.ReplaceAll(target, "{channel}", "ch_1")
	}
	add := func(all ...url.Values) {
		query := url.Values{}
		for _, values := range all {
			maps.Copy(query, values)
		}
		p.targets = append(p.targets, v.real.Replace(target)+"?"+query.Encode())
	}
	add(required)
	for name, values := range optional {
		add(required, url.Values{name: values})
		add(required, dear, url.Values{"timeout": {"0"}}, url.Values{name: values})
	}
	security, _ := o["security"].([]any)
	for _, one := range security {
		p.callers = slices.AppendSeq(p.callers, maps.Keys(one.(object)))
	}
	p.addBodies(d, o)
	return p
}

// value returns a value of a parameter, as large as allowed.
func (v *victim) value(d document, parameter object) string {
	schema := d.follow(parameter["schema"])
	ref, _ := parameter["schema"].(object)["$ref"].(string)
	if enum, ok := schema["enum"].([]any); ok {
		return fmt.Sprint(enum[len(enum)-1])
	}
	named := v.values[parameter["name"].(string)]
	if strings.HasSuffix(ref, "/DID") {
		named = string(v.signer.DID())
	}
	for _, value := range []any{named, parameter["example"], schema["maximum"], schema["default"], schema["minimum"]} {
		if value == false {
			return "true"
		}
		if value != nil && value != "" {
			return fmt.Sprint(value)
		}
	}
	if schema["type"] == "boolean" {
		return "true"
	}
	return "1"
}

// addBodies adds the example of the document, the same with other names, and bodies that are refused.
func (p *operation) addBodies(d document, o object) {
	body, given := o["requestBody"]
	if !given {
		p.bodies = []string{""}
		return
	}
	media, isJSON := d.follow(body)["content"].(object)["application/json"]
	if !isJSON {
		p.signed = 20
		p.bodies = []string{"NEW", strings.Repeat("{}\n", 10_000), strings.Repeat(strings.Repeat("[", 60_000)+"\n", 50)}
		return
	}
	content := d.follow(media)
	ref, _ := content["schema"].(object)["$ref"].(string)
	if strings.HasSuffix(ref, "/Posted") {
		p.signed = 1
	}
	example, _ := json.Marshal(content["example"])
	members, _ := content["example"].(object)
	other := maps.Clone(members)
	for name, value := range members {
		if _, isText := value.(string); isText && (strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "name")) {
			other[name] = "NEW"
		}
	}
	renamed, _ := json.Marshal(other)
	p.bodies = []string{p.victim.real.Replace(string(example)), p.victim.real.Replace(string(renamed)),
		"{", strings.Repeat("[", 60_000), `{"x":"` + strings.Repeat("x", 100_000) + `"}`}
}

// request returns request number n of an operation. from is the address of the client.
func (p *operation) request(n int, from string) (*http.Request, error) {
	pick := func(choices int) (i int) {
		i, n = n%choices, n/choices
		return i
	}
	unique := fmt.Sprintf("n%d%s", n, strings.ReplaceAll(from, ".", ""))
	target, header := p.targets[pick(len(p.targets))], p.headers[pick(len(p.headers))].Clone()
	caller, body := p.callers[pick(len(p.callers))], p.bodies[pick(len(p.bodies))]
	body = strings.ReplaceAll(body, "NEW", unique)
	if p.signed > 0 && len(body) < 10_000 {
		var lines []string
		for range p.signed {
			e, err := envelope.Draft{TTL: time.Hour, Recipient: p.victim.signer.DID(),
				Payload: envelope.Request{Intent: "echo"}}.Sign(p.victim.signer, time.Now())
			if err != nil {
				return nil, err
			}
			lines = append(lines, string(e.Canonical()))
		}
		body = strings.Join(lines, "\n")
	}
	r, err := http.NewRequest(p.method, p.victim.url+target, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	r.Header = header
	if header.Get("Idempotency-Key") != "" {
		header.Set("Idempotency-Key", unique)
	}
	header.Set(forwardedFor, from)
	if body != "" {
		header.Set("Content-Type", "application/json")
	}
	return r, p.victim.authorize(r, caller, body)
}

// authorize adds what a security scheme needs.
func (v *victim) authorize(r *http.Request, scheme, body string) (err error) {
	read := envelope.Read{Audience: "https://relay.example", Method: r.Method, Target: r.URL.RequestURI(), TS: time.Now()}
	key := "Bearer " + v.keys[scheme]
	switch scheme {
	case "":
		return nil
	case "signedRead":
		key, err = read.Sign(v.signer)
	case "signedCall":
		key, err = envelope.Call{Read: read, Body: sha256.Sum256([]byte(body))}.Sign(v.signer)
	}
	if strings.HasPrefix(scheme, "signed") {
		key = "Agora " + key
	}
	r.Header.Set("Authorization", key)
	return err
}
