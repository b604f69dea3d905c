package relay_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// These tests are about the methods of a Relay that only gateways call.

// nested returns an object with this many levels.
func nested(levels int) []byte {
	return []byte(strings.Repeat(`{"a":`, levels-1) + "{}" + strings.Repeat("}", levels-1))
}

func TestObject(t *testing.T) {
	r := start(t, relay.Config{})
	const maxBytes = 65536
	sized := func(n int) []byte { return []byte(`{"a":"` + strings.Repeat("x", n-8) + `"}`) }
	numbers := func(number string) string { return `{"a":[` + strings.Repeat(number+",", 10_000) + number + `]}` }
	for _, c := range []struct {
		body, want string
		code       envelope.Code
	}{
		{` {"b":1e0,"a":[ ]} `, `{"a":[],"b":1}`, ""},
		{`{}`, `{}`, ""},
		{`{"envelope":{}}`, `{"envelope":{}}`, ""},
		// G-26: 65,536 bytes and 64 levels are taken; 65,537 bytes and 65 levels are not.
		{string(sized(maxBytes)), string(sized(maxBytes)), ""},
		{string(sized(maxBytes + 1)), "", envelope.CodePayloadTooLarge},
		{numbers("1e20"), numbers("100000000000000000000"), ""}, // 50,007 bytes become 220,007
		{string(nested(64)), string(nested(64)), ""},
		{string(nested(65)), "", envelope.CodeInvalidRequest},
		// G-27: duplicate members, lone surrogates and trailing data are refused.
		{`{"a":1,"a":1}`, "", envelope.CodeInvalidRequest},
		{`{"a":"\ud800"}`, "", envelope.CodeInvalidRequest},
		{`{}{}`, "", envelope.CodeInvalidRequest},
		{`[]`, "", envelope.CodeInvalidRequest},
		{`null`, "", envelope.CodeInvalidRequest},
		{``, "", envelope.CodeInvalidRequest},
	} {
		got, err := r.Object(local, []byte(c.body), maxBytes)
		if string(got) != c.want || codeOf(err) != c.code {
			t.Errorf("%.60s: %.60s %v", c.body, got, err)
		}
	}
	r.Drain()
	_, err := r.Object(local, []byte("{}"), maxBytes)
	wantCode(t, err, envelope.CodeUnavailable)
}

// TestObjectsAreCharged checks that large bodies count as more than one request.
func TestObjectsAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		peer, large := from("192.0.2.1"), bytes.Repeat([]byte("x"), 64<<10)
		parsed := 0
		for range 20 { // 100 tokens are there, and each body takes 8
			if _, err := r.Object(peer, large, 1<<16); codeOf(err) == envelope.CodeInvalidRequest {
				parsed++
			} else {
				wantLimit(t, err, envelope.LimitPostsPerAddress)
			}
		}
		if parsed != 13 {
			t.Errorf("%d bodies were parsed, want 13", parsed)
		}
		if _, err := r.Object(from("192.0.2.2"), []byte("{}"), 1<<16); err != nil {
			t.Errorf("another address: %v", err)
		}
	})
}

// TestStreamsTakePollSlots checks that a stream counts as a waiting poll, until it ends.
func TestStreamsTakePollSlots(t *testing.T) {
	seen := &waitingObserver{}
	r := start(t, relay.Config{Limits: relay.Limits{PollsPerAddress: 2}, Observer: seen})
	open := func(p relay.Peer) func() {
		t.Helper()
		stream, err := r.OpenStream(p, "")
		if err != nil {
			t.Fatal(err)
		}
		return stream.Close
	}
	remote := from("192.0.2.1")
	first := open(remote)
	open(remote)
	open(local)
	_, err := r.OpenStream(remote, "")
	wantLimit(t, err, envelope.LimitPollsPerAddress)
	_, err = r.Events(t.Context(), &relay.Poll{Peer: remote, Wait: time.Second, Limit: 1})
	wantLimit(t, err, envelope.LimitPollsPerAddress)
	if r.Waiting() != 3 || seen.sum != 3 {
		t.Errorf("%d are waiting, the observer counts %d, want 3", r.Waiting(), seen.sum)
	}
	first()
	open(remote)
	if r.Waiting() != 3 || seen.sum != 3 {
		t.Errorf("%d are waiting, the observer counts %d, want 3", r.Waiting(), seen.sum)
	}
	select {
	case <-r.Drained():
		t.Error("Drained is closed before Drain")
	default:
	}
	r.Drain()
	<-r.Drained()
	_, err = r.OpenStream(local, "")
	wantCode(t, err, envelope.CodeUnavailable)
}

type waitingObserver struct {
	relay.NoObserver
	sum int
}

func (o *waitingObserver) Waiting(change int) { o.sum += change }

func TestEpochIsThatOfCursors(t *testing.T) {
	r := start(t, relay.Config{})
	if c := poll(t, r, relay.Poll{Peer: local, Limit: 1}).Cursor; r.Epoch() != c.Epoch || r.Epoch() == 0 {
		t.Errorf("the epoch is %d, and that of a cursor is %d", r.Epoch(), c.Epoch)
	}
}

// TestAdmitCaller checks that each caller has its own allowance: 40 requests at once, and then 20 a second, from
// any address.
func TestAdmitCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		addresses := 0
		ask := func(caller string) error {
			addresses++
			return r.Gate().AdmitCaller(from(fmt.Sprint("192.0.2.", addresses%250)), caller)
		}
		for range 40 {
			if err := ask("hub/1"); err != nil {
				t.Fatal(err)
			}
		}
		if wait := wantLimit(t, ask("hub/1"), envelope.LimitRequests); wait != 50*time.Millisecond {
			t.Errorf("Retry-After is %v", wait)
		}
		if err := ask("hub/2"); err != nil {
			t.Errorf("another caller: %v", err)
		}
		if err := r.Gate().AdmitCaller(local, "hub/1"); err != nil {
			t.Errorf("the same caller from this machine: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
		if err := ask("hub/1"); err != nil {
			t.Errorf("after the wait: %v", err)
		}
		wantLimit(t, ask("hub/1"), envelope.LimitRequests)
	})
}

// TestAddressRate checks that the networks of an address are counted, at the given rate.
func TestAddressRate(t *testing.T) {
	clock := time.Unix(1e9, 0)
	now := func() time.Time { return clock }
	a := admission.NewAddressRate("registrations", "registers agents", relay.Rate{PerSecond: 20. / 3600, Burst: 20})
	for range 20 {
		if err := a.Take(from("2001:db8::1"), now); err != nil {
			t.Fatal(err)
		}
	}
	err := a.Take(from("2001:db8::2"), now) // the same /64
	if wait := wantLimit(t, err, "registrations"); wait != 3*time.Minute {
		t.Errorf("Retry-After is %v", wait)
	}
	const text = "this address registers agents faster than this relay allows (20 an hour, after 20 at once)"
	if !strings.Contains(err.Error(), text) {
		t.Errorf("the refusal is %q", err)
	}
	for _, p := range []relay.Peer{from("2001:db8:0:1::1"), from("192.0.2.1"), local} {
		if err := a.Take(p, now); err != nil {
			t.Errorf("another address: %v", err)
		}
	}
	for i := range 58 { // with the 21 before, the /56 has used up four times the allowance of an address
		if err := a.Take(from(fmt.Sprintf("2001:db8:0:%x::1", 2+i)), now); err != nil {
			t.Fatalf("address %d of the /56: %v", i, err)
		}
	}
	if err := a.Take(from("2001:db8:0:ff::1"), now); err != nil {
		t.Error(err)
	}
	wantLimit(t, a.Take(from("2001:db8:0:fe::1"), now), "registrations")
	clock = clock.Add(3 * time.Minute)
	if err := a.Take(from("2001:db8::1"), now); err != nil {
		t.Errorf("after three minutes: %v", err)
	}
}
