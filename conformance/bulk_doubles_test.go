package conformance_test

import (
	"bytes"
	"io"
	"net/http"
	"slices"
)

// Middlewares with faults in bulk requests.

func isBulk(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == "/events/bulk" }

// changesLines is a middleware that changes the lines of bulk requests.
func changesLines(change func(lines [][]byte) [][]byte) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isBulk(r) {
				lines := slices.Collect(bytes.SplitAfterSeq(readBody(r), []byte("\n")))
				r.Body = io.NopCloser(bytes.NewReader(bytes.Join(change(lines), nil)))
			}
			h.ServeHTTP(w, r)
		})
	}
}

// changesResults is a middleware that changes the results of bulk requests.
func changesResults(change func(results []any) []any) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isBulk(r) {
				h.ServeHTTP(w, r)
				return
			}
			answer := recorded(h, r)
			page := decode(answer.Body.Bytes())
			if results, ok := page["results"].([]any); ok {
				page["results"] = change(results)
			}
			send(w, answer, encode(page))
		})
	}
}

// onlyReceipts drops the results of refused lines.
func onlyReceipts(results []any) []any {
	return slices.DeleteFunc(results, func(r any) bool { return r.(object)["error"] != nil })
}

// stopsAtRefusal drops the results after the first refusal.
func stopsAtRefusal(results []any) []any {
	for i, r := range results {
		if r.(object)["error"] != nil {
			return results[:i+1]
		}
	}
	return results
}

// reversed reverses whole lines.
func reversed(lines [][]byte) [][]byte {
	n := len(lines)
	if n > 1 && len(lines[n-1]) == 0 {
		slices.Reverse(lines[:n-1])
	}
	return lines
}

// wholeLines drops a last line without LF.
func wholeLines(lines [][]byte) [][]byte { return lines[:len(lines)-1] }

// withoutEmpty drops empty lines.
func withoutEmpty(lines [][]byte) [][]byte {
	return slices.DeleteFunc(lines, func(l []byte) bool { return string(l) == "\n" })
}

// ignoresQueries is a middleware that ignores the parameters of bulk requests.
func ignoresQueries(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isBulk(r) {
			r.URL.RawQuery = ""
		}
		h.ServeHTTP(w, r)
	})
}
