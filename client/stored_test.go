package client_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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

// TestEventsBefore reads the events of a relay backwards, page by page.
func TestEventsBefore(t *testing.T) {
	r, err := newRealRelay(relay.ToAll)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	me, other := newKey(t), newKey(t)
	c, err := client.New(r.URL, me, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 5 {
		for _, signer := range []didkey.Key{me, other} {
			sender, err := client.New(r.URL, signer, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			e, _, err := sender.Post(t.Context(), envelope.Draft{Payload: envelope.Request{RequestID: fmt.Sprint(i), Intent: "echo"}})
			if err != nil {
				t.Fatal(err)
			}
			if e.Sender.ID == me.DID() {
				want = append([]string{e.ID}, want...)
			}
		}
	}
	var got []string
	for before, more := "", true; more; {
		page, err := c.EventsBefore(t.Context(), client.Filter{Sender: me.DID()}, before, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			got = append(got, e.ID)
		}
		before, more = page.Cursor, page.HasMore
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := c.EventsBefore(t.Context(), client.Filter{}, "nonsense", 2); envelope.CodeOf(err) != envelope.CodeInvalidRequest {
		t.Errorf("a wrong position: %v", err)
	}
}

// TestEventsBeforeEnds checks that a relay that always claims to have more, and moves nowhere, is noticed.
func TestEventsBeforeEnds(t *testing.T) {
	r, me := newFakeRelay(), newKey(t)
	r.setHook(func(*http.Request, http.RoundTripper) (*http.Response, error) {
		return response(http.StatusOK, `{"ok":true,"events":[],"cursor":"end","hasMore":true}`), nil
	})
	c := newClient(t, r, me, client.Options{})
	for _, before := range []string{"", "end"} {
		if _, err := c.EventsBefore(t.Context(), client.Filter{}, before, 2); err == nil || !strings.Contains(err.Error(), "no usable cursor") {
			t.Errorf("before %q: %v", before, err)
		}
	}
}

// TestConnectedAgain checks that Follow logs a failure, and its end as soon as the relay answers again. It gets the events
// that come then at once.
func TestConnectedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, me := newFakeRelay(), newKey(t)
		began := time.Now()
		var answered time.Time // when the relay answers again
		r.setHook(func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
			switch after := time.Since(began); {
			case after > time.Minute && after < 3*time.Minute:
				return nil, fmt.Errorf("no route")
			case after >= 3*time.Minute && answered.IsZero():
				answered = time.Now()
				time.AfterFunc(time.Second, func() { r.put(t, me, envelope.Draft{}) })
			}
			return next.RoundTrip(req)
		})
		var log timedLog
		c := newClient(t, r, me, client.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var arrived []time.Time
		_ = c.Follow(ctx, client.FollowOptions{}, func(context.Context, *envelope.Envelope) error {
			arrived = append(arrived, time.Now())
			return nil
		})
		if len(log.failed) == 0 || len(log.again) != 1 || !log.again[0].Equal(answered) || log.failed[len(log.failed)-1].After(answered) {
			t.Errorf("failures at %v, and connected again at %v, want %v", log.failed, log.again, answered)
		}
		if len(arrived) != 1 || !arrived[0].Equal(answered.Add(time.Second)) {
			t.Errorf("the event arrived at %v, and the relay answered at %v", arrived, answered)
		}
	})
}

// timedLog records when lines about failures are written.
type timedLog struct{ failed, again []time.Time }

func (l *timedLog) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("will be retried")) {
		l.failed = append(l.failed, time.Now())
	}
	if bytes.Contains(p, []byte("connected again")) {
		l.again = append(l.again, time.Now())
	}
	return len(p), nil
}
