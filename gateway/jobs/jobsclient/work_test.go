package jobsclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

// workshop is an agent that works.
type workshop struct {
	*fakeGateway
	cancel context.CancelFunc
	ended  chan error

	mu   sync.Mutex
	done []string // the jobs that the handler got
	busy int
	most int // how many handlers ran at a time
}

// openWorkshop lets an agent work. Its handler takes a minute. What the id of a job contains decides what comes of it.
func openWorkshop(t *testing.T, parallel int) *workshop {
	w := &workshop{fakeGateway: newFakeGateway(), ended: make(chan error, 1)}
	c := w.client(gatewayURL)
	c.Key = cj
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	go func() { w.ended <- c.Work(ctx, WorkOptions{AgentID: agentID, Handle: w.handle, Parallel: parallel}) }()
	return w
}

func (w *workshop) handle(ctx context.Context, j Job) (Result, error) {
	w.mu.Lock()
	w.done = append(w.done, j.ID)
	w.busy++
	w.most = max(w.most, w.busy)
	w.mu.Unlock()
	err := exchange.Sleep(ctx, time.Minute)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	switch {
	case err != nil && !strings.Contains(j.ID, "stubborn"):
		return Result{}, err
	case strings.Contains(j.ID, "error"):
		return Result{Output: json.RawMessage(`{"half":1}`), Status: Success}, errors.New("no wind")
	case strings.Contains(j.ID, "failure"):
		return Result{Status: Failure, ErrorMessage: "no way", ErrorCode: "MINE"}, nil
	case strings.Contains(j.ID, "broken"):
		return Result{Output: json.RawMessage("{")}, nil
	case strings.Contains(j.ID, "empty"):
		return Result{}, nil
	}
	return Result{Output: j.Input}, nil
}

func (w *workshop) end(t *testing.T) {
	t.Helper()
	w.cancel()
	if err := <-w.ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestWork checks that an agent sends heartbeats, does each job once, one at a time, and reports what came of it.
func TestWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWorkshop(t, 0)
		time.Sleep(10 * time.Minute)
		w.offer("fine", "fine", "error", "failure", "broken", "empty")
		time.Sleep(2 * time.Minute)
		w.offer("fine", "empty", "late") // handed out again
		time.Sleep(8 * time.Minute)
		w.end(t)
		for id, want := range map[string]string{
			"fine":    `{"job_id":"fine","agent_id":"` + agentID + `","status":"SUCCESS","output_data":{"n":1},"execution_time_ms":60000}`,
			"late":    `{"job_id":"late","agent_id":"` + agentID + `","status":"SUCCESS","output_data":{"n":1},"execution_time_ms":60000}`,
			"empty":   `{"job_id":"empty","agent_id":"` + agentID + `","status":"SUCCESS","output_data":{},"execution_time_ms":60000}`,
			"error":   `{"job_id":"error","agent_id":"` + agentID + `","status":"FAILURE","execution_time_ms":60000,"error_message":"no wind","error_code":"EXECUTION_ERROR"}`,
			"failure": `{"job_id":"failure","agent_id":"` + agentID + `","status":"FAILURE","execution_time_ms":60000,"error_message":"no way","error_code":"MINE"}`,
		} {
			if got := w.jobs[id].result; got != want {
				t.Errorf("%s: %s", id, got)
			}
		}
		if r, _ := w.result("broken"); r.Status != Failure || !strings.Contains(r.ErrorMessage, "the agent's result was refused: ") {
			t.Errorf("%+v", r)
		}
		slices.Sort(w.done)
		if want := []string{"broken", "empty", "error", "failure", "fine", "late"}; !slices.Equal(w.done, want) || w.most != 1 {
			t.Errorf("did %q, %d at a time", w.done, w.most)
		}
		for i := range w.beats[1:] {
			if gap := w.beats[i+1].Sub(w.beats[i]); gap > 45*time.Second || gap < 20*time.Second {
				t.Errorf("a heartbeat after %v", gap)
			}
		}
		if took := 20 * time.Minute; len(w.beats) < int(took/heartbeatPause) {
			t.Errorf("only %d heartbeats", len(w.beats))
		}
		pulls := 0
		for _, a := range w.asked {
			if a.method == http.MethodGet {
				pulls++
			}
		}
		if pulls > 50 {
			t.Errorf("pulled %d times in 20 minutes", pulls)
		}
	})
}

// TestWorkInParallel checks how many jobs are done at a time.
func TestWorkInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWorkshop(t, 3)
		var ids []string
		for i := range 30 {
			ids = append(ids, fmt.Sprint(i))
		}
		w.offer(ids...)
		time.Sleep(10*time.Minute + time.Second)
		w.end(t)
		if w.most != 3 || len(w.done) != 30 {
			t.Errorf("did %d jobs, %d at a time", len(w.done), w.most)
		}
		for _, id := range ids {
			if r, reports := w.result(id); r.Status != Success || reports != 1 {
				t.Errorf("job %s: %+v, %d reports", id, r, reports)
			}
		}
	})
}

// TestWorkThroughRestarts checks that the agent continues after the relay was away, while it waits and while it reports,
// and that it does no job twice.
func TestWorkThroughRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWorkshop(t, 0)
		w.fail(slices.Repeat([]fault{unsent, refuse(503), lose}, 20)...)
		w.offer("first")
		time.Sleep(time.Hour)
		w.offer("first", "second") // an answer with the first may have been lost
		time.Sleep(90 * time.Second)
		w.fail(slices.Repeat([]fault{lose, unsent}, 40)...)
		time.Sleep(time.Hour)
		w.offer("second")
		time.Sleep(time.Minute)
		w.end(t)
		for _, id := range []string{"first", "second"} {
			if r, _ := w.result(id); r.Status != Success {
				t.Errorf("%s: %+v", id, r)
			}
		}
		slices.Sort(w.done)
		if want := []string{"first", "second"}; !slices.Equal(w.done, want) {
			t.Errorf("did %q", w.done)
		}
	})
}

// TestWorkIsRefused checks results that the gateway does not take, and agents that may not work.
func TestWorkIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWorkshop(t, 0)
		w.refuse = func(r Result) int {
			return map[bool]int{r.JobID == "large" && r.Status == Success: 413, r.JobID == "over": 409,
				r.JobID == "failure" && r.ErrorCode != ExecutionError: 422, r.JobID == "never": 422}[true]
		}
		w.offer("large", "over", "failure", "never")
		time.Sleep(10 * time.Minute)
		if r, reports := w.result("large"); r.Status != Failure || r.Output != nil || reports != 2 {
			t.Errorf("%+v after %d reports", r, reports)
		}
		if r, reports := w.result("failure"); r.Status != Failure || !strings.Contains(r.ErrorMessage, "body.output_data: too large") || reports != 2 {
			t.Errorf("%+v after %d reports", r, reports)
		}
		if r, reports := w.result("never"); r.Status != "" || reports != 2 {
			t.Errorf("%+v after %d reports", r, reports)
		}
		if r, reports := w.result("over"); r.Status != "" || reports != 1 {
			t.Errorf("%+v after %d reports", r, reports)
		}
		w.fakeGateway.mu.Lock()
		w.answers["GET /agents/"+agentID+"/jobs?wait=50"] = `403 {"detail":"not yours"}`
		w.fakeGateway.mu.Unlock()
		if err := <-w.ended; err == nil || !strings.Contains(err.Error(), "403: not yours") {
			t.Error(err)
		}
		w.cancel()
	})
}

// TestWorkSlowly checks that a gateway that does not wait is not asked in a hot loop.
func TestWorkSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWorkshop(t, 0)
		w.fakeGateway.mu.Lock()
		w.answers["GET /agents/"+agentID+"/jobs?wait=50"] = `200 {"jobs":[]}`
		w.fakeGateway.mu.Unlock()
		time.Sleep(10 * time.Minute)
		w.end(t)
		if len(w.asked) > 60 {
			t.Errorf("%d requests in 10 minutes", len(w.asked))
		}
	})
}

// TestWorkEnds checks that a job which is done when the agent ends is still reported, and one that is not done is not.
func TestWorkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWorkshop(t, 2)
		w.offer("stubborn", "other")
		time.Sleep(30 * time.Second)
		w.end(t)
		if r, _ := w.result("stubborn"); r.Status != Success {
			t.Errorf("%+v", r)
		}
		if r, reports := w.result("other"); r.Status != "" || reports != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestRememberedResults checks that a result is reported again if the gateway hands out its job again, and that the agent
// does not remember results without end.
func TestRememberedResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWorkshop(t, 0)
		w.offer("first")
		time.Sleep(2 * time.Minute)
		w.fakeGateway.mu.Lock()
		w.jobs["first"].result = "" // as after a restored backup
		w.fakeGateway.mu.Unlock()
		w.offer("first")
		time.Sleep(2 * time.Minute)
		w.end(t)
		if r, reports := w.result("first"); r.Status != Success || reports != 2 || len(w.done) != 1 {
			t.Errorf("%+v, %d reports, did %q", r, reports, w.done)
		}
	})
	known := &worker{known: map[string]*Result{}}
	for i := range 3 * remembered {
		known.remember(Result{JobID: fmt.Sprint(i)})
	}
	if len(known.known) != remembered || len(known.reported) != remembered || known.known[fmt.Sprint(3*remembered-1)] == nil {
		t.Errorf("remembers %d and %d results", len(known.known), len(known.reported))
	}
}
