package main

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/clidoc"
	"github.com/agora-relay/agora/internal/profile"
)

// TestSuggestions checks the words that a shell offers, and that a relay that does not answer costs little time.
func TestSuggestions(t *testing.T) {
	folder := atHome(t)
	origin := startRelay(t, time.Now)
	t.Setenv("AGORA_RELAY", origin)
	code, stdout, stderr := atTerminal(t, "", "init", "--profile", "worker", "--name", "worker", "--relay", origin, "--key", filepath.Join(t.TempDir(), "w.key"),
		"--intent", "translation.en_zh", "--price", "1", "--announce")
	if code != cli.ExitOK {
		t.Fatalf("%d %s%s", code, stdout, stderr)
	}
	me := keyFile(t, newKey(t))
	if code, _, stderr := atTerminal(t, "", "send", "request", "--key", me, "--thread", "my-thread", "--intent", "echo"); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	book, err := profile.NewNames(folder).Read()
	if err != nil {
		t.Fatal(err)
	}
	worker, _ := book.DID("worker")
	complete := func(line string) string {
		t.Helper()
		code, stdout, stderr := atTerminal(t, "", append([]string{"complete", "--"}, strings.Split(line, " ")...)...)
		if code != cli.ExitOK || stderr != "" {
			t.Errorf("complete %q: %d, %q", line, code, stderr)
		}
		return stdout
	}
	for line, want := range map[string]string{
		"help al":                                 "all\tList all commands.\n",
		"follow --profile ":                       "worker\t" + origin + "\n",
		"follow --sender w":                       "worker\t" + string(worker) + "\n",
		"name --remove ":                          "worker\t" + string(worker) + "\n",
		"send request --to did:key:z6Mk":          string(worker) + "\t\"worker\" translation.en_zh\n",
		"send request --key " + me + " --intent ": "translation.en_zh\t\"worker\"\n",
		"thread --key " + me + " ":                "my-thread\techo 0s ago\n",
		"send offer --key=" + me + " --thread=my": "--thread=my-thread\techo 0s ago\n",
		"thread ":                   "", // no key
		"thread --key nothing.key ": "",
		"agents --relay x ":         "worker\t" + string(worker) + "\n",
		"send request --title ":     "",
	} {
		got := ""
		for range 50 { // a relay on a busy machine may not answer in time; its last answer is kept, so a later call succeeds
			if got = regexp.MustCompile(`\b[0-9]+s ago`).ReplaceAllString(complete(line), "0s ago"); got == want {
				break
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	// A relay that hangs costs little time. Its last answer counts for a day.
	hanging, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts the connections
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close()
	url := "http://" + hanging.Addr().String()
	key, err := didkey.Load(me)
	if err != nil {
		t.Fatal(err)
	}
	file := cacheFile(url, string(key.DID()), "thread")
	for _, c := range []struct {
		known []clidoc.Candidate
		age   time.Duration
		want  string
	}{
		{nil, 0, ""}, {[]clidoc.Candidate{{Word: "old"}}, time.Second, "old\t\n"}, {[]clidoc.Candidate{{Word: "old"}}, time.Hour, "old\t\n"},
		{[]clidoc.Candidate{{Word: "old"}}, 25 * time.Hour, ""}, {[]clidoc.Candidate{{Word: hostile, Help: hostile}}, time.Hour, ""},
	} {
		if c.known != nil {
			saveKnown(file, c.known)
			if err := os.Chtimes(file, time.Time{}, time.Now().Add(-c.age)); err != nil {
				t.Fatal(err)
			}
		}
		got, took := "", time.Hour
		for attempt := 0; attempt < 5 && took > 5*time.Second; attempt++ { // the machine may stand still meanwhile
			began := time.Now()
			got = complete("thread --key " + me + " --relay " + url + " ")
			took = time.Since(began)
		}
		if c.known != nil && c.known[0].Word == hostile {
			if found := foundIn(got); len(found) > 0 {
				t.Errorf("an answer with %v: %q", found, got)
			}
			continue
		}
		if got != c.want || took > 5*time.Second {
			t.Errorf("after %v: %q, want %q; it took %v", c.age, got, c.want, took)
		}
	}
}
