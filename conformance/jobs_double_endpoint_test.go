package conformance_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// How a double of a registry calls the endpoints of agents and the callbacks of hirers.

// post sends JSON, and returns the status and the body of the answer.
func (d *jobsDouble) post(target, id string, text []byte) (status int, body []byte) {
	r, err := http.NewRequestWithContext(d.ctx, http.MethodPost, target, bytes.NewReader(text))
	if err != nil {
		return 0, nil
	}
	r.Header.Set("Content-Type", "application/json")
	if !d.has("sends no Idempotency-Key") {
		r.Header.Set("Idempotency-Key", id)
	}
	resp, err := d.client.Do(r)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, body
}

// send sends a job to the endpoint of its agent until that works.
func (d *jobsDouble) send(j *doubleJob) {
	if d.has("has one lane for an agent") {
		j.agent.lane <- struct{}{}
		defer func() { <-j.agent.lane }()
	}
	target, appended := j.agent.endpoint, false
	if !strings.HasSuffix(target, "/jobs") {
		target, appended = target+"/jobs", true
	}
	for attempt := 1; ; {
		body := object{}
		for name, value := range j.request {
			body[name] = value
		}
		if d.has("sends the hirer's callback_url") {
			body["hirer"] = j.request["callback_url"]
		}
		token := newKey("tok_")
		body["callback_url"] = d.url + "/cb/" + token
		d.mu.Lock()
		d.callbacks[token] = j
		d.mu.Unlock()
		status, text := d.post(target, j.id, encode(body))
		if (status == 404 || status == 405) && !appended && !d.has("appends /jobs only once") {
			target, appended = target+"/jobs", true
			continue
		}
		retried := status == 0 || status == 408 || status == 425 || status == 429 || status >= 500
		if !retried || d.has("gives up at the first failure") {
			d.sent(j, status, text)
			return
		}
		timer := time.NewTimer(time.Duration(float64(time.Second<<attempt) * (0.8 + 0.4*rand.Float64())))
		attempt++
		select {
		case <-timer.C:
		case <-d.ctx.Done():
			timer.Stop()
			return
		}
	}
}

// sent handles the answer of an endpoint.
func (d *jobsDouble) sent(j *doubleJob, status int, text []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j.dispatched = true
	if j.status != "PENDING" {
		return
	}
	var result object
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	good := status >= 200 && status < 300 && decoder.Decode(&result) == nil && result["job_id"] == j.id
	switch {
	case good && result["status"] == "PENDING" && !d.has("takes PENDING as an end"):
	case good:
		d.end(j, result, formWithout(result, "timestamp_utc"))
	case status >= 200 && status < 300 && d.has("takes 2xx as a success"):
		d.end(j, object{"status": "SUCCESS", "output_data": object{}}, "")
	default:
		d.end(j, d.failed(j, "EXECUTION_ERROR"), "")
	}
}
