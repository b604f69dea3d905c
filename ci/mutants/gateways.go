package main

// ofOutbox are the tests of the outbox.
const ofOutbox = "./gateway -run Lane|Job|Attempt|Stored|Backoff|Clock|RetryAfter|Plans|Blocked|Host|Courier"

// The outbox of the gateways.
var outbox = []mutant{
	{"outbox: a later job goes ahead of one that waits", "gateway Outbox.head", "", swapSQL("ORDER BY n", "ORDER BY due, n"), ofOutbox},
	{"outbox: the newest job is tried first", "gateway Outbox.head", "", swapSQL("ORDER BY n", "ORDER BY n DESC"), ofOutbox},
	{"outbox: a lane is worked on twice", "gateway Outbox.Wake", "l.index", never, ofOutbox},
	{"outbox: a call of Wake during the work is lost", "gateway Outbox.work", "l.again", never, ofOutbox},
	{"outbox: the lanes are not loaded", "gateway Outbox.load", "o.lanes[]", never, ofOutbox},
	{"outbox: a dead job stays in its lane", "gateway Outbox.settle", "r.dead", drop, ofOutbox},
	{"outbox: a dead job is removed", "gateway Outbox.record", "Done outcome", with("outcome != Retry"), ofOutbox},
	{"outbox: dead jobs are not swept", "gateway sweepDead", "", swapSQL("dead > 0", "dead < 0"), ofOutbox},
	{"outbox: dead jobs are swept too early", "gateway sweeps", "", swapSQL("? - 604800000000000", "? - 86400000000000"), ofOutbox},
	{"outbox: a job lives for ever", "gateway Outbox.step", "now.Before() expires", never, ofOutbox},
	{"outbox: a job waits for its host for ever", "gateway Outbox.attempt", "", swap("life, errExpired", "1000*time.Hour, errExpired"), ofOutbox},
	{"outbox: requests are built before they may be sent", "gateway Outbox.attempt", "o.out.reserve()",
		before("_, _, _ = o.courier.Call(ctx, j)"), ofOutbox},
	{"outbox: one host takes all slots", "gateway NewOutgoing", "perHost return", with("maxCalls"), ofOutbox},
	{"outbox: a job that waits for its host takes a slot", "internal/turns Queue.Acquire", "granted make()", before("q.free--"), ofOutbox},
	{"outbox: all retries come after 2 s", "gateway retryDelay", "attempts 12", with("1"), ofOutbox},
	{"outbox: the delay has no limit", "gateway retryDelay", "", swap("min(attempts, 12), maxRetryDelay", "min(attempts, 12), 1 << 62"), ofOutbox},
	{"outbox: the delay is not random", "gateway retryDelay", "rand.Float64()", with("0.5"), ofOutbox},
	{"outbox: Retry-After has no limit", "gateway retryDelay", "seconds maxRetryDelay /", with("seconds"), ofOutbox},
	{"outbox: a date in Retry-After has no limit", "gateway retryDelay", "", swap("date.Sub(now)), maxRetryDelay", "date.Sub(now)), 1 << 62"),
		ofOutbox},
	{"outbox: Retry-After 0 is followed", "gateway minRetryDelay", "", set("0"), ofOutbox},
	{"outbox: a step of the clock is noticed late", "gateway maxSleep", "", set("time.Hour"), ofOutbox},
	{"outbox: an answer that cannot be stored is lost", "gateway Outbox.update", "o.insist()",
		with("o.core.Relay.Update(ctx, own, f)"), ofOutbox},
	{"outbox: a result is told before it is stored", "gateway Outbox.settle", "o.update()",
		before("o.courier.Settled(j, v)"), ofOutbox},
	{"outbox: an attempt that is cut off counts", "gateway Outbox.attempt", "failed", never, ofOutbox},
	{"outbox: it retries without a pause", "gateway maxWait", "", set("time.Second"), ofOutbox},
	{"outbox: a dropped job stays", "gateway Outbox.step", "o.record() Done", with("error(nil)"), ofOutbox},
	{"outbox: a lane on hold is forgotten", "gateway Outbox.step", "Hold", after("return time.Time{}, nil"), ofOutbox},
}
