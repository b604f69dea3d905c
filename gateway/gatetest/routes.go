package gatetest

import (
	"net/http"
	"slices"
	"strings"

	"github.com/agora-relay/agora/relay/httpapi/apidocs/apicheck"
)

// CheckRoutes checks that the paths of the gateway in the OpenAPI document exist, and take the methods that it says and
// no others. Each other request of the site is checked too, so an undocumented path fails the test that uses it.
func (s *Site) CheckRoutes() {
	s.t.Helper()
	core, err := apicheck.Of()
	s.must(err)
	all, err := apicheck.Of(s.apis...)
	s.must(err)
	checked := 0
	for path, methods := range all.Operations() {
		if core.Operations()[path] != nil {
			continue
		}
		checked++
		answer, err := Do(s.t.Context(), s.Client, s.URL, Call{Method: "BREW", Path: strings.NewReplacer("{", "", "}", "").Replace(path)})
		s.must(err)
		allowed := strings.Split(answer.Header.Get("Allow"), ", ")
		if slices.Sort(methods); answer.Status != http.StatusMethodNotAllowed || !slices.Equal(allowed, methods) {
			s.t.Errorf("%s: %v, the gateway takes %q, the document says %q", path, answer, allowed, methods)
		}
	}
	if checked == 0 {
		s.t.Error("the OpenAPI document has no path of the gateway")
	}
}
