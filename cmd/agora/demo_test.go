package main

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
)

// startDemo runs agora serve --demo with further flags. It returns what serve prints, once it listens.
func startDemo(t *testing.T, data string, flags ...string) (printed *logText, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	printed, ended := new(logText), make(chan int, 1)
	go func() {
		ended <- run(cli.Environment{Ctx: ctx, Stdout: printed, Stderr: printed},
			append([]string{"serve", "--demo", "--addr", "127.0.0.1:0", "--data", data}, flags...))
	}()
	printed.await(t, `"msg":"listening"`)
	return printed, func() {
		t.Helper()
		cancel()
		if code := <-ended; code != cli.ExitOK || strings.Contains(printed.String(), `"level":"ERROR"`) {
			t.Errorf("agora serve --demo ended with %d:\n%s", code, printed.String())
		}
	}
}

// announced waits until both demonstration agents have posted their MANIFESTs this many times, and returns their DIDs,
// sorted.
func announced(t *testing.T, url string, times int) (dids []string) {
	t.Helper()
	c, err := client.New(url, nil, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	err = c.Follow(t.Context(), client.FollowOptions{Filter: client.Filter{Type: "MANIFEST"}, FromOldest: true},
		func(_ context.Context, e *envelope.Envelope) error {
			if dids = append(dids, string(e.Sender.ID)); len(dids) == times*2 {
				return enough
			}
			return nil
		})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	slices.Sort(dids)
	return slices.Compact(dids)
}

// TestDemo checks agora serve --demo: what it prints is enough to hire both agents, they are the same ones after a
// restart, and it ends cleanly, also with signed reads.
func TestDemo(t *testing.T) {
	for _, reads := range []string{"open", "parties"} {
		data := filepath.Join(t.TempDir(), "data")
		t.Chdir(t.TempDir())
		for start := range 2 {
			printed, stop := startDemo(t, data, "--reads", reads)
			url := regexp.MustCompile(`(?m)^listening on (\S+)$`).FindStringSubmatch(printed.String())[1]
			if dids := announced(t, url, start+1); len(dids) != 2 {
				t.Errorf("after %d starts, %q have announced themselves", start+1, dids)
			}
			var outputs []string
			for _, line := range regexp.MustCompile(`(?m)^  agora .*$`).FindAllString(printed.String(), -1) {
				words, err := cli.SplitWords(line, true)
				if err != nil {
					t.Fatal(err)
				}
				if words[1] == "keygen" && start > 0 {
					continue
				}
				if words[1] == "ask" {
					words = append(words, "--best", "first") // another offer would not come
				}
				code, output := runAgora(t.Context(), words[1:]...)
				if code != cli.ExitOK {
					t.Errorf("%s ends with %d:\n%s", line, code, output)
				}
				lines := strings.Split(strings.TrimSpace(output), "\n")
				outputs = append(outputs, lines[len(lines)-1])
			}
			if want := []string{`{"text":"hello"}`, `{"characters":9,"lines":1,"words":2}`}; !slices.Equal(outputs[len(outputs)-2:], want) {
				t.Errorf("the results are %q, want %q", outputs, want)
			}
			stop()
		}
	}
}

// TestDemoBehindProxy checks that the agents work if the relay's URL leads elsewhere, to a proxy with TLS.
func TestDemoBehindProxy(t *testing.T) {
	printed, stop := startDemo(t, filepath.Join(t.TempDir(), "data"), "--public-url", "https://relay.example", "--trusted-proxy", "127.0.0.1")
	defer stop()
	url := regexp.MustCompile(`(?m)^listening on (\S+)$`).FindStringSubmatch(printed.String())[1]
	announced(t, url, 1)
	if !strings.Contains(printed.String(), "--relay https://relay.example") {
		t.Errorf("the printed commands do not name the relay:\n%s", printed.String())
	}
}
