package admin

import (
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// maxProfile is how long a profile or a trace may take.
const maxProfile = 5 * time.Minute

// profile is the handler of GET /profile/{name}. name is cpu, trace, or a profile of runtime/pprof such as heap. The
// handlers of net/http/pprof are not used, because that package adds itself to the default mux.
func (a *api) profile(w http.ResponseWriter, r *http.Request) {
	a.audit(r, new(notes), nil)
	seconds := 30
	if text := r.URL.Query().Get("seconds"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || time.Duration(n)*time.Second > maxProfile {
			writeJSON(w, http.StatusBadRequest, Refusal{string(envelope.CodeInvalidRequest), "seconds must be from 1 to 300"})
			return
		}
		seconds = n
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * maxProfile)) // a recorder has no deadlines
	w.Header().Set("Content-Type", "application/octet-stream")
	var err error
	switch name := r.PathValue("name"); name {
	case "cpu":
		if err = pprof.StartCPUProfile(w); err == nil {
			wait(r, seconds)
			pprof.StopCPUProfile()
		}
	case "trace":
		if err = trace.Start(w); err == nil {
			wait(r, seconds)
			trace.Stop()
		}
	default:
		p := pprof.Lookup(name)
		if p == nil {
			writeJSON(w, http.StatusNotFound, Refusal{string(envelope.CodeNotFound),
				"there is no such profile; use cpu, trace, heap, allocs, goroutine, threadcreate, block or mutex"})
			return
		}
		err = p.WriteTo(w, 0)
	}
	if err != nil { // another profile is being taken, or the client has left
		writeJSON(w, http.StatusServiceUnavailable, Refusal{string(envelope.CodeUnavailable), err.Error()})
	}
}

// wait waits until the time is over or the client has left.
func wait(r *http.Request, seconds int) {
	select {
	case <-time.After(time.Duration(seconds) * time.Second):
	case <-r.Context().Done():
	}
}
