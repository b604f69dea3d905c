package main

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/ptytest"
)

// TestAskDropsTypedAhead types an answer before the offers are shown, in a pseudo-terminal. It must not accept a paid
// offer. The answer to the question counts.
func TestAskDropsTypedAhead(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice, bob := newAsker(t, s.relay), newRival(t, s.relay)
	requestID := openThread(t, alice, "t1")
	bob.post("t1", alice.key.DID(), envelope.Offer{RequestID: requestID, Price: usd(0.25)})

	person, program := ptytest.Open(t)
	if _, err := io.WriteString(person, "1\n1\n1\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "agora", "ask", "--key", alice.file, "--relay", s.relay, "--thread", "t1", "--choose", quickly)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	shown := bufio.NewReader(person)
	const question = "Accept which offer? [1 = 0.25 USD; Enter to wait for more, q to quit] "
	before := readUntil(t, shown, question)
	for _, answer := range []string{"9", "q"} {
		if _, err := io.WriteString(person, answer+"\n"); err != nil {
			t.Fatal(err)
		}
		if answer == "9" {
			before += readUntil(t, shown, question)
		}
	}
	rest, _ := io.ReadAll(shown) // it ends with EIO, when the program has closed its side
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != trade.OutcomeNoneGood.Code || !strings.Contains(string(rest), "you have chosen no offer") {
		t.Errorf("ended with %v:\n%s%s", err, before, rest)
	}
	if accepts := alice.sent("t1", envelope.TypeAccept); len(accepts) != 0 {
		t.Errorf("what was typed before the question has accepted %v:\n%s%s", accepts, before, rest)
	}
}

// readUntil reads until what was read ends with the text.
func readUntil(t *testing.T, in *bufio.Reader, text string) string {
	t.Helper()
	var read strings.Builder
	for !strings.HasSuffix(read.String(), text) {
		b, err := in.ReadByte()
		if err != nil {
			t.Fatalf("%v, after\n%s", err, read.String())
		}
		read.WriteByte(b)
	}
	return read.String()
}
