package main

import "github.com/agora-relay/agora/testvectors"

const (
	stale   = "STALE_TIMESTAMP"
	expired = "EXPIRED"
)

func windows() (vectors []testvectors.WindowVector) {
	for _, c := range freshTable {
		now := c.now
		if now == "" {
			now = "2026-02-02T15:30:00Z"
		}
		v := testvectors.WindowVector{Name: c.name, Now: now, TS: c.ts, TTL: c.ttl, Expect: testvectors.Accept, ExpiresAt: c.expires}
		if c.code != "" {
			v.Expect, v.Code, v.Reason = testvectors.Reject, c.code, c.reason
		}
		vectors = append(vectors, v)
	}
	return vectors
}

const (
	tooOld   = "The ts is five minutes or more before the relay's clock."
	tooEarly = "The ts is five minutes or more after the relay's clock."
	isOver   = "The relay's clock has reached ts + ttl."
)

var freshTable = []struct {
	name, now, ts string
	ttl           int64
	expires       string // if accepted
	code, reason  string // if rejected
}{
	{name: "same-instant", ts: "2026-02-02T15:30:00Z", ttl: 300, expires: "2026-02-02T15:35:00Z"},
	{name: "same-instant-other-offset", ts: "2026-02-02T23:30:00+08:00", ttl: 300, expires: "2026-02-02T15:35:00Z"},
	{name: "same-instant-half-hour-offset", ts: "2026-02-02T10:00:00-05:30", ttl: 300, expires: "2026-02-02T15:35:00Z"},
	{name: "same-instant-date-before", ts: "2026-02-01T15:31:00-23:59", ttl: 300, expires: "2026-02-02T15:35:00Z"},
	{name: "now-in-other-offset", now: "2026-02-02T23:30:00+08:00", ts: "2026-02-02T15:30:00Z", ttl: 300, expires: "2026-02-02T15:35:00Z"},

	{name: "past-4m59s", ts: "2026-02-02T15:25:01Z", ttl: 600, expires: "2026-02-02T15:35:01Z"},
	{name: "past-5m-less-1ms", ts: "2026-02-02T15:25:00.001Z", ttl: 600, expires: "2026-02-02T15:35:00.001Z"},
	{name: "past-5m-less-1ns", ts: "2026-02-02T15:25:00.000000001Z", ttl: 600, expires: "2026-02-02T15:35:00.000000001Z"},
	{name: "past-5m", ts: "2026-02-02T15:25:00Z", ttl: 600, code: stale, reason: tooOld},
	{name: "past-5m-spelled-with-fraction", ts: "2026-02-02T15:25:00.000000000Z", ttl: 600, code: stale, reason: tooOld},
	{name: "past-5m-other-offset", ts: "2026-02-02T23:25:00+08:00", ttl: 600, code: stale, reason: tooOld},
	{name: "past-5m-and-1ns", ts: "2026-02-02T15:24:59.999999999Z", ttl: 600, code: stale, reason: tooOld},
	{name: "past-5m-and-1ms", ts: "2026-02-02T15:24:59.999Z", ttl: 600, code: stale, reason: tooOld},
	{name: "past-5m1s", ts: "2026-02-02T15:24:59Z", ttl: 600, code: stale, reason: tooOld},
	{name: "past-1h", ts: "2026-02-02T14:30:00Z", ttl: 86400, code: stale, reason: tooOld},
	{name: "past-1d", ts: "2026-02-01T15:30:00Z", ttl: 2592000, code: stale, reason: tooOld},
	{name: "past-local-time-taken-for-utc", ts: "2026-02-02T07:30:00Z", ttl: 86400, code: stale, reason: tooOld},

	{name: "future-4m59s", ts: "2026-02-02T15:34:59Z", ttl: 300, expires: "2026-02-02T15:39:59Z"},
	{name: "future-5m-less-1ms", ts: "2026-02-02T15:34:59.999Z", ttl: 300, expires: "2026-02-02T15:39:59.999Z"},
	{name: "future-5m-less-1ns", ts: "2026-02-02T15:34:59.999999999Z", ttl: 300, expires: "2026-02-02T15:39:59.999999999Z"},
	{name: "future-5m", ts: "2026-02-02T15:35:00Z", ttl: 300, code: stale, reason: tooEarly},
	{name: "future-5m-other-offset", ts: "2026-02-02T07:35:00-08:00", ttl: 300, code: stale, reason: tooEarly},
	{name: "future-5m-and-1ns", ts: "2026-02-02T15:35:00.000000001Z", ttl: 300, code: stale, reason: tooEarly},
	{name: "future-5m-and-1ms", ts: "2026-02-02T15:35:00.001Z", ttl: 300, code: stale, reason: tooEarly},
	{name: "future-5m1s", ts: "2026-02-02T15:35:01Z", ttl: 300, code: stale, reason: tooEarly},
	{name: "future-1d", ts: "2026-02-03T15:30:00Z", ttl: 300, code: stale, reason: tooEarly},
	{name: "future-300y", ts: "2326-02-02T15:30:00Z", ttl: 300, code: stale, reason: "The ts is 300 years from the relay's clock, and the difference does not fit into 64 bits of nanoseconds."},
	{name: "past-300y", ts: "1726-02-02T15:30:00Z", ttl: 300, code: stale, reason: "The ts is 300 years from the relay's clock, and the difference does not fit into 64 bits of nanoseconds."},
	{name: "year-9999", ts: "9999-12-31T23:59:59Z", ttl: 300, code: stale, reason: "The ts is five minutes or more after the relay's clock, and the difference does not fit into 64 bits of nanoseconds."},
	{name: "year-0001", ts: "0001-01-01T00:00:00Z", ttl: 300, code: stale, reason: "The ts is five minutes or more before the relay's clock, and the difference does not fit into 64 bits of nanoseconds."},
	{name: "unix-epoch", ts: "1970-01-01T00:00:00Z", ttl: 300, code: stale, reason: tooOld},
	{name: "clock-with-fraction-inside", now: "2026-02-02T15:30:00.5Z", ts: "2026-02-02T15:25:00.501Z", ttl: 600, expires: "2026-02-02T15:35:00.501Z"},
	{name: "clock-with-fraction-edge", now: "2026-02-02T15:30:00.5Z", ts: "2026-02-02T15:25:00.5Z", ttl: 600, code: stale, reason: tooOld},
	{name: "across-midnight", now: "2026-03-01T00:01:00Z", ts: "2026-02-28T23:57:00Z", ttl: 300, expires: "2026-03-01T00:02:00Z"},
	{name: "across-new-year", now: "2026-12-31T23:58:00Z", ts: "2027-01-01T00:02:59Z", ttl: 300, expires: "2027-01-01T00:07:59Z"},

	{name: "ttl-1-at-once", ts: "2026-02-02T15:30:00Z", ttl: 1, expires: "2026-02-02T15:30:01Z"},
	{name: "ttl-1-a-nanosecond-left", ts: "2026-02-02T15:29:59.000000001Z", ttl: 1, expires: "2026-02-02T15:30:00.000000001Z"},
	{name: "ttl-1-over", ts: "2026-02-02T15:29:59Z", ttl: 1, code: expired, reason: isOver},
	{name: "ttl-1-over-by-a-nanosecond", ts: "2026-02-02T15:29:58.999999999Z", ttl: 1, code: expired, reason: isOver},
	{name: "ttl-60-a-millisecond-left", ts: "2026-02-02T15:29:00.001Z", ttl: 60, expires: "2026-02-02T15:30:00.001Z"},
	{name: "ttl-60-over", ts: "2026-02-02T15:29:00Z", ttl: 60, code: expired, reason: isOver},
	{name: "ttl-60-over-other-offset", ts: "2026-02-02T23:29:00+08:00", ttl: 60, code: expired, reason: isOver},
	{name: "ttl-60-long-over", ts: "2026-02-02T15:25:30Z", ttl: 60, code: expired, reason: isOver},
	{name: "ttl-299-over-in-the-window", ts: "2026-02-02T15:25:01Z", ttl: 299, code: expired, reason: isOver},
	{name: "ttl-300-in-the-window", ts: "2026-02-02T15:25:01Z", ttl: 300, expires: "2026-02-02T15:30:01Z"},
	{name: "ttl-1-from-the-future", ts: "2026-02-02T15:34:59Z", ttl: 1, expires: "2026-02-02T15:35:00Z"},

	{name: "ttl-1d", ts: "2026-02-02T15:30:00Z", ttl: 86400, expires: "2026-02-03T15:30:00Z"},
	{name: "ttl-30d-less-1s", ts: "2026-02-02T15:30:00Z", ttl: 2591999, expires: "2026-03-04T15:29:59Z"},
	{name: "ttl-30d", ts: "2026-02-02T15:30:00Z", ttl: 2592000, expires: "2026-03-04T15:30:00Z"},
	{name: "ttl-30d-and-1s", ts: "2026-02-02T15:30:00Z", ttl: 2592001, expires: "2026-03-04T15:30:00Z"},
	{name: "ttl-1y-is-kept-30d", ts: "2026-02-02T15:30:00Z", ttl: 31536000, expires: "2026-03-04T15:30:00Z"},
	{name: "ttl-200y-is-kept-30d", ts: "2026-02-02T15:30:00Z", ttl: 6311433600, expires: "2026-03-04T15:30:00Z"},
	{name: "kept-30d-from-ts-in-the-past", ts: "2026-02-02T15:26:00Z", ttl: 31536000, expires: "2026-03-04T15:26:00Z"},
	{name: "kept-30d-from-ts-in-the-future", ts: "2026-02-02T15:34:00Z", ttl: 31536000, expires: "2026-03-04T15:34:00Z"},
}
