package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

// Route is a path and its handlers by method. Path has the syntax of gorilla/mux; mux.Vars returns the values of its
// {names}.
type Route struct {
	Path    string
	Methods map[string]Handler
}

// Routes returns the handler of these routes. The first route that matches the path answers. If it has no handler for
// the method, the answer is CodeMethodNotAllowed with the header Allow (RFC 9110 §15.5.6). If no route matches, the
// answer is CodeNotFound. Its message ends with help, which lists the paths that exist. Nothing is redirected, because
// a client would repeat a redirected POST as a GET.
func Routes(help string, routes ...Route) Handler {
	// SkipClean: the router would redirect //events to /events.
	router := mux.NewRouter().SkipClean(true)
	for _, r := range routes {
		router.Handle(r.Path, newMethods(r.Methods))
	}
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		var match mux.RouteMatch
		if !router.Match(r, &match) {
			return envelope.Errorf(envelope.CodeNotFound,
				"there is nothing at this path; check it for trailing and double slashes. %s", help)
		}
		if len(match.Vars) > 0 {
			r = mux.SetURLVars(r, match.Vars)
		}
		return match.Handler.(*methods).handle(w, r, from)
	}
}

// methods are the handlers of one path. It is an http.Handler only because the router requires one.
type methods struct {
	http.Handler
	handlers map[string]Handler
	allow    string // the value of the header Allow
}

func newMethods(handlers map[string]Handler) *methods {
	var names []string
	for name := range handlers {
		names = append(names, name)
	}
	slices.Sort(names)
	return &methods{handlers: handlers, allow: strings.Join(names, ", ")}
}

func (m *methods) handle(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	if h, ok := m.handlers[r.Method]; ok {
		return h(w, r, from)
	}
	w.Header().Set("Allow", m.allow)
	return envelope.Errorf(envelope.CodeMethodNotAllowed, "this path accepts only %s", m.allow)
}

// api has the handlers of the relay's own routes.
type api struct {
	*Front
	openAPI, guide func() (*File, error)
}

func newAPI(f *Front) *api {
	a := &api{Front: f}
	a.openAPI = a.document("application/json", apidocs.OpenAPI)
	a.guide = a.document("text/plain; charset=utf-8", apidocs.Guide)
	return a
}

// mount returns the relay's own routes as a Mount.
func (a *api) mount() Mount {
	events := map[string]Handler{
		// A stream has no span, because it would last for minutes.
		http.MethodGet:  negotiated(a.withReader(a.getEvents), a.withReader(a.streamEvents)),
		http.MethodPost: a.postEvent}
	agents := map[string]Handler{http.MethodGet: a.withReader(a.getAgents)}
	agent := map[string]Handler{http.MethodGet: a.withReader(a.getAgent)}
	routes := []Route{
		{"/events", events},
		{"/events/bulk", map[string]Handler{http.MethodPost: a.postBulk}},
		{"/threads/{id}", map[string]Handler{http.MethodGet: a.withReader(a.getThread)}},
		{"/agents", agents},
		{"/agents/{did}", agent},
		{healthPath, map[string]Handler{http.MethodGet: a.getHealth, http.MethodHead: a.getHealth}},
		{"/.well-known/agora.json", map[string]Handler{http.MethodGet: a.getWellKnown}},
		{"/openapi.json", serving(a.openAPI)},
		{"/llms.txt", serving(a.guide)},
		{"/seed", map[string]Handler{http.MethodPost: a.postSeed}},
		{"/proofs", map[string]Handler{http.MethodGet: a.withReader(a.getProof)}},
		{"/log/{epoch}/checkpoint", map[string]Handler{http.MethodGet: a.getCheckpoint}},
		{"/log/{epoch}/tile/{tile:.+}", map[string]Handler{http.MethodGet: a.getTile}},
		{"/witness/add-checkpoint", map[string]Handler{http.MethodPost: a.addCheckpoint}},
		{"/witness/{hash}/checkpoint", map[string]Handler{http.MethodGet: a.getCosigned}},
		// Older names of these paths, used by clients that were written before this relay.
		{"/v1/messages", events},
		{"/v1/agents", agents},
		{"/v1/agents/{did}", agent},
	}
	if root := a.options.Root; root != nil {
		routes = append(routes, Route{"/", map[string]Handler{http.MethodGet: root, http.MethodHead: root}})
	}
	return Mount{
		Handler: Routes("The relay answers at /events, /threads/{id}, /agents, /health and /.well-known/agora.json; "+
			"/openapi.json describes all paths", routes...),
		Unlimited: isHealthCheck,
	}
}

const healthPath = "/health"

// isHealthCheck reports whether a request is a health check. Health checks are limited only by the number of
// connections of their address. So a relay under load does not look dead to a monitor, even if the monitor's address
// has used up its other limits.
func isHealthCheck(r *http.Request) bool {
	return r.URL.Path == healthPath && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}
