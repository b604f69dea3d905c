package testvectors_test

import (
	"strings"
	"testing"

	"github.com/agora-relay/agora/testvectors"
)

// suite is a set of third-party vectors. The tests of didkey and envelope run all of them.
type suite struct {
	name    string
	vectors int // number of vectors that README.md states
	count   func(t *testing.T) int
}

func list(name, member string) func(*testing.T) int {
	return func(t *testing.T) int { return len(testvectors.PublicList[any](t, name, member)) }
}

func folder(name string) func(*testing.T) int {
	return func(t *testing.T) int { return len(testvectors.PublicDir(t, name)) }
}

func lines(name string) func(*testing.T) int {
	return func(t *testing.T) int { return len(strings.Fields(string(testvectors.Public(t, name)))) }
}

var publicSuites = []suite{
	{"Wycheproof Ed25519", 75, func(t *testing.T) (n int) {
		for _, group := range testvectors.PublicList[struct{ Tests []any }](t, "ed25519/wycheproof_ed25519.json", "testGroups") {
			n += len(group.Tests)
		}
		return n
	}},
	{"RFC 8032, section 7.1", 2, list("ed25519/rfc8032.json", "")},
	{"sign.input of ed25519.cr.yp.to", 64, list("ed25519/sign_input_128.json", "")},
	{"ed25519-speccheck", 6, list("ed25519/speccheck_cases.json", "")},
	{"CCTV Ed25519", 457, list("ed25519/cctv_ed25519.json", "")},
	{"RFC 8785, appendix B", 13, lines("jcs/rfc8785_appendix_b.csv")},
	{"ES6 numbers", 5000, lines("jcs/es6_numbers.csv")},
	{"cyberphone JCS", 3, folder("jcs/cyberphone/input")},
	{"Nasty JSON", 83, list("jcs/nasty_json.json", "")},
	{"JSONTestSuite, parsing", 160, folder("json/jsontestsuite/test_parsing")},
	{"JSONTestSuite, transform", 11, folder("json/jsontestsuite/test_transform")},
	{"Big List of Naughty Strings", 258, list("strings/blns.json", "")},
	{"did:key, valid", 26, list("didkey/ed25519_valid.json", "")},
	{"did:key, must reject", 56, list("didkey/must_reject.json", "")},
	{"multibase", 41, list("didkey/multibase.json", "")},
	{"Envelopes to verify", 73, list("envelope/verify_vectors.json", "vectors")},
}

// TestPublicCounts checks that each suite has as many vectors as README.md says, so that no suite gets lost unnoticed.
// The suites are samples of larger ones. Another sample may be slightly smaller, so nine tenths are enough.
func TestPublicCounts(t *testing.T) {
	for _, s := range publicSuites {
		if n := s.count(t); n < s.vectors*9/10 {
			t.Errorf("%s has %d vectors, but README.md says %d", s.name, n, s.vectors)
		}
	}
}
