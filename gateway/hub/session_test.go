package hub_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// session returns a new token of an agent.
func (f *fixture) session(key string) string {
	f.t.Helper()
	a := f.want(f.do(call{"POST", "/agent/session", key, nil, nil}), 200, "")
	form := regexp.MustCompile(`^cs_[0-9a-f]{32}$`)
	if a.data("expires_in_seconds") != 300.0 || !form.MatchString(a.text("session_token")) {
		f.t.Fatalf("the session is %v", a)
	}
	return a.text("session_token")
}

func inboxOf(token string) string { return "/agent/inbox?session=" + token }

// refused checks that a token opens no stream.
func (f *fixture) refused(what, token string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	a, err := f.try(ctx, call{"GET", inboxOf(token), "", nil, nil})
	if err != nil {
		f.t.Errorf("%s opens a stream: %v", what, err)
	} else if a.Status != 401 || a.code() != "ERR_UNAUTHORIZED" || a.Header.Get("WWW-Authenticate") != "Bearer" {
		f.t.Errorf("%s: %v", what, a)
	}
}

// A session token opens one inbox stream, within 5 minutes, and nothing else (G-10).
func TestSessionToken(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		token, unused := p.session(p.bob), p.session(p.bob)
		if token == unused {
			t.Error("two sessions have the same token")
		}
		for _, c := range []call{{"GET", "/agent/messages", token, nil, nil}, {"GET", "/agent/inbox", token, nil, nil},
			{"POST", "/agent/session", token, nil, nil}, {"POST", "/agent/ack", token, object{"up_to": 1}, nil},
			{"POST", "/messages", token, messageTo(alice, bob, "a"), nil}, {"DELETE", "/agents/bob", token, nil, nil}} {
			p.want(p.do(c), 401, "ERR_UNAUTHORIZED")
		}
		p.want(p.do(call{"POST", "/register", token, registrationOf(bob), nil}), 409, "ERR_AGENT_ID_TAKEN")
		p.want(p.do(call{"GET", inboxOf(token) + "&session=" + token, "", nil, nil}), 400, "ERR_VALIDATION")
		s := p.followPath(inboxOf(token), "", nil)
		p.tell("a")
		s.wantTexts("the stream of the token", "a")
		p.refused("a token that was used", token)
		time.Sleep(5*time.Minute - time.Second)
		p.refused("a token that was used", token)
		s.wantTexts("the stream after 5 minutes", "a")
		p.refused("an unknown token", "cs_00000000000000000000000000000000")
		p.refused("a key as a token", p.bob)
		p.refused("an empty token", "")
		p.followPath(inboxOf(unused), "", since(0)).wantTexts("the other token", "a")
		s.wantClosed("replaced")
		p.Stop()
		if logged := p.Logged(); strings.Contains(logged, token) || strings.Contains(logged, "cs_") { // G-8
			t.Error("the token is in the log")
		}
	})
}

// The 5 minutes pass on the relay's clock.
func TestSessionTokenExpires(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		early, late := p.session(p.bob), p.session(p.bob)
		time.Sleep(5*time.Minute - time.Millisecond)
		p.followPath(inboxOf(early), "", nil).close()
		time.Sleep(time.Millisecond)
		p.refused("after 5 minutes", late)
		stepped := p.session(p.bob)
		p.Ahead.Add(int64(5 * time.Minute))
		p.refused("after 5 minutes of the relay's clock", stepped)
	})
}

// A rotation and a deletion of the agent end its session tokens, and those of no other agent. So does a restart.
func TestSessionTokenEnds(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		token, other := p.session(p.bob), p.session(p.alice)
		a := p.want(p.do(call{"POST", "/register", p.bob, registrationOf(bob), nil}), 200, "")
		current := p.follow(a.text("api_key"), nil)
		p.refused("after a rotation", token)
		current.wantTexts("the stream of the new key", "")
		if !current.end().IsZero() {
			t.Error("a token of the old key ends the stream of the new key")
		}
		p.want(p.do(call{"POST", "/agent/session", p.bob, nil, nil}), 401, "ERR_UNAUTHORIZED")
		p.bob = a.text("api_key")
		token = p.session(p.bob)
		p.want(p.do(call{"DELETE", "/agents/bob", p.Operator, nil, nil}), 200, "")
		p.refused("after a deletion", token)
		p.followPath(inboxOf(other), "", nil).close()
		synctest.Wait()
		other = p.session(p.alice)
		p.Restart()
		p.refused("after a restart", other)
	})
}

// Who may open streams and sessions (G-10).
func TestStreamNeedsKeyOfAgent(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		for _, c := range []call{{"GET", "/agent/inbox", "", nil, nil}, {"POST", "/agent/session", "", nil, nil}} {
			if a := p.want(p.do(c), 401, "ERR_UNAUTHORIZED"); a.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("the header is %v", a.Header)
			}
			c.Key = p.Operator
			p.want(p.do(c), 403, "ERR_FORBIDDEN")
			c.Key = "ca_00000000000000000000000000000000"
			p.want(p.do(c), 401, "ERR_UNAUTHORIZED")
		}
	})
}

// A request that is refused does not use up its session token (HUB, "Endpoints": for one inbox stream).
func TestRefusedRequestKeepsSession(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	key := f.register("a@b")
	path := "/agent/inbox?session=" + f.want(f.post("/agent/session", key, nil), 200, "").text("session_token")
	for _, id := range []string{"x", ""} {
		f.want(f.do(call{"GET", path, "", nil, map[string]string{"Last-Event-ID": id}}), 400, "ERR_VALIDATION")
	}
	f.openPath(path, "", nil).frame()
	f.want(f.do(call{"GET", path, "", nil, nil}), 401, "ERR_UNAUTHORIZED")
}
