package hubclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

// following runs Follow until the function that it returns is called, which returns Follow's error.
func following(t *testing.T, h *fakeHub, f *Folder, o FollowOptions) (stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Follow(ctx, f, h.client(), o) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// H-36: the inbox leaves the files to the byte: what came before, what comes on the stream, and what was sent elsewhere.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		h.add(bob, alice, hello(bob, "one"))
		h.add(alice, bob, hello(alice, "two"))
		var shown lines
		stop := following(t, h, f, FollowOptions{Show: shown.show})
		synctest.Wait()
		h.deliver(bob, hello(bob, "three\n\u202E\u2028<&>"))
		synctest.Wait()
		h.mu.Lock()
		h.add(alice, bob, hello(alice, "four"))
		h.mu.Unlock()
		h.push("event: unknown\ndata: {}\n\n:ping\n\nevent: message\nid: 99\ndata: {\"id\":99,\"trace_id\"\n\n")
		h.deliver("carol@x", hello("carol@x", "five"))
		synctest.Wait()
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Follow ended with %v", err)
		}
		one, three := line(Received, 1, bob, hello(bob, "one")), line(Received, 3, bob, hello(bob, "three\n\u202E\u2028<&>"))
		// RFC 8785 escapes neither U+202E nor U+2028.
		three = strings.ReplaceAll(strings.ReplaceAll(three, `\u2028`, "\u2028"), `\u202e`, "\u202E")
		five := line(Received, 5, "carol@x", hello("carol@x", "five"))
		if want := one + line(Sent, 2, bob, hello(alice, "two")) + three + line(Sent, 4, bob, hello(alice, "four")); content(t, f, bob+".jsonl") != want {
			t.Errorf("the history is\n%s, want\n%s", content(t, f, bob+".jsonl"), want)
		}
		if got := content(t, f, "carol@x.jsonl"); got != five {
			t.Errorf("the history with carol is\n%s, want\n%s", got, five)
		}
		if want := one + three + five; shown.String() != want {
			t.Errorf("shown were\n%s, want\n%s", shown.String(), want)
		}
		if got := content(t, f, ".state.json"); got != "{\"last_id\":50}\n" || h.acked != 50 {
			t.Errorf("the state is %s, and %d is confirmed; want 50", got, h.acked)
		}
		checkModes(t, f)
	})
}

// checkModes checks that only the owner can read the files of an agent, and that there are no others.
func checkModes(t *testing.T, f *Folder) {
	t.Helper()
	err := filepath.WalkDir(f.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == f.dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 || strings.HasSuffix(path, ".tmp") {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFollowPages reads a history of several pages, and ends at the count within one.
func TestFollowPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		for range 2*pageRows + 5 {
			h.add(bob, alice, hello(bob, "hello"))
		}
		for _, run := range []struct {
			count, last int
		}{{1, 10}, {pageRows, 1010}, {3, 1040}, {pageRows + 1, 2050}} {
			var shown lines
			if err := Follow(t.Context(), f, h.client(), FollowOptions{Count: run.count, Show: shown.show}); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(shown.String(), "\n"); n != run.count {
				t.Errorf("%d lines were shown, want %d", n, run.count)
			}
			if got, want := content(t, f, ".state.json"), fmt.Sprintf("{\"last_id\":%d}\n", run.last); got != want || h.acked != int64(run.last) {
				t.Errorf("the state is %q and %d is confirmed, want %q", got, h.acked, want)
			}
			if n := strings.Count(content(t, f, bob+".jsonl"), "\n"); n != run.last/10 {
				t.Errorf("the history has %d lines, want %d", n, run.last/10)
			}
		}
	})
}

// TestFollowCountOnStream ends at the count although further messages came at the same time. They come the next time.
func TestFollowCountOnStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		run := func(during func()) string {
			var shown lines
			ended := make(chan error, 1)
			go func() { ended <- Follow(t.Context(), f, h.client(), FollowOptions{Count: 1, Show: shown.show}) }()
			synctest.Wait()
			during()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			return shown.String()
		}
		first := run(func() {
			h.mu.Lock()
			one, two := h.add(bob, alice, hello(bob, "1")), h.add(bob, alice, hello(bob, "2"))
			writer := h.streams[0]
			h.mu.Unlock()
			_, _ = writer.Write([]byte(frame(one) + frame(two))) // Follow may have closed the stream before the end
		})
		if first != line(Received, 1, bob, hello(bob, "1")) || content(t, f, ".state.json") != "{\"last_id\":10}\n" || h.acked != 10 {
			t.Errorf("shown was %s, the state is %s, %d is confirmed", first, content(t, f, ".state.json"), h.acked)
		}
		if second := run(func() {}); second != line(Received, 2, bob, hello(bob, "2")) {
			t.Errorf("the second run showed %s", second)
		}
	})
}

// TestFollowReconnects checks what happens when a stream breaks: Follow waits, catches up, and asks for what comes after
// the last message. It shows no message twice.
func TestFollowReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		var shown lines
		stop := following(t, h, f, FollowOptions{Show: shown.show})
		synctest.Wait()
		h.deliver(bob, hello(bob, "1"))
		synctest.Wait()
		h.push("event: message\nid: 20\ndata: {\"id\":20,\"trace_id\":\"trace-20\",\"send") // cut off by the break
		h.mu.Lock()
		h.add(bob, alice, hello(bob, "2"))
		h.mu.Unlock()
		h.cut()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		h.deliver(bob, hello(bob, "3"))
		synctest.Wait()
		h.push("event: message\nid: 30\ndata: " + strings.SplitN(strings.SplitN(frame(h.rows[2]), "data: ", 2)[1], "\n", 2)[0] + "\n\n")
		synctest.Wait()
		// Pings keep a stream open. One that says nothing for a minute is given up.
		for range 10 {
			time.Sleep(20 * time.Second)
			h.push(":ping\n\n")
		}
		begin := time.Now()
		time.Sleep(idleLimit - time.Second)
		synctest.Wait()
		if n := len(h.lastSeen); n != 2 {
			t.Errorf("there were %d streams, want 2", n)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := len(h.lastSeen); n != 3 || time.Since(begin) > idleLimit+10*time.Second {
			t.Errorf("there were %d streams, want 3", n)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if want := []string{"0", "20", "30"}; !slices.Equal(h.lastSeen, want) {
			t.Errorf("the streams began after %q, want %q", h.lastSeen, want)
		}
		all := line(Received, 1, bob, hello(bob, "1")) + line(Received, 2, bob, hello(bob, "2")) + line(Received, 3, bob, hello(bob, "3"))
		if shown.String() != all || content(t, f, bob+".jsonl") != all {
			t.Errorf("shown were\n%s, recorded were\n%s, want\n%s", shown.String(), content(t, f, bob+".jsonl"), all)
		}
	})
}

// TestFollowWaits checks the pauses while the hub refuses: they grow, and are never shorter than Retry-After.
func TestFollowWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		var at []time.Time
		h.before = func(r *http.Request, _ []byte) (*http.Response, error) {
			at = append(at, time.Now())
			switch n := len(at); {
			case n <= 9:
				return nil, errors.New("connection refused")
			case n <= 11:
				response := reply(429, `{"success":false,"error":{"code":"ERR_RATE_LIMITED","message":"slow down"}}`)
				response.Header.Set("Retry-After", "120")
				return response, nil
			}
			return reply(401, `{"success":false,"error":{"code":"ERR_UNAUTHORIZED","message":"this needs a valid key"}}`), nil
		}
		err := Follow(t.Context(), f, h.client(), FollowOptions{})
		if refused, ok := errors.AsType[*Error](err); !ok || refused.Status != 401 || refused.Code != "ERR_UNAUTHORIZED" {
			t.Errorf("Follow ended with %v", err)
		}
		for i := range at[1:] {
			pause, span := at[i+1].Sub(at[i]), min(exchange.MinPause<<i, exchange.MaxPause)
			low, high := span/2, span
			if i >= 9 {
				low, high = 120*time.Second, 120*time.Second
			}
			if pause < low || pause > high {
				t.Errorf("pause %d is %v, want %v to %v", i, pause, low, high)
			}
		}
		if len(at) != 12 {
			t.Errorf("there were %d requests, want 12", len(at))
		}
	})
}

// TestFollowClosed checks what Follow does when the hub closes the stream.
func TestFollowClosed(t *testing.T) {
	for reason, want := range map[string]error{"replaced": ErrReplaced, "deleted": ErrDeleted, "shutdown": nil, "": nil} {
		synctest.Test(t, func(t *testing.T) {
			h, f := newHub(t)
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { ended <- Follow(ctx, f, h.client(), FollowOptions{}) }()
			synctest.Wait()
			h.push("event: closed\ndata: {\"reason\":\"" + reason + "\"}\n\n")
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if streams := len(h.lastSeen); want != nil && streams != 1 || want == nil && streams != 2 {
				t.Errorf("%s: %d streams", reason, streams)
			}
			cancel()
			if err := <-ended; want != nil && err != want || want == nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: Follow ended with %v", reason, err)
			}
		})
	}
}

// TestFollowRotated replaces the key while the inbox is open. Follow continues with the new one.
func TestFollowRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		var used []string
		h.before = func(r *http.Request, _ []byte) (*http.Response, error) {
			used = append(used, r.Header.Get("Authorization"))
			return nil, nil
		}
		stop := following(t, h, f, FollowOptions{})
		synctest.Wait()
		if err := replaceFile(f.CredentialsFile(), 0o600, Credentials{alice, "ca_new", hubURL}.text()); err != nil {
			t.Fatal(err)
		}
		h.push("event: closed\ndata: {\"reason\":\"rotated\"}\n\n")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if last := used[len(used)-1]; len(h.lastSeen) != 2 || last != "Bearer ca_new" {
			t.Errorf("%d streams, the last with %s", len(h.lastSeen), last)
		}
		if err := replaceFile(f.CredentialsFile(), 0o600, Credentials{bob, "ca_bob", hubURL}.text()); err != nil {
			t.Fatal(err)
		}
		h.push("event: closed\ndata: {\"reason\":\"rotated\"}\n\n")
		time.Sleep(time.Second)
		if err := stop(); err == nil || !strings.Contains(err.Error(), "now belong to "+bob) {
			t.Errorf("Follow ended with %v", err)
		}
	})
}

// TestFollowSeesWhatOthersTook has another program that reads the history while the stream is open. The hub then does
// not send those messages on the stream. They must still be in the history, and be shown.
func TestFollowSeesWhatOthersTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		var shown lines
		stop := following(t, h, f, FollowOptions{Show: shown.show})
		synctest.Wait()
		h.mu.Lock()
		h.add(bob, alice, hello(bob, "taken by another program"))
		h.mu.Unlock()
		h.deliver(bob, hello(bob, "2"))
		synctest.Wait()
		_ = stop()
		if text := shown.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "taken by another") ||
			strings.Count(content(t, f, bob+".jsonl"), "\n") != 2 || content(t, f, ".state.json") != "{\"last_id\":20}\n" {
			t.Errorf("shown were\n%s", text)
		}
	})
}

// TestFollowCountWithMissingMessages is the same with a count of 1. The message that was not on the stream comes the next
// time.
func TestFollowCountWithMissingMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		var shown lines
		ended := make(chan error, 1)
		go func() { ended <- Follow(t.Context(), f, h.client(), FollowOptions{Count: 1, Show: shown.show}) }()
		synctest.Wait()
		h.mu.Lock()
		h.add(bob, alice, hello(bob, "taken by another program"))
		h.mu.Unlock()
		h.deliver(bob, hello(bob, "2"))
		if err := <-ended; err != nil || shown.String() != line(Received, 2, bob, hello(bob, "2")) || content(t, f, ".state.json") != "" {
			t.Errorf("%v, the state is %s, shown was %s", err, content(t, f, ".state.json"), shown.String())
		}
		if err := Follow(t.Context(), f, h.client(), FollowOptions{Count: 1, Show: shown.show}); err != nil || !strings.Contains(shown.String(), "taken by another") {
			t.Errorf("%v, shown were %s", err, shown.String())
		}
	})
}

// TestFollowWithoutHistory has a hub whose history does not show what it sends on the stream. The state still advances,
// and the messages are confirmed.
func TestFollowWithoutHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		h.before = func(r *http.Request, _ []byte) (*http.Response, error) {
			if r.URL.Path == "/hub/agent/messages" {
				return reply(200, `{"success":true,"data":[],"metadata":{}}`), nil
			}
			return nil, nil
		}
		stop := following(t, h, f, FollowOptions{Show: func([]byte) error { return nil }})
		synctest.Wait()
		h.deliver(bob, hello(bob, "1"))
		synctest.Wait()
		_ = stop()
		if got := content(t, f, ".state.json"); got != "{\"last_id\":10}\n" || h.acked != 10 || content(t, f, bob+".jsonl") != line(Received, 1, bob, hello(bob, "1")) {
			t.Errorf("the state is %s, and %d is confirmed", got, h.acked)
		}
	})
}

// TestFollowInterrupted interrupts Follow when it has shown a message and could not yet save that. It does so before it
// ends.
func TestFollowInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		stop := following(t, h, f, FollowOptions{Show: func([]byte) error { return nil }})
		synctest.Wait()
		failures := 0
		h.before = func(r *http.Request, _ []byte) (*http.Response, error) {
			if failures++; failures == 1 {
				return reply(503, ""), nil
			}
			return nil, nil
		}
		h.deliver(bob, hello(bob, "1"))
		synctest.Wait()
		if got := content(t, f, ".state.json"); got != "" {
			t.Errorf("the state is %s already", got)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Follow ended with %v", err)
		}
		if got := content(t, f, ".state.json"); got != "{\"last_id\":10}\n" || h.acked != 10 {
			t.Errorf("the state is %s, and %d is confirmed", got, h.acked)
		}
	})
}

// TestFollowInterruptedBeforeItConfirms interrupts Follow when it has shown what came before. It confirms that all the
// same.
func TestFollowInterruptedBeforeItConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		h.add(bob, alice, hello(bob, "1"))
		ctx, interrupt := context.WithCancel(t.Context())
		h.before = func(r *http.Request, _ []byte) (*http.Response, error) { return nil, r.Context().Err() }
		err := Follow(ctx, f, h.client(), FollowOptions{Show: func([]byte) error {
			interrupt()
			return nil
		}})
		if !errors.Is(err, context.Canceled) || h.acked != 10 || content(t, f, ".state.json") != "{\"last_id\":10}\n" {
			t.Errorf("%v, %d is confirmed", err, h.acked)
		}
	})
}

// TestFollowRecordsOnce has messages in the history already: from a run that was killed before it saved its state, and
// from an agent that has written its own lines.
func TestFollowRecordsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		for range 4 {
			h.add(bob, alice, hello(bob, "hello"))
		}
		one, three := line(Received, 1, bob, hello(bob, "hello")), line(Received, 3, bob, hello(bob, "hello"))
		own := `{"trace_id":"trace-20","dir":"received","ts":"2026-03-22T04:30:02Z","peer":"bob@relay.example","envelope":{}}` + "\n"
		write(t, filepath.Join(f.HistoryFolder(), bob+".jsonl"), one+own+three[:len(three)/2])
		write(t, filepath.Join(f.HistoryFolder(), ".state.json"), "{\"last_id\":10}\n")
		var shown lines
		if err := Follow(t.Context(), f, h.client(), FollowOptions{Count: 3, Show: shown.show}); err != nil {
			t.Fatal(err)
		}
		want := one + own + three[:len(three)/2] + "\n" + three + line(Received, 4, bob, hello(bob, "hello"))
		if got := content(t, f, bob+".jsonl"); got != want {
			t.Errorf("the history is\n%s, want\n%s", got, want)
		}
	})
}

// TestFollowLostAnswers loses every kind of answer. In the end everything is recorded, shown and confirmed once.
func TestFollowLostAnswers(t *testing.T) {
	for _, path := range []string{"/agent/messages", "/agent/ack", "/agent/inbox"} {
		synctest.Test(t, func(t *testing.T) {
			h, f := newHub(t)
			h.add(bob, alice, hello(bob, "1"))
			losses := 0
			h.after = func(r *http.Request) error {
				if strings.HasSuffix(r.URL.Path, path) && losses < 3 {
					losses++
					return errors.New("connection reset")
				}
				return nil
			}
			var shown lines
			stop := following(t, h, f, FollowOptions{Show: shown.show})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			for range 3 {
				h.deliver(bob, hello(bob, "more"))
				time.Sleep(10 * time.Second)
				synctest.Wait()
			}
			_ = stop()
			if got := content(t, f, bob+".jsonl"); strings.Count(got, "\n") != 4 || shown.String() != got ||
				content(t, f, ".state.json") != "{\"last_id\":40}\n" || h.acked != 40 || losses != 3 {
				t.Errorf("%s: %d losses, %d confirmed, shown were\n%s", path, losses, h.acked, shown.String())
			}
		})
	}
}
