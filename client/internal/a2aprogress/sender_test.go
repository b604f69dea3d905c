package a2aprogress

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agora-relay/agora/internal/a2a"
)

// idleSender returns a sender without a goroutine.
func idleSender() *Sender {
	return &Sender{done: make(chan struct{}), news: make(chan struct{}, 1), room: make(chan struct{})}
}

// textEvent returns a chunk with texts.
func textEvent(id string, more bool, texts ...string) a2a.Progress {
	u := &a2a.ArtifactUpdate{Artifact: a2a.Artifact{ArtifactID: id}, Append: more}
	for _, text := range texts {
		u.Artifact.Parts = append(u.Artifact.Parts, a2a.TextPart(text))
	}
	return a2a.Progress{Artifact: u}
}

// what waits for a relay, and what is kept of a turn, is bounded, also if the relay takes everything or nothing.
func TestA2ASenderIsBounded(t *testing.T) {
	s := idleSender()
	text, ended, cancel := strings.Repeat("x", 50<<10), context.Background(), context.CancelFunc(nil)
	ended, cancel = context.WithCancel(ended)
	cancel()
	var err error
	sent := 0
	for ; err == nil && sent < 100; sent++ {
		err = s.Send(ended, textEvent("a", sent > 0, text), true)
	}
	if !errors.Is(err, context.Canceled) || sent != 5 || s.size > maxBytes {
		t.Errorf("%d events wait, with %d bytes: %v", sent, s.size, err)
	}
	for err = nil; err == nil && sent < 100; sent++ {
		s.next()
		err = s.Send(t.Context(), textEvent("a", true, text), true)
	}
	if err == nil || !strings.Contains(err.Error(), "4 MiB") || sent > (a2a.MaxTask/len(text))+2 {
		t.Errorf("after %d events: %v", sent, err)
	}
	if err := s.Send(t.Context(), textEvent("b", false, strings.Repeat("x", maxBytes)), true); err == nil {
		t.Error("a part that fits into no request was taken")
	}
}

// after a request that may have been lost, all artifacts begin again, whole, in pieces that fit. Chunks that wait are
// joined, and the parts of the caller do not change. A replaced artifact counts once.
func TestA2ASenderBeginsAgain(t *testing.T) {
	s := idleSender()
	status := a2a.Progress{Status: &a2a.ProgressStatus{State: a2a.Working}}
	parts := append(make([]a2a.Part, 0, 10), a2a.TextPart("1"))
	first := textEvent("a", false)
	first.Artifact.Artifact.Parts = parts
	var large []string
	for range 10 {
		large = append(large, strings.Repeat("x", maxBytes/4))
	}
	for _, e := range []a2a.Progress{textEvent("a", false, large...), first, textEvent("a", true, "2"), textEvent("a", true, "3"), status} {
		s.size = 0 // so that nothing waits
		if err := s.Send(t.Context(), e, true); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.waiting); n < 3 || len(s.waiting[n-2].Artifact.Artifact.Parts) != 3 || s.waiting[n-2].Artifact.Append {
		t.Errorf("%d events wait", n)
	}
	if spare := parts[:cap(parts)]; spare[1].Text != nil {
		t.Error("the parts of the caller have changed")
	}
	s.size = 0
	if err := s.Send(t.Context(), textEvent("b", false, large...), false); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.waiting {
		if e.size > maxBytes {
			t.Errorf("a piece has %d bytes", e.size)
		}
	}
	batch := s.waiting[:1]
	s.waiting = s.waiting[1:]
	s.again(batch)
	whole, pieces := idleSender(), ""
	for _, e := range s.waiting {
		if e.Status != nil {
			pieces += "status "
			continue
		}
		pieces += fmt.Sprintf("%s%d%v ", e.Artifact.Artifact.ArtifactID, len(e.Artifact.Artifact.Parts), e.Artifact.Append)
		if err := whole.keep(*e.Artifact, e.size); err != nil {
			t.Fatal(err)
		}
	}
	all := whole.Sent()
	if !strings.HasPrefix(pieces, "a3false b1false b1true ") || !strings.HasSuffix(pieces, "status ") || len(all) != 2 ||
		len(all[0].Parts) != 3 || len(all[1].Parts) != 10 {
		t.Errorf("sent again: %s", pieces)
	}
}
