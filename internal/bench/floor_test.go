package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// floorPrograms are the programs that the test binary runs if its first argument is one of these names. See TestMain.
var floorPrograms = map[string]func() error{
	"floor": func() error { return ServeFloor("http://127.0.0.1:0", os.Stdin, os.Stdout) },
	// A floor that ends without an error, but verifies no signature.
	"floor without verification": func() error {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"ok":true}`)
		}))
		defer server.Close()
		fmt.Println(floorLine + server.URL)
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	},
	"silent floor": func() error { return nil },
	"other server": func() error {
		fmt.Println("hello")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	},
	// A floor that works, but returns an error when it is told to end.
	"floor that ends with an error": func() error {
		if err := ServeFloor("http://127.0.0.1:0", os.Stdin, os.Stdout); err != nil {
			return err
		}
		return fmt.Errorf("out of order")
	},
}

// withFloor returns options for a run of 60 posts in turns with a floor. kind is a name in floorPrograms.
func withFloor(t *testing.T, kind string) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := small(Post)
	o.Floor = []string{self, kind}
	return o
}

// TestFloorRatio checks that a report contains both ratios, and that the ratio to the floor is the median of the turns'
// ratios.
func TestFloorRatio(t *testing.T) {
	t.Parallel()
	var received atomic.Int64 // posts that reached the relay
	url := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isPost(r) {
				received.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	})
	o := withFloor(t, "floor")
	o.Pretty, o.WarmUp = true, 50*time.Millisecond
	r := bench(t, url, o)
	if !r.Holds() || r.Accepted != 60 || r.RateRatio <= 0 || r.FloorRatio <= 0 || r.Floor == nil {
		t.Fatalf("%+v", r)
	}
	f := r.Floor
	if len(f.Turns) != fewestTurns || f.Accepted < fewestTurns || f.Rate <= 0 || f.RateRatio <= 0 || f.Ack == nil ||
		f.Ack.Count != f.Accepted || f.URL == url || f.PID == 0 || f.PID == os.Getpid() || !f.SameMachine {
		t.Errorf("%+v", f)
	}
	if f.Seconds < r.Seconds {
		t.Errorf("the floor was loaded for %g s, the relay for %g s", f.Seconds, r.Seconds)
	}
	below, above := 0, 0
	for _, turn := range f.Turns {
		if turn.Relay <= 0 || turn.Floor <= 0 || turn.Ratio != turn.Relay/turn.Floor {
			t.Errorf("%+v", turn)
		}
		if turn.Ratio <= r.FloorRatio {
			below++
		}
		if turn.Ratio >= r.FloorRatio {
			above++
		}
	}
	if below < fewestTurns/2 || above < fewestTurns/2 {
		t.Errorf("%g is not the median of %+v", r.FloorRatio, f.Turns)
	}
	if got := received.Load(); got != r.Stored+1 { // one more, because Stored does not count the run's first post
		t.Errorf("the relay got %d posts and stored %d, so it got posts of the floor", got, r.Stored)
	}
	checkForms(t, r)
	checkFloorForms(t, r)
}

func checkFloorForms(t *testing.T, r Report) {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var members struct {
		RateRatio, FloorRatio float64
		Floor                 struct {
			URL         string
			PID         int
			SameMachine bool
			Turns       []struct{ Relay, Floor, Ratio float64 }
		}
	}
	if err := json.Unmarshal(text, &members); err != nil {
		t.Fatal(err)
	}
	if members.RateRatio != r.RateRatio || members.FloorRatio != r.FloorRatio || members.Floor.PID != r.Floor.PID ||
		members.Floor.URL != r.Floor.URL || !members.Floor.SameMachine ||
		len(members.Floor.Turns) != len(r.Floor.Turns) {
		t.Errorf("%s", text)
	}
	var printed strings.Builder
	if err := r.WriteText(&printed); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("%.3f × std = %.3f × floor", r.RateRatio, r.FloorRatio),
		fmt.Sprintf("at %s, process %d on this machine", r.Floor.URL, r.Floor.PID), "8 turns",
	} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is not in\n%s", want, printed.String())
		}
	}
	r.Floor.SameMachine = false // r.Floor belongs to the caller, but the caller does not use it again
	printed.Reset()
	if err := r.WriteText(&printed); err != nil || !strings.Contains(printed.String(), "not on this machine") {
		t.Errorf("%v\n%s", err, printed.String())
	}
	r.Floor.Turns = nil
	printed.Reset()
	if err := r.WriteText(&printed); err != nil ||
		!strings.Contains(printed.String(), "floor       no turn was measured\n") {
		t.Errorf("%v\n%s", err, printed.String())
	}
}

// TestFloorVerifies checks that the floor accepts a valid envelope and refuses every changed one.
func TestFloorVerifies(t *testing.T) {
	t.Parallel()
	to, err := parseTarget("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{MinBody, 730, 100_000} {
		s, err := newStock(t.Context(), to, Options{Senders: 2, Body: size})
		if err != nil {
			t.Fatal(err)
		}
		post := func(body []byte) (int, []byte) {
			w := httptest.NewRecorder()
			answerFloor(w, httptest.NewRequest(http.MethodPost, "/events", bytes.NewReader(body)))
			return w.Code, w.Body.Bytes()
		}
		v := s.values(0, new(values))
		right := s.canonical.fill(nil, v)
		code, receipt := post(right)
		if why := isReceipt(receipt, v[partID]); code != 200 || why != "" {
			t.Errorf("%d bytes: %d %s: %s", size, code, receipt, why)
		}
		if !bytes.HasPrefix(receipt, []byte(`{"ok":true,"id":"msg_`)) {
			t.Errorf("%s does not have the form that isReceipt recognises without decoding", receipt)
		}
		for at := 0; at < len(right); at += 1 + size/1000 {
			wrong := bytes.Clone(right)
			wrong[at] ^= 1
			if code, answer := post(wrong); code != 401 && code != 400 {
				t.Fatalf("changed at byte %d of %s: status %d %s, want 400 or 401", at, right, code, answer)
			}
		}
		for length := 0; length < len(right); length += 1 + size/1000 {
			if code, answer := post(right[:length]); code != 401 && code != 400 {
				t.Fatalf("cut after %d bytes: status %d %s, want 400 or 401", length, code, answer)
			}
		}
		other := s.values(0, new(values))
		other[partSig] = bytes.Repeat([]byte("A"), len(other[partSig]))
		if code, answer := post(s.canonical.fill(nil, other)); code != 401 {
			t.Errorf("a signature of zero bytes: status %d %s, want 401", code, answer)
		}
	}
}

func TestFloorRefusesOtherRequests(t *testing.T) {
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/events", nil),
		httptest.NewRequest(http.MethodPost, "/events", strings.NewReader(strings.Repeat("x", maxFloorBody+1))),
		httptest.NewRequest(http.MethodPost, "/events", io.MultiReader(strings.NewReader("{}"))), // unknown length
		httptest.NewRequest(http.MethodPost, "/events", strings.NewReader("{}")),
	} {
		w := httptest.NewRecorder()
		answerFloor(w, r)
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s of %d bytes: status %d, want 400", r.Method, r.ContentLength, w.Code)
		}
	}
}

// TestUnusableFloors checks that a run reports an error if the floor does not verify signatures, does not start or ends
// with an error, and if the other options do not allow a floor.
func TestUnusableFloors(t *testing.T) {
	t.Parallel()
	url := start(t, nil)
	for kind, want := range map[string]string{
		"floor without verification": "status 200, not 401",
		"silent floor":               "where it listens",
		"other server":               `"hello\n"`,
	} {
		if _, err := Run(t.Context(), url, withFloor(t, kind)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	o := withFloor(t, "floor")
	o.Floor = []string{filepath.Join(t.TempDir(), "nothing")}
	if _, err := Run(t.Context(), url, o); err == nil || !strings.Contains(err.Error(), "floor does not start") {
		t.Error(err)
	}
	r := bench(t, url, withFloor(t, "floor that ends with an error"))
	var printed strings.Builder
	if err := r.WriteText(&printed); err != nil || r.Holds() || !strings.Contains(printed.String(), "out of order") {
		t.Errorf("%v %s", err, printed.String())
	}
	for _, o := range []Options{{Mode: Deliver}, {Mode: Mixed}, {Mode: CatchUp}, {Rate: 5}} {
		o.Floor = []string{"floor"}
		if err := o.Check(url); err == nil || !strings.Contains(err.Error(), "--floor") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := ServeFloor("http://192.0.2.1:0", strings.NewReader(""), io.Discard); err == nil {
		t.Error("the floor listens on an address that is not loopback")
	}
}

// TestFloorInterrupted checks that an interrupted run with a floor ends soon and reports the turns that were measured.
func TestFloorInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	var posts atomic.Int64
	url := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r)
			if isPost(r) && posts.Add(1) == 50 {
				interrupt()
			}
		})
	})
	r, err := Run(ctx, url, withFloor(t, "floor"))
	if err != nil || !r.Interrupted || !r.Holds() || len(r.Floor.Turns) == 0 || len(r.Floor.Turns) >= fewestTurns {
		t.Errorf("%v %+v", err, r)
	}
}

// TestTurns checks how a run is split into turns: into at least eight turns if there are enough posts, and with no turn
// longer than one and a half seconds.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		duration time.Duration
		count    int
		turns    int
	}{
		{10 * time.Second, maxPosts, 10},
		{4 * time.Second, maxPosts, 8},
		{time.Hour, 60, 8},
		{time.Hour, 40_000, 8},
		{time.Hour, 3, 3},
		{10*time.Second + time.Millisecond, maxPosts, 10},
		{time.Second, maxPosts, 8},
		{8, maxPosts, 8},
		{time.Hour, 1, 1},
	} {
		f := &floor{client: &run{}}
		f.begin(t.Context(), c.duration, c.count)()
		turns, duration, count, longest := 0, c.duration, c.count, time.Duration(0)
		for duration > 0 && count > 0 {
			d, n := f.nextTurn(duration, count)
			if c.count == maxPosts {
				duration -= d
				longest = max(longest, d)
			} else {
				count -= n
			}
			if turns++; n < 1 || d < 1 {
				t.Fatalf("%+v: a turn of %v, %d posts", c, d, n)
			}
		}
		if turns != c.turns || longest > longestTurn*3/2 {
			t.Errorf("%+v: %d turns, the longest of %v", c, turns, longest)
		}
	}
	var none *floor
	if d, n := none.nextTurn(time.Minute, 7); d != time.Minute || n != 7 {
		t.Errorf("without a floor: %v, %d", d, n)
	}
}

// TestEndedRoundTakesNoNumber checks that a round takes no number after its time is over. Otherwise the number would be
// lost, and a run of many rounds would post fewer envelopes than its count.
func TestEndedRoundTakesNoNumber(t *testing.T) {
	r := &run{}
	p := round{next: new(atomic.Int64), limit: 10, end: time.Now().Add(-time.Second)}
	r.post(t.Context(), r.connect(t.Context(), 16), &p, newStats())
	if n := p.next.Load(); n != 0 {
		t.Errorf("the ended round took %d numbers, want 0", n)
	}
}
