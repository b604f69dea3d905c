package gateway

import (
	"net/http"
	"net/url"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// This file reads requests.

// MaxBody is how many bytes the body of a request may have.
const MaxBody = 65_536

// ReadObject reads the body of a request, which must be one JSON object. It returns the body as it was sent, and its RFC
// 8785 form.
func (c *Core) ReadObject(w http.ResponseWriter, r *http.Request, from relay.Peer) (sent, canonical []byte, err error) {
	if sent, err = httpapi.ReadBody(w, r, MaxBody); err != nil {
		return nil, nil, err
	}
	canonical, err = c.Relay.Object(from, sent, MaxBody)
	return sent, canonical, err
}

// Parameters returns the query parameters with these names. It ignores other names, and refuses a parameter that is
// given more than once.
func Parameters(r *http.Request, known ...string) (map[string]string, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, Invalid("the query string is malformed; separate parameters with & and percent-encode their values")
	}
	p := map[string]string{}
	for _, name := range known {
		switch list := values[name]; len(list) {
		case 0:
		case 1:
			p[name] = list[0]
		default:
			return nil, Invalid("query parameter %s is given more than once; give it once", name)
		}
	}
	return p, nil
}

// Invalid refuses a malformed request.
func Invalid(format string, args ...any) error {
	return envelope.Errorf(envelope.CodeInvalidRequest, format, args...)
}

// NoReferrer keeps browsers from sending the URLs of a gateway, some of which contain keys, to other servers.
func NoReferrer(next httpapi.Handler) httpapi.Handler {
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		w.Header().Set("Referrer-Policy", "no-referrer")
		return next(w, r, from)
	}
}
