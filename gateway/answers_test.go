package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// repeat returns a request with an Idempotency-Key and the body {}.
func repeat(caller, id string) gateway.Repeat { return repeatWith(caller, id, "{}") }

func repeatWith(caller, id, body string) gateway.Repeat {
	r := http.Request{Header: http.Header{"Idempotency-Key": {id}}}
	rep, _, err := gateway.ParseRepeat(&r, "POST /messages", caller, []byte(body))
	if err != nil {
		panic(err)
	}
	return rep
}

func TestParseRepeat(t *testing.T) {
	parse := func(ids ...string) (gateway.Repeat, bool, error) {
		r := http.Request{Header: http.Header{"Idempotency-Key": ids}}
		return gateway.ParseRepeat(&r, "POST /messages", "1", []byte("{}"))
	}
	if rep, given, err := parse(); given || err != nil || rep != (gateway.Repeat{}) {
		t.Errorf("without the header: %+v, %t, %v", rep, given, err)
	}
	for _, id := range []string{"1", "!", "~", "a b", strings.Repeat("x", 256)} {
		if rep, given, err := parse(id); !given || err != nil || rep.ID != id {
			t.Errorf("%q: %+v, %t, %v", id, rep, given, err)
		}
	}
	for _, ids := range [][]string{{""}, {"é"}, {"a\tb"}, {"a\x7f"}, {strings.Repeat("x", 257)}, {"a", "a"}} {
		if _, given, err := parse(ids...); !given || envelope.CodeOf(err) != envelope.CodeInvalidRequest {
			t.Errorf("%q: %t, %v", ids, given, err)
		}
	}
}

func find(t *testing.T, r *relay.Relay, a *gateway.Answers, rep gateway.Repeat) (s gateway.Stored, found bool, err error) {
	t.Helper()
	err = r.View(t.Context(), local, func(q relay.Querier) (err error) {
		s, found, err = a.Find(q, rep)
		return err
	})
	return s, found, err
}

// answer does what a request with an Idempotency-Key does: it adds the operation, and then finishes it.
func answer(t *testing.T, r *relay.Relay, a *gateway.Answers, rep gateway.Repeat, ref int64, body string) {
	t.Helper()
	update(t, r, func(tx relay.ExtTx) error { return a.Add(tx, rep, ref) })
	update(t, r, func(tx relay.ExtTx) error { return a.Finish(tx, rep, 201, []byte(body)) })
}

// TestAnswers checks G-21: a repeated request gets the first answer, also after a restart. It checks G-22: with another
// body it is a conflict. It checks G-23: the same Idempotency-Key of another caller, or at another endpoint, is
// another one. It checks G-7: the database does not contain an answer in clear.
func TestAnswers(t *testing.T) {
	r, path := startRelay(t)
	key := newKey(t)
	a := gateway.NewAnswers(newCore(t, r, key))
	const first = `{"api_key":"ca_0123456789abcdef0123456789abcdef"}`
	rep := repeatWith("1", "k", `{"a":1}`)
	if s, found, err := find(t, r, a, rep); found || err != nil {
		t.Errorf("before the request: %+v, %v", s, err)
	}
	update(t, r, func(tx relay.ExtTx) error { return a.Add(tx, rep, 17) })
	if s, found, err := find(t, r, a, rep); !found || err != nil || s.Ref != 17 || s.Status != 0 || len(s.Body) > 0 {
		t.Errorf("before the answer: %+v, %t, %v", s, found, err)
	}
	for _, body := range []string{first, "another answer"} {
		update(t, r, func(tx relay.ExtTx) error { return a.Finish(tx, rep, 201, []byte(body)) })
	}
	for range 2 {
		s, found, err := find(t, r, a, rep)
		if !found || err != nil || s.Ref != 17 || s.Status != 201 || string(s.Body) != first {
			t.Errorf("a repeat: %+v, %t, %v", s, found, err)
		}
		if _, found, err := find(t, r, a, repeatWith("1", "k", `{"a":2}`)); found || !errors.Is(err, gateway.ErrOtherBody) {
			t.Errorf("with another body: %t, %v", found, err)
		}
		other := rep
		other.Endpoint = "POST /register"
		for _, other := range []gateway.Repeat{other, repeatWith("2", "k", `{"a":1}`), repeatWith("1", "K", `{"a":1}`)} {
			if _, found, err := find(t, r, a, other); found || err != nil {
				t.Errorf("%+v is answered, %v", other, err)
			}
		}
		a = gateway.NewAnswers(newCore(t, r, key)) // the second time, after a restart
	}
	for _, name := range engine.Files(t, path) {
		if text, err := os.ReadFile(name); err != nil || bytes.Contains(text, []byte("0123456789abcdef")) {
			t.Errorf("%s contains an answer in clear, %v", filepath.Base(name), err)
		}
	}
}

// TestOtherAnswersAreNotKept checks G-24: an answer with another status than 2xx is not stored.
func TestOtherAnswersAreNotKept(t *testing.T) {
	r, _ := startRelay(t)
	a := gateway.NewAnswers(newCore(t, r, newKey(t)))
	rep := repeat("1", "k")
	update(t, r, func(tx relay.ExtTx) error { return a.Finish(tx, rep, 200, []byte("{}")) }) // its operation was not stored
	if _, found, err := find(t, r, a, rep); found || err != nil {
		t.Errorf("without an operation: %t, %v", found, err)
	}
	update(t, r, func(tx relay.ExtTx) error { return a.Add(tx, rep, 1) })
	for _, status := range []int{199, 300, 404, 500} {
		err := r.Update(t.Context(), local, func(tx relay.ExtTx) error { return a.Finish(tx, rep, status, []byte("{}")) })
		if err == nil {
			t.Errorf("an answer with status %d is kept", status)
		}
	}
	if s, found, err := find(t, r, a, rep); !found || s.Status != 0 || err != nil {
		t.Errorf("%+v, %t, %v", s, found, err)
	}
}

// TestAnswersExpire checks that an Idempotency-Key is free again after 24 hours, whether its row was removed or not.
func TestAnswersExpire(t *testing.T) {
	began := time.Now()
	var ahead atomic.Int64 // the clock of the relay, after began
	r := startRelayOver(t, filepath.Join(t.TempDir(), "agora.db"),
		func() time.Time { return began.Add(time.Duration(ahead.Load())) })
	a := gateway.NewAnswers(newCore(t, r, newKey(t)))
	answer(t, r, a, repeatWith("1", "k", "{}"), 1, "one")
	ahead.Store(int64(24*time.Hour - 1))
	if s, found, err := find(t, r, a, repeatWith("1", "k", "{}")); !found || err != nil || string(s.Body) != "one" {
		t.Errorf("before 24 hours: %+v, %t, %v", s, found, err)
	}
	err := r.Update(t.Context(), local, func(tx relay.ExtTx) error { return a.Add(tx, repeatWith("1", "k", "[]"), 2) })
	if err == nil {
		t.Error("a second request with the same Idempotency-Key is stored")
	}
	ahead.Store(int64(24 * time.Hour))
	if _, found, err := find(t, r, a, repeatWith("1", "k", "{}")); found || err != nil {
		t.Errorf("after 24 hours: %t, %v", found, err)
	}
	answer(t, r, a, repeatWith("1", "k", "[]"), 2, "two")
	if s, found, err := find(t, r, a, repeatWith("1", "k", "[]")); !found || err != nil || s.Ref != 2 || string(s.Body) != "two" {
		t.Errorf("used again: %+v, %t, %v", s, found, err)
	}
}

// TestRepeatsWait checks that a repeat waits while the first request is in progress, with whatever body, and that other
// requests do not wait.
func TestRepeatsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := startRelay(t)
		a := gateway.NewAnswers(newCore(t, r, newKey(t)))
		end, err := a.Begin(t.Context(), repeat("1", "k"))
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range []gateway.Repeat{repeat("2", "k"), repeat("1", "l")} {
			otherEnd, err := a.Begin(t.Context(), other)
			if err != nil {
				t.Fatal(err)
			}
			otherEnd()
		}
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Begin(late, repeat("1", "k")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a repeat whose client leaves: %v", err)
		}
		var running, ended atomic.Int64
		for range 10 {
			go func() {
				end, err := a.Begin(t.Context(), repeatWith("1", "k", "[]"))
				if err != nil {
					t.Error(err)
					return
				}
				if running.Add(1) > 1 {
					t.Error("two requests with the same Idempotency-Key are in progress")
				}
				time.Sleep(time.Second)
				running.Add(-1)
				ended.Add(1)
				end()
				end() // has no effect
			}()
		}
		synctest.Wait()
		if running.Load() > 0 {
			t.Error("a repeat does not wait")
		}
		end()
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if n := ended.Load(); n != 9 {
			t.Errorf("%d repeats have ended after 9 s, want 9", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := ended.Load(); n != 10 {
			t.Errorf("%d repeats have ended, want 10", n)
		}
	})
}
