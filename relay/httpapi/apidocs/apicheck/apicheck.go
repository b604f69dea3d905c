// Package apicheck checks requests and answers against the OpenAPI document of a relay. Only tests import it.
//
// An answer must be documented: its path, its method, its status, its headers, its Content-Type, and each member of its
// body. A request must be as the document says if the relay has accepted it. The relay may refuse requests that the
// document allows, because a schema cannot say everything.
package apicheck

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

// Checker checks exchanges with a relay. It is safe for concurrent use.
type Checker struct {
	document node
	paths    []template
	refusals map[string]node // by the beginning of the path, see apidocs.Part

	mu       sync.Mutex
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema // by variant and place
}

// node is an object of the document, and its place: a JSON pointer (RFC 6901).
type node struct {
	place string
	value map[string]any
}

// template is a path of the document.
type template struct {
	path     string
	segments []string
	rest     bool // the last parameter takes the rest of the path, with slashes (x-rest)
}

// The variants of the document. In the variant for answers, objects have only the documented members.
const (
	forRequests = "https://relay.test/requests.json"
	forAnswers  = "https://relay.test/answers.json"
)

// known has the Checkers that Of has made, by the texts of their parts. To compile the schemas takes longer than most
// tests.
var known sync.Map

// Of returns a Checker for a relay with these gateways. All calls with the same parts share one.
func Of(parts ...apidocs.Part) (*Checker, error) {
	var texts strings.Builder
	for _, p := range parts {
		texts.Write(p.Text)
	}
	make, _ := known.LoadOrStore(texts.String(), sync.OnceValues(func() (*Checker, error) { return newChecker(parts) }))
	return make.(func() (*Checker, error))()
}

// newChecker returns a Checker for a relay with these gateways.
func newChecker(parts []apidocs.Part) (*Checker, error) {
	text, err := apidocs.OpenAPI(apidocs.Relay{URL: "https://relay.example", Build: "test", Parts: parts})
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// Parse returns a Checker for an OpenAPI document of package apidocs.
func Parse(text []byte) (*Checker, error) {
	c := &Checker{compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}, refusals: map[string]node{}}
	c.compiler.DefaultDraft(jsonschema.Draft2020)
	c.compiler.AssertFormat()
	for variant, change := range map[string]func(any){forRequests: func(any) {}, forAnswers: closeObjects} {
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		change(document)
		if err := c.compiler.AddResource(variant, document); err != nil {
			return nil, err
		}
		c.document = node{"", document.(map[string]any)}
	}
	for path := range c.document.value["paths"].(map[string]any) {
		t := template{path: path, segments: strings.Split(path, "/")}
		t.rest = c.takesRest(t)
		c.paths = append(c.paths, t)
	}
	// A literal segment goes before a parameter, and a parameter with a text after it before one without.
	order := strings.NewReplacer("{", "\uFFFF", "}:", "\x00:")
	slices.SortFunc(c.paths, func(a, b template) int { return strings.Compare(order.Replace(a.path), order.Replace(b.path)) })
	refusals, _ := c.document.child("x-refusals")
	for base := range refusals.value {
		c.refusals[base], _ = refusals.child(base)
	}
	return c, nil
}

// closeObjects forbids other members than the documented ones in each schema with properties. It leaves out the schemas
// of envelopes, because agents may add members to their messages.
func closeObjects(at any) {
	switch at := at.(type) {
	case []any:
		for _, element := range at {
			closeObjects(element)
		}
	case map[string]any:
		_, hasProperties := at["properties"].(map[string]any)
		if _, says := at["additionalProperties"]; hasProperties && !says {
			at["additionalProperties"] = false
		}
		for name, value := range at {
			if name != "Envelope" && !strings.HasSuffix(name, "Payload") {
				closeObjects(value)
			}
		}
	}
}

// escape and unescape translate names for JSON pointers.
var escape, unescape = strings.NewReplacer("~", "~0", "/", "~1"), strings.NewReplacer("~1", "/", "~0", "~")

// child returns the object at this name in n.
func (n node) child(name string) (node, bool) {
	value, ok := n.value[name].(map[string]any)
	return node{n.place + "/" + escape.Replace(name), value}, ok
}

// follow returns the object to which the $ref in n leads, or n.
func (c *Checker) follow(n node) node {
	for {
		ref, ok := n.value["$ref"].(string)
		if !ok {
			return n
		}
		n = c.document
		for segment := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
			n, _ = n.child(unescape.Replace(segment))
		}
	}
}

// schema compiles the schema at this place, once.
func (c *Checker) schema(variant string, n node) (*jsonschema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := variant + "#" + (&url.URL{Path: n.place}).EscapedPath()
	if s, ok := c.schemas[at]; ok {
		return s, nil
	}
	s, err := c.compiler.Compile(at)
	if err == nil {
		c.schemas[at] = s
	}
	return s, err
}

// validate checks a value against the schema in n.
func (c *Checker) validate(variant string, n node, value any) error {
	schema, ok := n.child("schema")
	if !ok {
		return nil
	}
	s, err := c.schema(variant, schema)
	if err != nil {
		return err
	}
	return s.Validate(value)
}

// validateText does the same as validate, for a text that stands for a number or a boolean if the schema says so.
func (c *Checker) validateText(variant string, n node, text string) error {
	schema, _ := n.child("schema")
	var value any = text
	switch c.follow(schema).value["type"] {
	case "integer", "number":
		value = json.Number(text)
		if _, err := strconv.ParseFloat(text, 64); err != nil {
			return err
		}
	case "boolean":
		value = text == "true"
		if text != "true" && text != "false" {
			return fmt.Errorf("%q is not a boolean", text)
		}
	}
	return c.validate(variant, n, value)
}

// Exchange is a request and its answer.
type Exchange struct {
	Method, Path  string // Path as in the document, with values for its parameters
	Query         string
	RequestHeader http.Header
	Request       []byte // the body; nil if the relay has not read all of it
	Status        int
	AnswerHeader  http.Header
	Answer        []byte
}

// Operations returns the methods that the document has for each of its paths.
func (c *Checker) Operations() map[string][]string {
	all := map[string][]string{}
	for _, t := range c.paths {
		item, _ := c.item(t)
		for _, method := range []string{"get", "head", "post", "put", "patch", "delete"} {
			if _, ok := item.value[method]; ok {
				all[t.path] = append(all[t.path], strings.ToUpper(method))
			}
		}
	}
	return all
}

// takesRest reports whether a parameter of a path has the member x-rest.
func (c *Checker) takesRest(t template) bool {
	item, _ := c.item(t)
	get, _ := item.child("get")
	list, _ := get.value["parameters"].([]any)
	return slices.ContainsFunc(list, func(p any) bool { return p.(map[string]any)["x-rest"] == true })
}

func (c *Checker) item(t template) (node, bool) {
	paths, _ := c.document.child("paths")
	return paths.child(t.path)
}

// find returns the path of the document that matches, and the values of its parameters.
func (c *Checker) find(path string) (item node, values map[string]string, found bool) {
	segments := strings.Split(path, "/")
	for _, t := range c.paths {
		segments := segments
		if last := len(t.segments) - 1; t.rest && len(segments) > last {
			segments = append(slices.Clone(segments[:last]), "/"+strings.Join(segments[last:], "/"))
		}
		if len(t.segments) != len(segments) {
			continue
		}
		values = map[string]string{}
		matches := true
		for i, want := range t.segments {
			name, after, isParameter := strings.Cut(strings.TrimPrefix(want, "{"), "}")
			if value, ends := strings.CutSuffix(segments[i], after); isParameter && ends && value != "" {
				values[name] = value
			} else if want != segments[i] {
				matches = false
			}
		}
		if matches {
			item, found = c.item(t)
			return item, values, found
		}
	}
	return node{}, nil, false
}

// Check returns what is wrong with an exchange; empty: nothing.
func (c *Checker) Check(e Exchange) (problems []string) {
	wrong := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s %s, status %d: ", e.Method, e.Path, e.Status)+fmt.Sprintf(format, args...))
	}
	if e.Method == http.MethodOptions && e.Status == http.StatusNoContent {
		return nil // a preflight
	}
	item, values, known := c.find(e.Path)
	operation, has := item.child(strings.ToLower(e.Method))
	has = has && e.Method == strings.ToUpper(e.Method) // methods are case-sensitive
	responses, _ := operation.child("responses")
	if !has {
		base := "/"
		for other := range c.refusals {
			if len(other) > len(base) && (e.Path == other || strings.HasPrefix(e.Path, other+"/")) {
				base = other
			}
		}
		responses = c.refusals[base]
		if !known && e.Status == http.StatusMethodNotAllowed {
			wrong("the path exists, and is not documented")
			return problems
		}
	}
	response, documented := responses.child(strconv.Itoa(e.Status))
	if !documented {
		wrong("the answer is not documented: %.200s", e.Answer)
		return problems
	}
	c.checkAnswer(c.follow(response), e, wrong)
	if has && e.Status < 300 && !(operation.value["x-json-rpc"] == true && isRPCError(e.Answer)) {
		c.checkRequest(item, operation, values, e, wrong)
	}
	return problems
}

// isRPCError reports whether an answer of JSON-RPC is an error. Its status is 200, too.
func isRPCError(answer []byte) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal(answer, &members) == nil && members["error"] != nil
}

// common are headers that any answer may have. The description of the document mentions them.
var common = []string{"Cache-Control", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Date",
	"Referrer-Policy", "Strict-Transport-Security", "Vary", "X-Content-Type-Options", "X-Request-Id"}

func (c *Checker) checkAnswer(response node, e Exchange, wrong func(string, ...any)) {
	headers, _ := response.child("headers")
	documented := map[string]node{}
	for name := range headers.value {
		header, _ := headers.child(name)
		documented[http.CanonicalHeaderKey(name)] = c.follow(header)
	}
	for name := range e.AnswerHeader {
		header, ok := documented[name]
		switch {
		case ok:
			if err := c.validateText(forAnswers, header, e.AnswerHeader.Get(name)); err != nil {
				wrong("header %s: %v", name, err)
			}
		case !slices.Contains(common, name) && !strings.HasPrefix(name, "Access-Control-"):
			wrong("the header %s is not documented", name)
		}
	}
	for name, header := range documented {
		if header.value["required"] == true && e.AnswerHeader.Get(name) == "" {
			wrong("the header %s is missing", name)
		}
	}
	content, hasContent := response.child("content")
	if e.Method == http.MethodHead || len(e.Answer) == 0 && !hasContent {
		return
	}
	kind, _, _ := mime.ParseMediaType(e.AnswerHeader.Get("Content-Type"))
	media, ok := content.child(kind)
	switch {
	case !ok:
		wrong("the Content-Type %q is not documented", kind)
	case kind == "application/json":
		body, err := decoded(e)
		var value any
		if err == nil {
			value, err = jsonschema.UnmarshalJSON(body)
		}
		if err == nil {
			err = c.validate(forAnswers, media, value)
		}
		if err != nil {
			wrong("%v\nin %.2000s", err, e.Answer)
		}
	}
}

// decoded returns the body of an answer without its Content-Encoding.
func decoded(e Exchange) (io.Reader, error) {
	if e.AnswerHeader.Get("Content-Encoding") == "gzip" {
		return gzip.NewReader(bytes.NewReader(e.Answer))
	}
	return bytes.NewReader(e.Answer), nil
}

// ignored are the names of parameters that tests send to see that a gateway ignores unknown ones.
var ignored = []string{"other", "unknown", "x"}

func (c *Checker) checkRequest(item, operation node, values map[string]string, e Exchange, wrong func(string, ...any)) {
	query, err := url.ParseQuery(e.Query)
	if err != nil {
		wrong("the query is malformed: %v", err)
	}
	for _, in := range []node{item, operation} {
		list, _ := in.value["parameters"].([]any)
		for i := range list {
			value, _ := list[i].(map[string]any)
			p := c.follow(node{fmt.Sprintf("%s/parameters/%d", in.place, i), value})
			name := p.value["name"].(string)
			var given []string
			switch p.value["in"] {
			case "path":
				given = []string{values[name]}
				delete(values, name)
			case "query":
				given = query[name]
				delete(query, name)
			case "header":
				given = e.RequestHeader.Values(name)
			}
			if len(given) == 0 && p.value["required"] == true {
				wrong("the parameter %s is missing, and was not required", name)
			}
			for _, text := range given {
				if err := c.validateText(forRequests, p, text); err != nil {
					wrong("the parameter %s was accepted: %v", name, err)
				}
			}
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(values)), slices.Collect(maps.Keys(query))) {
		if slices.Contains(ignored, name) {
			continue
		}
		wrong("the parameter %s is not documented", name)
	}
	body, ok := operation.child("requestBody")
	if !ok || e.Request == nil {
		return
	}
	content, _ := c.follow(body).child("content")
	media, isJSON := content.child("application/json")
	if !isJSON {
		return // the schema of a body of lines is a string, so it allows any body
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(e.Request))
	if err == nil {
		err = c.validate(forRequests, media, value)
	}
	if err != nil {
		wrong("the body was accepted: %v\nin %.2000s", err, e.Request)
	}
}
