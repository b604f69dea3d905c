package httpapi_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// request signs a REQUEST from one agent to another, with a title.
func request(t testing.TB, from, to didkey.Key, title string) *envelope.Envelope {
	t.Helper()
	return sign(t, from, envelope.Draft{Payload: envelope.Request{Intent: "echo", Title: title}, Recipient: to.DID()})
}

// give posts a REQUEST and returns its canonical text.
func (s streamTest) give(t testing.TB, from, to didkey.Key, title string) string {
	t.Helper()
	e := request(t, from, to, title)
	req := httptest.NewRequest("POST", "/events", bytes.NewReader(e.Canonical()))
	req.RemoteAddr = "198.51.100.9:9"
	call(t, s.h, req).want(t, 200, "")
	return string(e.Canonical())
}

func TestPrefersStream(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/*": false, "text/html,application/xml;q=0.9,*/*;q=0.8": false,
		"text/event-stream": true, "TEXT/Event-Stream": true, "text/event-stream;charset=utf-8": true, " text/event-stream ; q=1": true,
		"text/event-stream, */*": true, "*/*, text/event-stream": true, "text/event-stream, application/*": true,
		"text/event-stream, application/json;q=0.5": true, "application/json;q=0.5|text/event-stream": true,
		"text/event-stream;q=0.2, application/json;q=0.1": true, "text/event-stream;q=0.5, application/json;q=0, */*": true,
		"text/event-stream, application/json": false, "application/json, text/event-stream": false, "application/json|text/event-stream": false,
		"text/event-stream;q=0": false, "text/event-stream;q=0.9, application/json": false, "text/event-stream;q=0.5, */*": false,
		"text/event-stream;q=x": false, "text/event-stream;q=NaN": false, "text/event-stream;q": false, "text/event-streams": false,
		"x/y;a=\"text/event-stream\"": false, ",": false,
	} {
		if got := httpapi.PrefersStream(strings.Split(accept, "|")); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}

// A stream without a position has what comes from now on. Each event comes at once, byte for byte as in a poll. Its id
// is a cursor.
func TestStream(t *testing.T) {
	inBubbles(t, relay.Config{}, func(t *testing.T, s streamTest, client *http.Client) {
		alice, bob := key(t), key(t)
		s.give(t, alice, bob, "earlier")
		target := "/events?recipient=" + string(bob.DID())
		f := followAs(t, client, bob, target)
		for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store", "Vary": "Accept",
			"X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff", "Content-Length": ""} {
			if got := f.header.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		synctest.Wait()
		begin := f.lastID()
		if !strings.HasPrefix(f.read(), "retry: ") || begin == "" || len(f.data()) > 0 {
			t.Errorf("the stream begins with %q", f.read())
		}
		var sent []string
		for i := range 3 {
			time.Sleep(time.Duration(i) * 7 * time.Second)
			began := time.Now()
			sent = append(sent, s.give(t, alice, bob, "<b>&\u2028\r\n"))
			synctest.Wait()
			if got := f.data(); !slices.Equal(got, sent) || !time.Now().Equal(began) {
				t.Fatalf("after %v the stream has %q, want %q", time.Since(began), got, sent)
			}
		}
		events, _ := f.parse()
		for i, id := range []string{begin, events[0].id, events[1].id, events[2].id} {
			a := getAs(t, s.h, bob, target+"&timeout=0&cursor="+id)
			if a.want(t, 200, ""); len(a.Events) != len(sent)-i || i < 3 && string(a.Events[0]) != sent[i] {
				t.Errorf("a poll from the id %d: %s", i, a.body)
			}
		}
		f.wantOpen("at the end")
		f.leave()
		synctest.Wait()
		if n := s.Waiting(); n != 0 {
			t.Errorf("%d streams are open after the client has left", n)
		}
	})
}

// TestStreamFilters compares streams with polls, for events that are stored and events that come later.
func TestStreamFilters(t *testing.T) {
	racing.Skip(t, "one thing after another")
	inBubbles(t, relay.Config{}, func(t *testing.T, s streamTest, client *http.Client) {
		alice, bob, eve := key(t), key(t), key(t)
		began := time.Now()
		time.Sleep(time.Second)
		conversation := func(thread string) {
			r := sign(t, alice, envelope.Draft{Thread: thread, Recipient: bob.DID(), Payload: envelope.Request{RequestID: thread, Intent: "echo"}})
			open := sign(t, alice, envelope.Draft{Thread: thread + "-open", Payload: envelope.Request{Intent: "echo"}})
			offer := sign(t, bob, envelope.Draft{Thread: thread, Recipient: alice.DID(), Payload: envelope.Offer{RequestID: thread}})
			for _, e := range []*envelope.Envelope{r, open, offer, request(t, alice, eve, ""), request(t, eve, alice, "")} {
				post(t, s.h, "/events", e.Canonical()).want(t, 200, "")
			}
			time.Sleep(time.Second)
		}
		conversation("t1")
		middle := time.Now().UTC().Format(time.RFC3339Nano)
		conversation("t2")
		second := getAs(t, s.h, bob, "/events?timeout=0&cursor=0&limit=2").Cursor
		var queries []string
		for _, filter := range []string{"", "&recipient=" + string(bob.DID()), "&broadcast=true&recipient=" + string(bob.DID()),
			"&sender=" + string(alice.DID()), "&type=OFFER", "&thread=t1", "&limit=1", "&thread=t2&type=REQUEST&sender=" + string(alice.DID())} {
			for _, start := range []string{"cursor=0", "cursor=" + second, "since=" + middle, "since=" + began.UTC().Format(time.RFC3339Nano)} {
				queries = append(queries, start+filter)
			}
		}
		feeds := map[string]*feed{}
		for _, query := range queries[:len(queries)-len(queries)%2] {
			if len(feeds) == 30 {
				break
			}
			feeds[query] = followAs(t, client, bob, "/events?"+query)
		}
		conversation("t3")
		synctest.Wait()
		for query, f := range feeds {
			want := []string{}
			for _, e := range getAs(t, s.h, bob, "/events?timeout=0&"+strings.Replace(query, "&limit=1", "", 1)).Events {
				want = append(want, string(e))
			}
			if got := f.data(); !slices.Equal(got, want) {
				t.Errorf("%s: the stream has %d events, a poll %d\n%q\n%q", query, len(got), len(want), got, want)
			}
		}
	})
}

func TestStreamRefusals(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for _, reads := range []relay.Visibility{relay.ToAll, relay.ToParties} {
		r := startWith(t, asIs, relay.Config{Origin: origin, Reads: reads})
		h := httpapi.New(r, httpapi.Options{Log: quiet}).Handler(false)
		for _, c := range []struct {
			target string
			ids    []string
			text   string
		}{
			{"/events?before=end", nil, "leave out before"},
			{"/events?cursor=0&timeout=5", nil, "leave out timeout"},
			{"/events?recipent=x", nil, "recipent is unknown"},
			{"/events?cursor=0&since=2026-01-01T00:00:00Z", nil, "give one of since"},
			{"/events?cursor=abc", nil, "cursor does not come from this relay"},
			{"/events?since=today", nil, "since must be"},
			{"/events?type=X", nil, "type must be"},
			{"/events?limit=0", nil, "limit must be"},
			{"/v1/messages?cursor=0", []string{"x y"}, "Last-Event-ID must be"},
			{"/events?cursor=0", []string{""}, "Last-Event-ID must be"},
			{"/events", []string{"0", "0"}, "more than once"},
			{"/events", []string{"00000001-1"}, "another database"},
			{"/events?cursor=00000001-1", nil, "another database"},
		} {
			req := httptest.NewRequest("GET", c.target, nil)
			req.Header.Set("Accept", "text/event-stream")
			req.Header["Last-Event-Id"] = c.ids
			a := call(t, h, req)
			if a.want(t, 400, envelope.CodeInvalidRequest); !strings.Contains(a.Message, c.text) || a.header.Get("Vary") != "Accept" {
				t.Errorf("%s %q: %s %v", c.target, c.ids, a.body, a.header)
			}
		}
		head := httptest.NewRequest("HEAD", "/events?cursor=0", nil)
		head.Header.Set("Accept", "text/event-stream")
		call(t, h, head).want(t, 405, envelope.CodeMethodNotAllowed)
		inbox := httptest.NewRequest("GET", "/events?recipient="+string(key(t).DID()), nil)
		inbox.Header.Set("Accept", "text/event-stream")
		if reads == relay.ToParties {
			unauthorized(t, "the inbox of another agent", call(t, h, inbox), envelope.ReasonUnsigned)
		}
		if a := get(t, h, "/events?cursor=0&timeout=0"); a.header.Get("Vary") != "Accept" {
			t.Errorf("a poll has the header %v", a.header)
		}
		r.Drain()
		call(t, h, inbox).want(t, 503, envelope.CodeUnavailable)
	}
}

// A quiet stream has a comment and an id every 15 seconds, and ends after ten minutes.
func TestStreamKeepsAlive(t *testing.T) {
	racing.Skip(t, "one thing after another")
	inBubbles(t, relay.Config{}, func(t *testing.T, s streamTest, client *http.Client) {
		alice, bob := key(t), key(t)
		target := "/events?type=REQUEST&recipient=" + string(bob.DID()) // so no TIMEOUT
		f := followAs(t, client, bob, target)
		time.Sleep(20 * time.Second)
		want := []string{s.give(t, alice, bob, "")} // the next comment is due 15 seconds after it
		time.Sleep(10*time.Minute - 20*time.Second)
		f.wantEnd("after ten minutes", "continue with the last id")
		text := f.transcript()
		if n := strings.Count(text, ": keep-alive\nid: "); n != 1+38 || !strings.Contains(text, "\n35s : keep-alive") ||
			!slices.Equal(f.data(), want) {
			t.Errorf("%d comments:\n%s", n, text)
		}
		again := followAs(t, client, bob, target, "Last-Event-ID", f.lastID())
		want = []string{s.give(t, alice, bob, "")}
		synctest.Wait()
		if got := again.data(); !slices.Equal(got, want) {
			t.Errorf("the next stream has %q", got)
		}
	})
}

// Strangers see only that a stream is open. What it writes, and when, does not depend on events that they may not see
// (PROTOCOL §8).
func TestStreamHidesPrivateEvents(t *testing.T) {
	engine.OnlySQLite(t, "it waits in synthetic time, and both stores leave waiting to the relay")
	racing.Skip(t, "one thing after another")
	for name, useHTTP2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		transcripts := map[bool]string{}
		for _, busy := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := serveStreams(t, relay.Config{Origin: origin, Reads: relay.ToParties})
				client := s.l.client(t, stranger, useHTTP2)
				alice, bob, eve := key(t), key(t), key(t)
				began := time.Now()
				all := []*feed{follow(t, client, "/events?cursor=0"), followAs(t, client, eve, "/events?cursor=0"),
					followAs(t, client, eve, "/events?cursor=0&sender="+string(alice.DID()))}
				for i := range 90 {
					if busy {
						s.give(t, alice, bob, strings.Repeat("x", 1000*(i%5)))
					}
					time.Sleep(time.Second)
				}
				time.Sleep(7 * time.Second) // not at the time of a keep-alive
				open := sign(t, alice, envelope.Draft{Thread: "t", Payload: envelope.Request{Intent: "echo"}})
				post(t, s.h, "/events", open.Canonical()).want(t, 200, "")
				time.Sleep(53*time.Second - 1)
				synctest.Wait()
				for _, f := range all {
					if got := f.data(); !slices.Equal(got, []string{string(open.Canonical())}) {
						t.Errorf("%s: the stream has %q", name, got)
					}
					transcripts[busy] += strings.ReplaceAll(f.transcript(), string(open.Canonical()), "{…}") + "\n--\n"
				}
				if took := time.Since(began); took != 150*time.Second-1 {
					t.Errorf("it took %v", took)
				}
			})
		}
		if transcripts[false] != transcripts[true] || strings.Count(transcripts[false], "keep-alive") < 9 {
			t.Errorf("%s: the streams of a quiet relay and of a busy one differ:\n%s\n%s", name, transcripts[false], transcripts[true])
		}
	}
}

// TestStreamLosesNothing posts from several senders while a reader's streams are broken again and again.
func TestStreamLosesNothing(t *testing.T) {
	inBubbles(t, relay.Config{Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}}},
		func(t *testing.T, s streamTest, client *http.Client) {
			bob := key(t)
			const senders, messages = 4, 30
			var sending sync.WaitGroup
			for range senders {
				alice := key(t)
				sending.Go(func() {
					for i := range messages {
						time.Sleep(time.Duration(30+i) * time.Millisecond)
						s.give(t, alice, bob, strings.Repeat("y", i*100))
					}
				})
			}
			// Like an EventSource, the reader repeats its URL.
			target, last := "/events?cursor=0&limit=3&recipient="+string(bob.DID()), []string(nil)
			var got []string
			for len(got) < senders*messages && !t.Failed() {
				f := followAs(t, client, bob, target, last...)
				time.Sleep(time.Duration(50+len(got)) * time.Millisecond)
				f.leave()
				got = append(got, f.data()...)
				if id := f.lastID(); id != "" {
					last = []string{"Last-Event-ID", id}
				}
			}
			sending.Wait()
			var want []string
			for _, e := range getAs(t, s.h, bob, "/events?cursor=0&timeout=0&limit=1000&recipient="+string(bob.DID())).Events {
				want = append(want, string(e))
			}
			if !slices.Equal(got, want) || len(want) != senders*messages {
				t.Errorf("the streams have %d events, the relay %d", len(got), len(want))
			}
		})
}

// A shutdown ends all streams at once. The last id of each is a valid position.
func TestStreamsEndAtShutdown(t *testing.T) {
	inBubbles(t, relay.Config{}, func(t *testing.T, s streamTest, client *http.Client) {
		alice, bob := key(t), key(t)
		var feeds []*feed
		for range 10 {
			feeds = append(feeds, followAs(t, client, bob, "/events?recipient="+string(bob.DID())))
		}
		s.give(t, alice, bob, "")
		time.Sleep(10 * time.Second)
		stopped := time.Now()
		s.stop() // with HTTP/2, it lasts for a second after the streams have ended
		for _, f := range feeds {
			f.wantEndAt(stopped, "at the shutdown", "continue with the last id")
			if c, err := s.ParseCursor(f.lastID()); err != nil || c.Seq != 1 || len(f.data()) != 1 {
				t.Errorf("the last id is %v, %v: %q", c, err, f.read())
			}
		}
	})
}

// A ban ends the streams of its reader at once.
func TestStreamOfBannedReader(t *testing.T) {
	racing.Skip(t, "one thing after another")
	inBubbles(t, relay.Config{}, func(t *testing.T, s streamTest, client *http.Client) {
		alice, bob := key(t), key(t)
		ban := func(b relay.Bans, ends bool, reason string) {
			t.Helper()
			f, quiet := followAs(t, client, bob, "/events"), followAs(t, client, bob, "/events?thread=none")
			time.Sleep(time.Second)
			banned := time.Now()
			s.Gate().SetBans(b)
			sent := s.give(t, alice, bob, "")
			if !ends {
				synctest.Wait()
				if got := f.data(); !slices.Equal(got, []string{sent}) {
					t.Errorf("the stream has %q", got)
				}
				f.wantOpen(reason)
			} else {
				f.wantEndAt(banned, "at the ban", reason)
				quiet.wantEndAt(banned, "at the ban", reason)
				if len(f.data()) > 0 {
					t.Errorf("the stream has %q", f.read())
				}
			}
			s.Gate().SetBans(relay.Bans{})
			f.leave()
			quiet.leave()
		}
		ban(relay.Bans{Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.PrefixFrom(netip.MustParseAddrPort(stranger).Addr(), 32)}}, true,
			"the operator of this relay has banned your address")
		// An open relay shows everything to everybody, also to a banned identity.
		ban(relay.Bans{Agents: []didkey.DID{bob.DID()}}, s.Reads() == relay.ToParties, "the operator of this relay has banned this identity")
		ban(relay.Bans{Agents: []didkey.DID{key(t).DID()}}, false, "a ban of another agent")
	})
}

// A stream counts like a waiting poll.
func TestStreamsAreLimited(t *testing.T) {
	racing.Skip(t, "one thing after another")
	inBubbles(t, relay.Config{Limits: relay.Limits{PollsPerAddress: 3, Polls: 4}}, func(t *testing.T, s streamTest, client *http.Client) {
		target := "https://localhost/events?cursor=0"
		refused := func(c *http.Client, limit string) {
			t.Helper()
			req, err := http.NewRequest("GET", target, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept", "text/event-stream")
			response, body := fetch(t, c, req)
			if response.StatusCode != 429 || response.Header.Get("Retry-After") == "" || !strings.Contains(body, `"limit":"`+limit+`"`) {
				t.Errorf("%d %s", response.StatusCode, body)
			}
		}
		var feeds []*feed
		for range 3 {
			feeds = append(feeds, follow(t, client, "/events"))
		}
		refused(client, envelope.LimitPollsPerAddress)
		other := s.l.client(t, "198.51.100.7:9", false)
		follow(t, other, "/events")
		refused(other, envelope.LimitPolls)
		if n := s.Waiting(); n != 4 {
			t.Errorf("%d streams are open", n)
		}
		feeds[0].leave()
		synctest.Wait()
		follow(t, client, "/events").wantOpen("after another one has ended")
		// A flood of streams that end at once leaves nothing.
		for _, f := range feeds {
			f.leave()
		}
		for range 200 {
			f := follow(t, client, "/events")
			f.leave()
			time.Sleep(20 * time.Millisecond) // for the rate of requests
		}
		synctest.Wait()
		if n := s.Waiting(); n != 2 {
			t.Errorf("%d streams are open, want 2", n)
		}
	})
}

// Each page counts as a request. Over the rate, the stream waits and keeps the connection alive.
func TestStreamWaitsForItsAllowance(t *testing.T) {
	racing.Skip(t, "one thing after another")
	inBubbles(t, relay.Config{Limits: relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.05, Burst: 3}}},
		func(t *testing.T, s streamTest, client *http.Client) {
			alice, bob := key(t), key(t)
			var want []string
			for range 8 {
				want = append(want, s.give(t, alice, bob, ""))
			}
			f := followAs(t, client, bob, "/events?cursor=0&limit=1&type=REQUEST&recipient="+string(bob.DID()))
			synctest.Wait()
			if got := f.data(); !slices.Equal(got, want[:3]) {
				t.Fatalf("at first the stream has %d events, want 3", len(got))
			}
			time.Sleep(20*time.Second - 1)
			synctest.Wait()
			if got := f.data(); !slices.Equal(got, want[:3]) || !strings.Contains(f.read(), "keep-alive") {
				t.Fatalf("before its next allowance the stream has %d events: %q", len(got), f.read())
			}
			time.Sleep(5 * time.Minute)
			f.wantOpen("after a pause")
			if got := f.data(); !slices.Equal(got, want) {
				t.Errorf("in the end the stream has %d events", len(got))
			}
		})
}

// A client that does not read is cut after the relay could not write for 30 seconds.
func TestStreamOfClientThatNeverReads(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, asIs, relay.Config{Limits: relay.Limits{PostsPerAgent: relay.Rate{PerSecond: relay.Unlimited}, PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}}})
		l, _ := serve(t, r)
		h := httpapi.New(r, httpapi.Options{Log: quiet}).Handler(false)
		alice, bob := key(t), key(t)
		c := l.dial()
		fmt.Fprint(c, "GET /events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
		synctest.Wait()
		began := time.Now()
		for range 200 {
			post(t, h, "/events", request(t, alice, bob, strings.Repeat("z", 10_000)).Canonical()).want(t, 200, "")
		}
		for r.Waiting() > 0 {
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took < 29*time.Second || took > 31*time.Second {
			t.Errorf("the stream was held for %v, want 30s", took)
		}
		_ = c.Close() // it is closed already
	})
}

// A stream shows its reader as online for as long as it is open.
func TestStreamKeepsReaderOnline(t *testing.T) {
	racing.Skip(t, "one thing after another")
	inBubbles(t, relay.Config{}, func(t *testing.T, s streamTest, client *http.Client) {
		bob, eve := key(t), key(t)
		for _, k := range []didkey.Key{bob, eve} {
			post(t, s.h, "/events", sign(t, k, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}, TTL: time.Hour}).Canonical()).want(t, 200, "")
		}
		time.Sleep(6 * time.Minute)
		online := func(want ...didkey.Key) {
			t.Helper()
			a := get(t, s.h, "/agents?online=true")
			if a.want(t, 200, ""); len(a.Agents) != len(want) || len(want) == 1 && !strings.Contains(string(a.Agents[0]), string(want[0].DID())) {
				t.Errorf("online: %s", a.body)
			}
		}
		online()
		followAs(t, client, bob, "/events")
		if s.Reads() == relay.ToAll { // a private relay refuses such a token
			follow(t, client, "/events", "Authorization", strings.Replace(authorization(t, eve, "/events"), "Agora ", "Agora x", 1))
		}
		for range 4 {
			time.Sleep(149 * time.Second)
			online(bob)
		}
		time.Sleep(6 * time.Minute)
		online()
	})
}

// A stream is counted when it ends.
func TestStreamsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &recorder{}
		r := startWith(t, asIs, relay.Config{Observer: seen})
		l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
		f := follow(t, l.client(t, stranger, false), "/v1/messages")
		if served, _ := seen.take(); len(served) > 0 {
			t.Errorf("served %q before the end", served)
		}
		f.leave()
		if served, _ := seen.take(); !slices.Equal(served, []string{" read"}) {
			t.Errorf("served %q", served)
		}
	})
}
