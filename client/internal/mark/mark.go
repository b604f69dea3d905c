// Package mark has short names of events by their content, and a set of those that were handled.
package mark

import (
	"container/heap"
	"encoding/base64"
	"io"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Mark is the first half of the hash of an event.
type Mark [16]byte

// Of returns the mark of an event.
func Of(e *envelope.Envelope) (m Mark) {
	hash := e.Hash()
	copy(m[:], hash[:])
	return m
}

// MarshalText returns the mark in base64url.
func (m Mark) MarshalText() ([]byte, error) {
	return base64.RawURLEncoding.AppendEncode(nil, m[:]), nil
}

// UnmarshalText reads base64url.
func (m *Mark) UnmarshalText(text []byte) error {
	raw, err := base64.RawURLEncoding.DecodeString(string(text))
	if err == nil && len(raw) != len(m) {
		err = io.ErrUnexpectedEOF
	}
	copy(m[:], raw)
	return err
}

// maxHandled is how many marks a Set has. The earliest to expire are forgotten first.
const maxHandled = 1 << 16

// Set are the marks of handled events. The zero value has none. It is not safe for concurrent use.
type Set struct {
	Until map[Mark]int64 // when each expires, in Unix seconds; only Add changes it
	order byExpiry
}

// Add adds a mark. It returns false if the mark is there already.
func (h *Set) Add(m Mark, until int64) bool {
	if _, ok := h.Until[m]; ok {
		return false
	}
	now := time.Now().Unix()
	for len(h.order) > 0 && (len(h.order) >= maxHandled || h.order[0].until < now) {
		delete(h.Until, heap.Pop(&h.order).(expiring).mark)
	}
	if h.Until == nil {
		h.Until = map[Mark]int64{}
	}
	h.Until[m] = until
	heap.Push(&h.order, expiring{m, until})
	return true
}

// expiring is a mark and when it expires.
type expiring struct {
	mark  Mark
	until int64
}

// byExpiry is a heap of marks, the first to expire on top.
type byExpiry []expiring

func (h byExpiry) Len() int           { return len(h) }
func (h byExpiry) Less(i, j int) bool { return h[i].until < h[j].until }
func (h byExpiry) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *byExpiry) Push(x any) { *h = append(*h, x.(expiring)) }

// Pop implements heap.Interface.
func (h *byExpiry) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
