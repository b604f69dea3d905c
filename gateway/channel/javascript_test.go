//go:build javascript

package channel_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
)

// C-15: the four tools work through the official MCP client for JavaScript. make js runs this test.
func TestJavaScriptClient(t *testing.T) {
	f := start(t)
	got := make(chan delivery, 1)
	agent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var d delivery
		if err := json.NewDecoder(r.Body).Decode(&d); err != nil {
			t.Error(err)
		}
		got <- d
	}))
	defer agent.Close()
	r := f.channel("ops")
	alice := r.member("alice")
	r.connect("bot", agent.URL)
	r.say(alice, "hello")
	d := <-got
	// The URL in the delivery is the public one, which this test cannot reach.
	config := strings.Replace(string(d.MCP), "https://relay.example", f.URL, 1)
	out, err := exec.Command("node", "../../sdk/js/test/mcpclient.mjs", config).Output()
	if err != nil {
		exit, _ := err.(*exec.ExitError)
		t.Fatalf("%v: %s", err, exit.Stderr)
	}
	var answers struct {
		Tools            []string
		Sent, Status     object
		Refused          struct{ Error string }
		Messages, Roster object
	}
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if fmt.Sprint(answers.Tools) != "[get_messages get_roster send_message set_status]" || answers.Sent["seq"] != 2. ||
		answers.Status["ok"] != true || !strings.Contains(answers.Refused.Error, "1 to 32768") ||
		!strings.Contains(fmt.Sprint(answers.Messages), "content:Hello from JavaScript") ||
		answers.Messages["hasMore"] != true || !strings.Contains(fmt.Sprint(answers.Roster), "status:testing") {
		t.Errorf("the client got %s", out)
	}
}
