package main

import (
	"fmt"

	"github.com/agora-relay/agora/envelope"
)

const day = 24 * 60 * 60 // seconds

// capacity is what one node needs in memory and on disk, in bytes.
type capacity struct {
	Base   float64 // memory without polls
	Poll   float64 // memory per waiting poll
	Row    float64 // disk per event, with its part of the indexes
	Thread float64 // disk per thread record
}

// polls returns how many polls can wait with this many bytes of memory.
func (c capacity) polls(bytes float64) float64 { return max(bytes-c.Base, 0) / c.Poll }

// retention returns for how many seconds an event's row and a thread's record stay on disk if messages live for ttl
// seconds. A row stays for at least half an hour, because the relay also uses it to detect duplicate ids. A thread's
// record stays for a day longer than the thread's last message.
func retention(ttl float64) (row, thread float64) { return max(ttl, 30*60), ttl + day }

// bytesPerRate returns the bytes on disk for a rate of one event per second, if each event opens its own thread. These
// are the bytes that arrive during the retention time.
func (c capacity) bytesPerRate(ttl float64) float64 {
	row, thread := retention(ttl)
	return row*c.Row + thread*c.Thread
}

// disk returns the bytes on disk if events keep arriving at this rate, in events per second.
func (c capacity) disk(rate, ttl float64) float64 { return rate * c.bytesPerRate(ttl) }

// maxRate returns the highest rate, in events per second, at which the events never need more than this many bytes on
// disk.
func (c capacity) maxRate(bytes, ttl float64) float64 { return bytes / c.bytesPerRate(ttl) }

// ttls are the usual lifetimes of messages, in seconds.
var ttls = []struct {
	name string
	ttl  float64
}{
	{fmt.Sprintf("without `meta.ttl`, which means %v s", envelope.DefaultTTL.Seconds()), envelope.DefaultTTL.Seconds()},
	{"with `meta.ttl` of one day, the default of the commands and the Go client", day},
}

// pointAt returns the point of the curve whose At is where. It returns false if there is none.
func pointAt(curve []point, where int) (point, bool) {
	for _, p := range curve {
		if p.At == where {
			return p, true
		}
	}
	return point{}, false
}
