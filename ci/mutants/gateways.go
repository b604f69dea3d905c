package main

// ofOutbox are the tests of the outbox.
const ofOutbox = "./gateway -run Lane|Job|Attempt|Stored|Backoff|Clock|RetryAfter|Plans|Blocked|Host|Courier|" +
	"Wake|Drains"

// The outbox of the gateways.
var outbox = []mutant{
	{"outbox: a later job goes ahead of one that waits", "gateway Outbox.oldest", "",
		swapSQL("ORDER BY n", "ORDER BY due, n"), ofOutbox},
	{"outbox: the newest job is tried first", "gateway Outbox.oldest", "",
		swapSQL("ORDER BY n", "ORDER BY n DESC"), ofOutbox},
	{"outbox: a lane is worked on twice", "gateway Outbox.WakeAt", "l.index", never, ofOutbox},
	{"outbox: a call of Wake during the work is lost", "gateway Outbox.work", "l.again", never, ofOutbox},
	{"outbox: the lanes are not loaded", "gateway Outbox.load", "o.lanes[]", never, ofOutbox},
	{"outbox: a dead job stays in its lane", "gateway Outbox.settle", "r.dead", drop, ofOutbox},
	{"outbox: a dead job is removed", "gateway Outbox.record", "Done outcome", with("outcome != Retry"), ofOutbox},
	{"outbox: dead jobs are not swept", "gateway sweepDead", "", swapSQL("dead > 0", "dead < 0"), ofOutbox},
	{"outbox: dead jobs are swept too early", "gateway deadLife", "", set("24 * time.Hour"), ofOutbox},
	{"outbox: a job lives for ever", "gateway JobLife", "", set("1000 * time.Hour"), ofOutbox},
	{"outbox: a job waits for its host for ever", "gateway Outbox.send", "",
		swap("d.expires().Sub", "d.expires().Add(1000*time.Hour).Sub"), ofOutbox},
	{"outbox: requests are built before they may be sent", "gateway Outbox.send", "o.reserve()",
		before("_, _, _ = o.courier.Call(ctx, d.row.Job)"), ofOutbox},
	{"outbox: a job that has waited is not looked at again", "gateway Outbox.send", "waited", never, ofOutbox},
	{"outbox: a job that has waited keeps its old URL", "gateway Outbox.send", "again.url", never, ofOutbox},
	{"outbox: one host takes all slots", "gateway NewOutgoing", "",
		swap("return perHost", "return perHost * maxCalls"), ofOutbox},
	{"outbox: all retries come after 2 s", "gateway retryDelay", "attempts 12", with("1"), ofOutbox},
	{"outbox: the delay has no limit", "gateway retryDelay", "",
		swap("min(attempts, 12), maxRetryDelay", "min(attempts, 12), 1 << 62"), ofOutbox},
	{"outbox: the delay is not random", "gateway retryDelay", "rand.Float64()", with("(0*$ + 0.5)"), ofOutbox},
	{"outbox: Retry-After has no limit", "gateway retryDelay", "seconds maxRetryDelay /", with("seconds"), ofOutbox},
	{"outbox: a date in Retry-After has no limit", "gateway retryDelay", "",
		swap("date.Sub(now)), maxRetryDelay", "date.Sub(now)), 1 << 62"), ofOutbox},
	{"outbox: Retry-After 0 is followed", "gateway minRetryDelay", "", set("time.Millisecond"), ofOutbox},
	{"outbox: a step of the clock is noticed late", "gateway maxSleep", "", set("time.Hour"), ofOutbox},
	{"outbox: an answer that cannot be stored is lost", "gateway Outbox.update", "return o.insist()",
		before("if o != nil { return o.core.Relay.Update(ctx, own, f) }"), ofOutbox},
	{"outbox: a result is told before it is stored", "gateway Outbox.settle", "o.update()",
		before("o.courier.Settled(j, v)"), ofOutbox},
	{"outbox: an attempt that is cut off counts", "gateway Outbox.attempt", "failed err", never, ofOutbox},
	{"outbox: it retries without a pause", "gateway maxPause", "", set("time.Second"), ofOutbox},
	{"outbox: a lane on hold is forgotten", "gateway decision.follow", "d.next d.expires()", set("time.Time{}"),
		ofOutbox},
	{"outbox: it goes on while the relay drains", "gateway Outbox.Run", "Drained()", with("(chan struct{})(nil)"),
		ofOutbox},
}
