package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// operation is a request of a caller, in either binding.
type operation struct {
	*Gateway
	w        http.ResponseWriter
	r        *http.Request
	from     relay.Peer
	signer   didkey.DID // who has signed the request; empty: nobody
	endpoint endpoint
	caller   caller
	method   wire.Method
	params   json.RawMessage
	id       json.RawMessage // of the request of JSON-RPC; nil: it is one of HTTP+JSON
}

// form is a binding.
type form struct {
	rpc  bool
	read func(p *operation, body []byte) error // sets method, params and id
}

// operate returns the handler of the requests of a binding. For main, see gateway.Core.SignedCaller.
func (g *Gateway) operate(main bool, f form) httpapi.Handler {
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		p := &operation{Gateway: g, w: w, r: r, from: from}
		if f.rpc {
			p.id = json.RawMessage("null")
		}
		body, err := p.admit(main)
		if err != nil {
			return err
		}
		if err = f.read(p, body); err == nil {
			err = p.run()
		}
		if err != nil {
			return p.refuse(err)
		}
		return nil
	}
}

// admit finds out who sends a request, and reads its body. It checks a key before it reads the body.
func (p *operation) admit(main bool) (body []byte, err error) {
	signed := isSigned(p.r)
	if !signed {
		if err := p.find(); err != nil {
			return nil, err
		}
	}
	if body, err = httpapi.ReadBody(p.w, p.r, wire.MaxBody); err != nil || !signed {
		return body, err
	}
	if p.signer, err = p.signerOf(p.r, body, main); err != nil {
		return nil, err
	}
	p.from.Reader = p.signer
	return body, p.find()
}

// find finds the endpoint and the caller. Errors: those of findCaller.
func (p *operation) find() error {
	return p.view(func(q relay.Querier) (err error) {
		p.endpoint, p.caller, err = p.findCaller(q, p.r, p.from, p.signer)
		return err
	})
}

// view reads for the caller.
func (p *operation) view(f func(relay.Querier) error) error {
	return p.Relay.View(p.r.Context(), p.from, f)
}

// update changes something for the caller. The caller is checked again, because its key may have ended meanwhile. If the
// client disconnects, the operation is still done. f may be run twice.
func (p *operation) update(f func(o *gateway.Op) error) error {
	return p.Update(context.WithoutCancel(p.r.Context()), p.from, func(o *gateway.Op) error {
		e, c, err := p.findCaller(o, p.r, p.from, p.signer)
		if err != nil {
			return err
		}
		if e.n != p.endpoint.n || c.id != p.caller.id {
			return errCaller
		}
		return f(o)
	})
}

// object returns the canonical form of a body. Errors: CodeRateLimited, and those of wire.Body.
func (p *operation) object(body []byte) (canonical []byte, err error) {
	if err := p.Relay.Gate().ChargeBody(p.from, len(body)); err != nil {
		return nil, err
	}
	err = p.Relay.Gate().Checking(p.from, func() (err error) {
		canonical, err = wire.Body(body, wire.MaxBody)
		return err
	})
	return canonical, err
}

// run answers the request.
func (p *operation) run() error {
	if err := p.checkVersion(); err != nil {
		return err
	}
	if changes(p.method) {
		if err := p.admitCaller(p.from, p.caller); err != nil {
			return err
		}
	}
	switch p.method.Name {
	case "SendMessage", "SendStreamingMessage":
		return p.sendMessage()
	case "GetTask":
		return p.getTask()
	case "ListTasks":
		return p.listTasks()
	case "CancelTask":
		return p.cancelTask()
	case "SubscribeToTask":
		return p.subscribe()
	case "GetExtendedAgentCard":
		return wire.Errorf(wire.UnsupportedOperation, "This agent has no extended card; its card is public.")
	}
	return p.runPush()
}

// changes reports whether an operation may change something.
func changes(m wire.Method) bool {
	return !slices.Contains([]string{"GetTask", "ListTasks", "SubscribeToTask", "GetExtendedAgentCard",
		"GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs"}, m.Name)
}

// checkVersion refuses a version of A2A that the relay does not have. A request that names none is one of 1.0.
func (p *operation) checkVersion() error {
	version := p.r.Header.Get(wire.VersionName)
	if version == "" {
		version = p.r.URL.Query().Get(wire.VersionName)
	}
	if version != "" && version != wire.Version {
		return wire.Errorf(wire.VersionNotSupported, "This agent speaks A2A %s; send %s: %[1]s.", wire.Version, wire.VersionName)
	}
	return nil
}

// extensions returns the URIs in the header A2A-Extensions.
func (p *operation) extensions() (all []string) {
	for uri := range strings.SplitSeq(strings.Join(p.r.Header.Values(wire.ExtensionName), ","), ",") {
		if uri = strings.TrimSpace(uri); uri != "" && !slices.Contains(all, uri) {
			all = append(all, uri)
		}
	}
	return all
}

// useExtensions checks that the caller knows the extensions that the card requires, and names in the answer those that both
// know.
func (p *operation) useExtensions(f facts) error {
	wanted := p.extensions()
	for _, uri := range f.Required {
		if !slices.Contains(wanted, uri) {
			return wire.Errorf(wire.ExtensionSupportRequired, "This agent requires the extension %s; name it in the header %s.",
				uri, wire.ExtensionName)
		}
	}
	used := slices.DeleteFunc(wanted, func(uri string) bool { return !slices.Contains(f.Extensions, uri) })
	if len(used) > 0 {
		p.w.Header().Set(wire.ExtensionName, strings.Join(used, ", "))
	}
	return nil
}

// contentType returns the Content-Type of answers.
func (p *operation) contentType() string {
	named := strings.ToLower(p.r.Header.Get("Content-Type") + "," + strings.Join(p.r.Header.Values("Accept"), ","))
	if p.id == nil && strings.Contains(named, wire.A2AType) {
		return wire.A2AType
	}
	return wire.JSONType
}

// around returns the text before and after a result.
func (p *operation) around() (head, tail string) {
	if p.id == nil {
		return "", ""
	}
	return `{"jsonrpc":"2.0","id":` + string(p.id) + `,"result":`, "}"
}

// write answers with a result: begin, the texts, and end. keep is called with the result, unless it is larger than
// maxKept; nil: it is not called.
func (p *operation) write(begin string, texts gateway.Elements, end func() string, keep func(result []byte)) error {
	head, tail := p.around()
	var kept bytes.Buffer
	kept.WriteString(begin)
	err := httpapi.WriteList(p.w, httpapi.List{Type: p.contentType(), Raw: true, Head: head + begin,
		Elements: func(yield func([]byte, error) bool) {
			for text, err := range texts {
				if keep != nil && kept.Len() <= maxKept {
					kept.Write(text)
				}
				if !yield(text, err) {
					return
				}
			}
		},
		Tail: func() string {
			after := end()
			if kept.WriteString(after); keep != nil && kept.Len() <= maxKept {
				keep(kept.Bytes())
			}
			return after + tail + "\n"
		}})
	return err
}

// maxKept is how many bytes an answer may have that is kept for an Idempotency-Key. For a longer one, a repeated request
// gets the task as it is then.
const maxKept = 64 << 10

// refuse answers with an error, if the binding decides its form. What the front refuses is returned.
func (p *operation) refuse(err error) error {
	e, known := errorOf(err)
	switch {
	case known && e.HTTP != 0:
		return err
	case !known && p.r.Context().Err() != nil && errors.Is(err, context.Canceled):
		return err
	case p.id == nil && !known:
		return err
	case p.id == nil:
		body := append(e.HTTPBody(), '\n')
		httpapi.SetHeader(p.w, p.contentType())
		p.w.WriteHeader(e.Status())
		_, _ = p.w.Write(body) // an error means that the client has left
		return nil
	case !known:
		p.Log.Error("a request of JSON-RPC failed", "method", p.method.Name, "endpoint", p.endpoint.did, "err", err)
		e = wire.Errorf(wire.Fault, "The relay could not answer this request; the reason is in its log.")
	}
	return httpapi.WriteJSON(p.w, http.StatusOK, json.RawMessage(e.RPCBody(p.id)))
}

// findTask returns a task of the caller. Errors: TaskNotFound, which is the same for a task of another caller.
func (p *operation) findTask(q relay.Querier, id string) (task, error) {
	t, err := taskByID(q, id)
	if err == nil && (t.n == 0 || t.endpoint != p.endpoint.n || t.caller != p.caller.id) {
		err = wire.NoTask(id)
	}
	return t, err
}

// background is the context of what must be done even if the client has left.
func (p *operation) background() context.Context { return context.WithoutCancel(p.r.Context()) }
