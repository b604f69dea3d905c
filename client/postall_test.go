package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// conversation returns the messages of n threads: each thread has a REQUEST to an agent, then its CANCEL.
func conversation(t *testing.T, by, to didkey.Key, n int) (all []*envelope.Envelope) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("thread-%d", i)
		request, cancel := envelope.Request{RequestID: id, Intent: "translate"}, envelope.Cancel{RequestID: id}
		for _, p := range []envelope.Payload{request, cancel} {
			e, err := envelope.Draft{Thread: id, Recipient: to.DID(), Payload: p}.Sign(by, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
	}
	return all
}

// TestPostAll posts to a real relay: more messages than one request takes, one that is refused, and all of them again.
func TestPostAll(t *testing.T) {
	server, err := newRealRelay(relay.ToAll)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	me, agent := newKey(t), newKey(t)
	c, err := client.New(server.URL, me, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := conversation(t, me, agent, 600)
	d := envelope.Draft{Recipient: agent.DID(), Thread: "none", Payload: envelope.Cancel{RequestID: "none"}}
	late, err := d.Sign(me, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	all = slices.Insert(all, 700, late)
	for round := range 2 {
		for i, r := range c.PostAll(t.Context(), all) {
			switch {
			case i == 700:
				if !hasCode(r.Err, envelope.CodeThreadNotFound) || errors.Is(r.Err, client.ErrUnknownOutcome) {
					t.Errorf("the message of an unknown thread: %v", r.Err)
				}
			case r.Err != nil || r.Receipt.ID != all[i].ID || r.Receipt.Duplicate != (round == 1) ||
				!r.Receipt.ExpiresAt.Equal(all[i].ExpiresAt()):
				t.Fatalf("round %d, message %d: %+v", round, i, r)
			}
		}
	}
	stored := slices.Delete(all, 700, 701)
	done := errors.New("all were delivered")
	opts := client.FollowOptions{FromOldest: true}
	err = c.Follow(t.Context(), opts, func(_ context.Context, e *envelope.Envelope) error {
		if e.ID != stored[0].ID {
			t.Fatalf("%d messages before the end, %s is delivered in place of %s", len(stored), e.ID, stored[0].ID)
		}
		if stored = stored[1:]; len(stored) == 0 {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Error(err)
	}
}

// refusing answers a bulk request: the relay gets the first lines, and the next line has this refusal. With rest, the
// relay also gets the lines after it.
func refusing(lines int, refusal string, rest bool) fault {
	return func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		var body bytes.Buffer
		if _, err := body.ReadFrom(r.Body); err != nil {
			return nil, err
		}
		all := slices.Collect(strings.Lines(body.String()))
		post := func(lines []string) (results string, err error) {
			again := r.Clone(r.Context())
			again.Body = http.NoBody
			if len(lines) > 0 {
				again.Body = io.NopCloser(strings.NewReader(strings.Join(lines, "")))
			}
			response, err := next.RoundTrip(again)
			if err != nil {
				return "", err
			}
			var text bytes.Buffer
			_, err = text.ReadFrom(response.Body)
			_, results, _ = strings.Cut(text.String(), `"results":[`)
			return strings.TrimSuffix(results, "]}"), err
		}
		first, err := post(all[:lines])
		if err != nil || !rest {
			return response(200, `{"ok":true,"results":[`+first+`],"stopped":`+refusal+`}`), err
		}
		last, err := post(all[lines+1:])
		parts := slices.DeleteFunc([]string{first, refusal, last}, func(s string) bool { return s == "" })
		return response(200, `{"ok":true,"results":[`+strings.Join(parts, ",")+`]}`), err
	}
}

func TestPostAllOutcome(t *testing.T) {
	const limited = `{"error":"RATE_LIMITED","message":"slowly","retryAfter":3}`
	const tooLarge = `{"error":"PAYLOAD_TOO_LARGE","message":"too large"}`
	wrongResults := func(n int) string {
		return `{"ok":true,"results":[` + strings.Join(slices.Repeat([]string{`{"id":"a"}`}, n), ",") + "]}"
	}
	codes := func(codes ...envelope.Code) []envelope.Code { return codes }
	const ok = envelope.Code("")
	for name, test := range map[string]struct {
		faults []fault
		want   []envelope.Code // one for each of the four messages; "": a receipt; "-": an error without a code
		// of the failed messages, how many have an unknown outcome
		unknown int
		posts   int           // requests
		waits   time.Duration // at least
	}{
		"stored at once": {faults: []fault{pass}, want: codes(ok, ok, ok, ok), posts: 1},
		"lost answer":    {faults: []fault{lost, pass}, want: codes(ok, ok, ok, ok), posts: 2},
		"a line is limited, what depends on it is sent again": {faults: []fault{refusing(0, limited, true), pass},
			want: codes(ok, ok, ok, ok), posts: 2, waits: 3 * time.Second},
		"stopped by a limit": {faults: []fault{refusing(1, limited, false), pass}, want: codes(ok, ok, ok, ok), posts: 3,
			waits: 3 * time.Second},
		"stopped at the end of a request": {faults: []fault{refusing(3, tooLarge, false), pass},
			want: codes(ok, ok, ok, ok), posts: 2},
		"a message that the relay takes in no request": {faults: []fault{refusing(0, tooLarge, false), pass},
			want: codes(envelope.CodePayloadTooLarge, envelope.CodeThreadNotFound, ok, ok), posts: 2},
		"a proxy takes less": {faults: []fault{answering(413, "<html>"), answering(413, "<html>"), pass},
			want: codes(ok, ok, ok, ok), posts: 5},
		"a proxy takes nothing": {faults: []fault{answering(403, "<html>")}, want: codes("-", "-", "-", "-"), posts: 1},
		"lost, no bulk, expired": {faults: []fault{lost, answering(404, `{"ok":false,"error":"NOT_FOUND"}`),
			answering(400, `{"ok":false,"error":"EXPIRED"}`)}, posts: 6, unknown: 4,
			want: slices.Repeat(codes("EXPIRED"), 4)},
		"perhaps stored, then expired": {
			faults: []fault{refusing(3, `{"error":"INTERNAL_ERROR"}`, true), refusing(0, `{"error":"EXPIRED"}`, true)},
			want:   codes(ok, ok, ok, "EXPIRED"), posts: 2, unknown: 1},
		"no bulk, and then no answer": {
			faults: []fault{answering(404, `{"ok":false,"error":"NOT_FOUND"}`), pass, noConnection},
			want:   codes(ok, "-", "-", "-"), posts: 10},
		"always limited": {faults: []fault{refusing(0, limited, false)}, posts: 8,
			want: codes(envelope.CodeRateLimited, envelope.CodeRateLimited, envelope.CodeRateLimited, envelope.CodeRateLimited)},
		"one message is limited for long": {
			faults: []fault{refusing(0, `{"error":"RATE_LIMITED","retryAfter":99999}`, true)}, posts: 1,
			want: codes(envelope.CodeRateLimited, envelope.CodeThreadNotFound, ok, ok)},
		"no bulk": {faults: []fault{answering(404, `{"ok":false,"error":"NOT_FOUND","message":"no"}`), pass},
			want: codes(ok, ok, ok, ok), posts: 5},
		"always reset":       {faults: []fault{reset}, posts: 8, unknown: 4, want: codes("-", "-", "-", "-")},
		"never a connection": {faults: []fault{noConnection}, posts: 8, want: codes("-", "-", "-", "-")},
		"lost, then refused": {faults: []fault{lost, refusing(0, tooLarge, false), pass}, posts: 3, unknown: 1,
			want: codes(envelope.CodePayloadTooLarge, ok, ok, ok)},
		"too many results": {faults: []fault{answering(200, wrongResults(5)), pass},
			want: codes(ok, ok, ok, ok), posts: 2},
		"results of others": {faults: []fault{answering(200, wrongResults(4)), pass},
			want: codes(ok, ok, ok, ok), posts: 2},
		"too few results": {faults: []fault{answering(200, wrongResults(0)), pass},
			want: codes(ok, ok, ok, ok), posts: 2},
		"an unknown code": {faults: []fault{refusing(3, `{"error":"NEW"}`, true), pass},
			want: codes(ok, ok, ok, "NEW"), posts: 1},
		"a limit for ten years": {faults: []fault{refusing(3, `{"error":"RATE_LIMITED","retryAfter":315360000}`, true)},
			want: codes(ok, ok, ok, envelope.CodeRateLimited), posts: 1},
		"the server has failed": {faults: []fault{answering(500, unavailable), pass},
			want: codes(ok, ok, ok, ok), posts: 2},
		"the relay is shut down": {faults: []fault{answering(503, full)},
			want: slices.Repeat(codes(envelope.CodeUnavailable), 4), posts: 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				relay, me := newFakeRelay(), newKey(t)
				bodies := script(relay, test.faults...)
				all := conversation(t, me, newKey(t), 2)
				began := time.Now()
				results := newClient(t, relay, me, client.Options{}).PostAll(t.Context(), all)
				unknown := 0
				for i, r := range results {
					if errors.Is(r.Err, client.ErrUnknownOutcome) {
						unknown++
					}
					refusal, _ := errors.AsType[*envelope.Error](r.Err)
					switch want := test.want[i]; {
					case refusal != nil && refusal.Code != want, refusal == nil && want != ok && want != "-",
						want == ok && (r.Err != nil || r.Receipt.ID != all[i].ID), want == "-" && r.Err == nil:
						t.Errorf("message %d: got %+v, want %q", i, r, want)
					}
				}
				if len(results) != 4 || unknown != test.unknown || len(*bodies) != test.posts || time.Since(began) < test.waits {
					t.Errorf("%d results, %d unknown, %d posts, after %v", len(results), unknown, len(*bodies), time.Since(began))
				}
			})
		})
	}
}

// TestPostAllIsPatient checks that a sender over its limit does not send all of its messages again and again.
func TestPostAllIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, me := newFakeRelay(), newKey(t)
		limited := refusing(5, `{"error":"RATE_LIMITED","retryAfter":1}`, false)
		bodies := script(relay, limited, limited, limited, pass)
		for i, r := range newClient(t, relay, me, client.Options{}).PostAll(t.Context(), conversation(t, me, newKey(t), 15)) {
			if r.Err != nil {
				t.Errorf("message %d: %v", i, r.Err)
			}
		}
		var sent []int
		for _, body := range *bodies {
			sent = append(sent, strings.Count(body, "\n"))
		}
		// After the first refusals it sends as many as were taken. Then it doubles the number each time.
		if want := []int{30, 5, 5, 5, 10}; !slices.Equal(sent, want) {
			t.Errorf("the requests had %v messages, want %v", sent, want)
		}
	})
}

// TestPostAllEnds checks what happens when the context ends.
func TestPostAllEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, me := newFakeRelay(), newKey(t)
		script(relay, refusing(1, `{"error":"RATE_LIMITED","retryAfter":60}`, false))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		results := newClient(t, relay, me, client.Options{}).PostAll(ctx, conversation(t, me, newKey(t), 2))
		if results[0].Err != nil {
			t.Errorf("the stored message: %v", results[0].Err)
		}
		for _, r := range results[1:] {
			if !errors.Is(r.Err, context.DeadlineExceeded) || errors.Is(r.Err, client.ErrUnknownOutcome) {
				t.Errorf("got %v", r.Err)
			}
		}
		if results := newClient(t, relay, me, client.Options{}).PostAll(ctx, nil); len(results) != 0 {
			t.Errorf("results of no messages: %v", results)
		}
	})
}
