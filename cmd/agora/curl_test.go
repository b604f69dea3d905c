package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// curlCommand has the features of curl that the scripts need. It prints the status and the body.
func curlCommand(ts *testscript.TestScript, neg bool, args []string) {
	method, body, header := http.MethodGet, []byte(nil), http.Header{}
	for len(args) > 2 && args[0] == "-H" {
		name, value, _ := strings.Cut(args[1], ": ")
		header.Add(name, value)
		args = args[2:]
	}
	if len(args) == 3 && args[0] == "-d" {
		method, body, args = http.MethodPost, []byte(ts.ReadFile(args[1])), args[2:]
	}
	if len(args) != 1 {
		ts.Fatalf("usage: curl [-H HEADER]... [-d FILE] PATH|URL")
	}
	url := args[0]
	if strings.HasPrefix(url, "/") {
		url = ts.Getenv("AGORA_RELAY") + url
	}
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	ts.Check(err)
	request.Header = header
	request.Host = header.Get("Host")
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
