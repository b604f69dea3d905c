package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// curlCommand is as much of curl as the scripts need: it prints the status and the body.
func curlCommand(ts *testscript.TestScript, neg bool, args []string) {
	method, body := http.MethodGet, []byte(nil)
	if len(args) == 3 && args[0] == "-d" {
		method, body, args = http.MethodPost, []byte(ts.ReadFile(args[1])), args[2:]
	}
	if len(args) != 1 {
		ts.Fatalf("usage: curl [-d FILE] PATH")
	}
	request, err := http.NewRequest(method, ts.Getenv("AGORA_RELAY")+args[0], bytes.NewReader(body))
	ts.Check(err)
	client := http.Client{Timeout: time.Minute}
	response, err := client.Do(request)
	ts.Check(err)
	text, err := io.ReadAll(response.Body)
	ts.Check(err)
	ts.Check(response.Body.Close())
	if ok := response.StatusCode == http.StatusOK; ok == neg {
		ts.Fatalf("status %d: %s", response.StatusCode, text)
	}
	fmt.Fprintf(ts.Stdout(), "%d %s", response.StatusCode, text)
}
