// Package recent has a map of bounded size, for what a client remembers of messages that it has seen.
package recent

import "github.com/agora-relay/agora/didkey"

// Message identifies a message. Messages of different senders may have the same id (PROTOCOL §3).
type Message struct {
	Sender didkey.DID
	ID     string
}

// Messages is how many messages a reader remembers, to recognize repeats.
const Messages = 4096

// Map keeps only the size keys that were added last. It is not safe for concurrent use.
type Map[K comparable, V any] struct {
	size   int
	values map[K]V
	order  []K // the keys in the order of arrival; a ring buffer once it has size keys
	next   int // the index of the oldest key in the full ring buffer, which the next new key replaces
}

// New returns an empty map for at most size keys.
func New[K comparable, V any](size int) *Map[K, V] {
	return &Map[K, V]{size: size, values: make(map[K]V)}
}

// Add sets the value of a key and reports whether the key is new. If the map is full, a new key replaces the oldest
// one.
func (r *Map[K, V]) Add(key K, value V) bool {
	_, known := r.values[key]
	r.values[key] = value
	switch {
	case known:
	case len(r.order) < r.size:
		r.order = append(r.order, key)
	default:
		delete(r.values, r.order[r.next])
		r.order[r.next] = key
		r.next = (r.next + 1) % r.size
	}
	return !known
}

// Get returns the value of a key, and whether the map has the key.
func (r *Map[K, V]) Get(key K) (V, bool) {
	value, known := r.values[key]
	return value, known
}
