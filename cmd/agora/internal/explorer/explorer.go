// Package explorer is the relay's web page. It shows what a relay is doing, and verifies every message in the reader's
// browser.
//
// The page is a set of static files, which are embedded in the program. It reads only the relay's public API. Its
// scripts come from this package and from sdk/js alone: the headers of every answer forbid all others. A Page makes the
// answers once, when it is created, and keeps them in memory. So a request costs no reads and no compression.
package explorer

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/sdk/js"
)

//go:embed static
var static embed.FS

// prefix is where the files of the page are, except for index.html, which is at the root.
const prefix = "/page"

// contentTypes are the kinds of files that the page may have.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".json": "application/json",
	".svg":  "image/svg+xml",
}

// Page answers requests for the web page. It is safe for concurrent use.
type Page struct {
	index *httpapi.File
	files map[string]*httpapi.File // by name, without index.html
}

// New returns the page. remote is the origin of the relay that the page shows, such as https://relay.example, if
// another program serves the page than that relay. Empty: the relay itself serves the page.
func New(remote string) (*Page, error) {
	config, err := json.Marshal(struct {
		Relay string `json:"relay,omitempty"`
	}{remote})
	if err != nil {
		return nil, err
	}
	contents, err := read()
	if err != nil {
		return nil, err
	}
	contents["config.json"] = config
	p := &Page{files: map[string]*httpapi.File{}}
	for name, content := range contents {
		contentType := contentTypes[path.Ext(name)]
		if contentType == "" {
			return nil, fmt.Errorf("explorer: the kind of the file %s is unknown", name)
		}
		if p.files[name], err = httpapi.NewFile(contentType, content); err != nil {
			return nil, err
		}
	}
	if p.index = p.files["index.html"]; p.index == nil {
		return nil, fmt.Errorf("explorer: there is no static/index.html")
	}
	delete(p.files, "index.html")
	return p, nil
}

// read returns the contents of all files of the page, by name.
func read() (map[string][]byte, error) {
	contents := map[string][]byte{"agora.js": js.Module, "chain.js": js.Chain, "proof.js": js.Proof}
	entries, err := static.ReadDir("static")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if contents[name] != nil {
			return nil, fmt.Errorf("explorer: static/%s has the name of a file that is added to the page", name)
		}
		if contents[name], err = static.ReadFile(path.Join("static", name)); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

// Write writes the page into a folder, for any web server: index.html, and the other files in the folder page. It makes
// the folder, and replaces files of these names. remote is the origin of the relay that the page shows, unless the
// page's address names another one; empty: the page asks for a relay. The page reads from the relay itself, so the
// relay must allow that (CORS).
func Write(folder, remote string) error {
	contents, err := read()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(folder, prefix), 0o755); err != nil {
		return err
	}
	index := contents["index.html"]
	delete(contents, "index.html")
	const before = `<meta charset="utf-8">`
	// The page calls any relay. In a page, frame-ancestors has no effect.
	ownPolicy := strings.NewReplacer("connect-src 'self'", "connect-src http: https:", "frame-ancestors 'none'; ", "").Replace(policy)
	head := fmt.Sprintf(before+"\n"+`<meta http-equiv="Content-Security-Policy" content="%s">`+"\n"+
		`<meta name="agora-files" content="%s">`, ownPolicy, html.EscapeString(remote))
	for name, content := range contents {
		if err := os.WriteFile(filepath.Join(folder, prefix, name), content, 0o644); err != nil {
			return err
		}
	}
	index = bytes.Replace(index, []byte(before), []byte(head), 1)
	return os.WriteFile(filepath.Join(folder, "index.html"), index, 0o644)
}

// Root answers GET / and HEAD /. It is for the Options of a Front.
func (p *Page) Root(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	return secured(p.index.Serve)(w, r, from)
}

// Mount returns the routes of the page's other files, for the Options of a Front.
func (p *Page) Mount() httpapi.Mount {
	return httpapi.Mount{Prefix: prefix, Handler: secured(httpapi.Routes("The page is at /", p.routes("")...))}
}

// Handler answers all requests for the page, and those to further routes. It is for a program that is not a relay. For
// help, see httpapi.Routes.
func (p *Page) Handler(help string, further ...httpapi.Route) httpapi.Handler {
	routes := append([]httpapi.Route{route("/", p.index)}, p.routes(prefix)...)
	return secured(httpapi.Routes(help, append(routes, further...)...))
}

// routes returns a route for each file except index.html. folder is put before their names.
func (p *Page) routes(folder string) (routes []httpapi.Route) {
	for name, f := range p.files {
		routes = append(routes, route(folder+"/"+name, f))
	}
	return routes
}

func route(at string, f *httpapi.File) httpapi.Route {
	return httpapi.Route{Path: at, Methods: f.Methods()}
}

// policy lets the page load only its own files and call only the program that serves it. It also forbids the page to
// turn text into markup or code, and other pages to show it in a frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// secured adds the headers that protect the page to every answer of h, errors too.
func secured(h httpapi.Handler) httpapi.Handler {
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		return h(w, r, from)
	}
}
