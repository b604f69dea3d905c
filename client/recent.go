package client

// recent is a map that keeps its size newest keys. It is not safe for concurrent use.
type recent[K comparable, V any] struct {
	size   int
	values map[K]V
	order  []K // a ring once it is full
	next   int // where the next key goes in the ring, over the oldest
}

func newRecent[K comparable, V any](size int) *recent[K, V] {
	return &recent[K, V]{size: size, values: make(map[K]V)}
}

// add sets a value and reports whether the key is new.
func (r *recent[K, V]) add(key K, value V) bool {
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

func (r *recent[K, V]) get(key K) (V, bool) {
	value, known := r.values[key]
	return value, known
}
