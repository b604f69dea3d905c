package a2a

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strings"

	"github.com/gorilla/mux"

	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file reads the requests of both bindings.

// postRPC returns the handler of POST {E}/rpc and POST {E}.
func (g *Gateway) postRPC(main bool) httpapi.Handler {
	return g.operate(main, form{rpc: true, read: (*operation).readRPC})
}

// readRPC reads a request of JSON-RPC.
func (p *operation) readRPC(body []byte) error {
	if !isJSON(p.r.Header.Get("Content-Type")) {
		return wire.Errorf(wire.ContentTypeNotSupported, "A request of JSON-RPC needs Content-Type: %s.", wire.JSONType)
	}
	canonical, err := p.object(body)
	if err != nil {
		if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' && json.Valid(body) {
			return wire.Errorf(wire.BadRequest, "The body must be one request; batches are not supported.")
		}
		return err
	}
	request, err := wire.ParseRPC(canonical)
	if p.id = request.ID; err != nil {
		return err
	}
	var known bool
	if p.method, known = wire.FindMethod(request.Method); !known {
		return wire.Errorf(wire.UnknownMethod, "There is no such method in A2A %s.", wire.Version)
	}
	p.params = request.Params
	return nil
}

// isJSON reports whether a Content-Type is application/json or …+json.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == wire.JSONType || strings.HasSuffix(media, "+json"))
}

// restRoutes returns the routes of HTTP+JSON below the path of an agent.
func (g *Gateway) restRoutes(agent string, main bool) (all []httpapi.Route) {
	byPath := map[string]methods{}
	var paths []string
	for _, m := range wire.Methods() {
		if byPath[m.Path] == nil {
			byPath[m.Path] = methods{}
			paths = append(paths, m.Path)
		}
		for _, verb := range m.Verbs {
			byPath[m.Path][verb] = g.operate(main, form{read: func(p *operation, body []byte) error {
				p.method = m
				return p.readREST(body)
			}})
		}
	}
	for _, path := range paths {
		// The first route that matches answers, and an id must not take the verb after a colon.
		all = append(all, httpapi.Route{Path: agent + strings.ReplaceAll(path, "{id}", "{id:[^/:]+}"), Methods: byPath[path]})
	}
	return all
}

// readREST reads a request of HTTP+JSON: the params are in the path, and in the query or the body. A body that is empty
// or null has none.
func (p *operation) readREST(body []byte) (err error) {
	params := json.RawMessage("{}")
	if p.r.Method == http.MethodPost && len(body) > 0 && string(bytes.TrimSpace(body)) != "null" {
		if params, err = p.object(body); err != nil {
			return err
		}
	}
	if p.r.Method != http.MethodPost {
		if params, err = wire.QueryParams(p.r.URL.Query()); err != nil {
			return err
		}
	}
	vars := mux.Vars(p.r)
	p.params = p.method.PathParams(params, vars["id"], vars["cid"])
	return nil
}
