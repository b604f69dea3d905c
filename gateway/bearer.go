package gateway

import (
	"net/http"
	"strings"
)

// Bearer returns the key in a request's header "Authorization: Bearer KEY" (RFC 6750 §2.1). The scheme may be in upper
// or lower case. given is false if the request has no header Authorization. The key is empty if the header is
// malformed, has another scheme, or occurs twice.
func Bearer(r *http.Request) (key string, given bool) {
	headers := r.Header["Authorization"]
	if len(headers) != 1 {
		return "", len(headers) > 0
	}
	scheme, key, _ := strings.Cut(headers[0], " ")
	key = strings.TrimLeft(key, " ")
	if !strings.EqualFold(scheme, "Bearer") || strings.ContainsAny(key, " \t,") {
		return "", true
	}
	return key, true
}
