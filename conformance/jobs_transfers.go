package conformance

import (
	"net/http"
	"strings"
)

// transferOf returns the body of a transfer for a job that the registry does not know.
func transferOf(from, to string, amount any, changes ...func(message)) message {
	body := message{"transfer_id": newUUID(), "from_owner": from, "to_owner": to, "amount": amount, "job_id": newUUID(),
		"timestamp_utc": "2026-02-11T14:15:09Z"}
	combine(changes...)(body)
	return body
}

// transfer sends a transfer.
func (h *jobsProbe) transfer(p *principal, body message) answer {
	return h.write(p.key, "/transfer", body)
}

// transferred is transfer for one that the registry must answer with its record.
func (h *jobsProbe) transferred(p *principal, body message) answer {
	return h.completed(h.transfer(p, body))
}

// completed ends the check unless a is the answer to a transfer.
func (h *jobsProbe) completed(a answer) answer {
	h.wantStatus(a, http.StatusOK)
	h.want(a.text("status") == "completed" && a.object("transfer").members != nil, a,
		`{"status":"completed","transfer":{…},…}`)
	return a
}

// paid moves credits from the oldest account of p to that of another principal.
func (h *jobsProbe) paid(p, to *principal, amount any) { h.paidFrom(p, p.owner, to.owner, amount) }

// paidFrom moves credits from an account of p.
func (h *jobsProbe) paidFrom(p *principal, from, to string, amount any) {
	h.transferred(p, transferOf(from, to, amount))
}

// jobsTransferChecks test transfers.
var jobsTransferChecks = []jobsCheck{
	{number: "jobs.transfer.ok", title: "A transfer moves credits, and its answer has the record and both balances",
		cites: `JOBS "Credits"; J-2`, run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			body := transferOf(p.owner, other.owner, number("0.25"))
			a := h.transferred(p, body)
			row := a.object("transfer")
			for _, name := range []string{"transfer_id", "from_owner", "to_owner", "job_id"} {
				h.want(sameJSON(row.members[name], body[name]), a, "the %s of the request", name)
			}
			h.want(row.text("kind") == "transfer" && jobsTimeForm.MatchString(row.text("timestamp_utc")), a,
				`"kind":"transfer", and timestamp_utc such as 2026-02-11T14:15:09.000Z`)
			h.wantAmount(row, "amount", 250_000)
			h.wantAmount(a, "sender_balance", before.balance[0]-250_000)
			before.wantMoved("-0.25", "0.25")
			own := h.account(p, 0)
			moved := h.watch(p).add(p, own)
			got := h.transferred(p, transferOf(p.owner, own, number("0.25")))
			moved.wantMoved("-0.25", "0.25")
			h.wantAmount(got, "receiver_balance", moved.balance[1]+250_000)
		}},
	{number: "jobs.transfer.fields", title: "Fields are taken at both sides of their bounds, and refused with 422 beyond",
		cites: `JOBS "The HTTP interface"; JOBS "Credits"; J-11`, run: transferFields},
	{number: "jobs.transfer.repeat-id",
		title: "The same transfer_id with the same content gets the first answer and moves nothing; other content is 409",
		cites: `JOBS "Credits"; J-4`, run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			body := transferOf(p.owner, other.owner, number("0.25"))
			first := h.transferred(p, body)
			h.paid(p, other, number("0.5"))
			for _, id := range []any{body["transfer_id"], strings.ToUpper(body["transfer_id"].(string))} {
				h.wantSame(h.transferred(p, with(body, "transfer_id", id)), first)
			}
			h.wantSame(h.transferred(p, with(body, "timestamp_utc", "2026-02-11T14:16:00Z")), first)
			for _, change := range []func(message){set("amount", number("0.26")), set("job_id", newUUID()),
				set("to_owner", h.account(p, 0))} {
				changed := with(body, "x", nothing)
				change(changed)
				h.wantTaken(h.transfer(p, changed))
			}
			h.wantTaken(h.transfer(other, transferOf(other.owner, p.owner, number("0.25"),
				set("transfer_id", body["transfer_id"]))))
			before.wantMoved("-0.75", "0.75")
		}},
	{number: "jobs.transfer.repeat",
		title: "Without transfer_id the same payer, payee, amount and job_id is a repeat, which moves nothing",
		cites: `JOBS "Credits"; J-4`, run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			body := transferOf(p.owner, other.owner, number("0.25"), without("transfer_id"))
			first := h.transferred(p, body)
			id := first.object("transfer").text("transfer_id")
			h.want(uuidForm.MatchString(id), first, "a new transfer_id")
			for range 2 {
				again := h.transferred(p, with(body, "timestamp_utc", "2026-02-11T14:16:00Z"))
				h.want(again.object("transfer").text("transfer_id") == id, again, "the transfer %s", id)
			}
			before.wantMoved("-0.25", "0.25")
			own := h.account(p, 0)
			h.transferred(p, with(body, "amount", number("0.26")))
			h.transferred(p, with(body, "job_id", newUUID()))
			h.transferred(p, with(body, "to_owner", own))
			h.transferred(p, transferOf(p.owner, other.owner, number("0.25"), set("job_id", body["job_id"])))
			before.wantMoved("-1.26", "1.01")
		}},
	{number: "jobs.transfer.settled",
		title: "A transfer for a job that has paid the payee answers with that payment and moves nothing",
		cites: `JOBS "Credits"; J-5`, run: settledTransfers},
	{number: "jobs.transfer.settled-case", title: "A job_id in upper case names the same job in a transfer",
		cites: `JOBS "The HTTP interface"; JOBS "Credits"; J-4, J-5`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.finish(j, successOf(j))
			before := h.watch(hirer, a.principal)
			got := h.transferred(hirer, transferOf(hirer.owner, a.owner, number("0.1"), set("job_id", strings.ToUpper(j.id)),
				without("transfer_id")))
			h.want(got.object("transfer").text("kind") == "settle", got, "the settlement of the job")
			before.wantMoved("0", "0")
			id := newUUID()
			for _, text := range []string{id, strings.ToUpper(id)} {
				h.transferred(hirer, transferOf(hirer.owner, a.owner, number("0.25"), set("job_id", text),
					without("transfer_id")))
			}
			before.wantMoved("-0.25", "0.25")
		}},
	{number: "jobs.transfer.settled-id", title: "A transfer_id that was answered with a settlement is 409 with other content",
		cites: `JOBS "Credits"; J-4`, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.finish(j, successOf(j))
			before := h.watch(hirer, a.principal)
			body := transferOf(hirer.owner, a.owner, number("0.1"), set("job_id", j.id))
			first := h.transferred(hirer, body)
			h.want(first.object("transfer").text("kind") == "settle", first, "the settlement of the job")
			h.wantTaken(h.transfer(hirer, with(body, "job_id", newUUID())))
			again := h.transferred(hirer, body)
			h.want(again.object("transfer").text("transfer_id") == first.object("transfer").text("transfer_id"), again,
				"the same settlement")
			before.wantMoved("0", "0")
		}},
	{number: "jobs.transfer.refused",
		title: "An unknown payer or payee is 404, also @issue and @escrow; the same payer and payee are 422",
		cites: `JOBS "Credits"; JOBS "Jobs"`, run: func(h *jobsProbe) {
			p := h.one()
			before := h.watch(p)
			for _, owner := range []string{newName(), "@issue", "@escrow"} {
				h.wantUnknown(h.transfer(p, transferOf(p.owner, owner, 1)))
				h.wantUnknown(h.transfer(p, transferOf(owner, p.owner, 1)))
			}
			h.wantInvalid(h.transfer(p, transferOf(p.owner, p.owner, 1)))
			before.wantMoved("0")
		}},
	{number: "jobs.transfer.foreign", title: "Nobody moves the credits of another principal: 403",
		cites: `JOBS "Credits"; J-27`, run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			h.wantForeign(h.transfer(p, transferOf(other.owner, p.owner, number("0.25"))))
			h.wantForeign(h.transfer(p, transferOf(other.owner, p.owner, number("0.25"), without("transfer_id"))))
			body := transferOf(other.owner, p.owner, number("0.25"))
			h.transferred(other, body)
			h.wantForeign(h.transfer(p, with(body, "transfer_id", nothing)))
			before.wantMoved("0.25", "-0.25")
		}},
	{number: "jobs.transfer.too-little", title: "An account below the amount is 400 with TRANSFER_FAILED",
		cites: `JOBS "Credits"; J-3`, run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			body := transferOf(p.owner, other.owner, number(credits(before.balance[0]+1)))
			a := h.wantRefused(h.transfer(p, body), http.StatusBadRequest)
			h.want(a.text("error_code") == "TRANSFER_FAILED" && a.text("detail") != "", a,
				`{"detail":"…","error_code":"TRANSFER_FAILED"}`)
			before.wantMoved("0", "0")
			own := h.account(p, 0)
			all := credits(before.balance[0])
			h.paidFrom(p, p.owner, own, number(all))
			before.wantMoved("-"+all, "0")
			h.paidFrom(p, own, p.owner, number(all))
			before.wantMoved("0", "0")
		}},
	{number: "jobs.transfer.race", title: "A transfer that is sent 8 times at once moves its credits once",
		cites: `JOBS "Credits"; J-4`, run: func(h *jobsProbe) {
			p, other := h.two()
			for _, change := range []func(message){set("x", 1), without("transfer_id")} {
				before := h.watch(p, other)
				body := transferOf(p.owner, other.owner, number("0.25"), change)
				ids := map[string]bool{}
				for _, a := range h.inParallel(8, func(int) answer { return h.transfer(p, body) }) {
					ids[h.completed(a).object("transfer").text("transfer_id")] = true
				}
				before.wantMoved("-0.25", "0.25")
				h.expect("8 answers with the same transfer")
				if len(ids) != 1 {
					h.failf("%d transfers", len(ids))
				}
			}
		}},
	{number: "jobs.transfer.overdraw", title: "Transfers and jobs at once never take more than an account has",
		cites: `JOBS "Credits"; J-3`, run: overdraws},
}

func transferFields(h *jobsProbe) {
	p, other := h.two()
	before := h.watch(p, other)
	good := transferOf(p.owner, other.owner, number("0.25"))
	for _, change := range []func(message){
		without("from_owner"), without("to_owner"), without("amount"), set("from_owner", ""), set("to_owner", ""),
		set("from_owner", 1), set("to_owner", 1), set("amount", 0), set("amount", nil), set("transfer_id", "x"),
		set("transfer_id", 1), set("job_id", ""), set("job_id", strings.Repeat("j", 129)), set("job_id", 1),
	} {
		body := with(good, "x", nothing)
		change(body)
		h.wantInvalid(h.transfer(p, body))
	}
	for _, text := range badAmounts() {
		h.wantInvalid(h.write(p.key, "/transfer", rawNumber(with(good, "amount", nothing), "amount", text)))
	}
	before.wantMoved("0", "0")
	for _, change := range []func(message){set("job_id", strings.ToLower(newName())), set("job_id", "not a UUID"),
		set("job_id", strings.Repeat("j", 128-12)+newName()[4:]), set("amount", number("0.000001"))} {
		body := transferOf(p.owner, other.owner, number("0.25"))
		change(body)
		a := h.transferred(p, body)
		h.want(a.object("transfer").text("job_id") == body["job_id"], a, "the job_id as it was given")
	}
	before.wantMoved("-0.750001", "0.750001")
}

func settledTransfers(h *jobsProbe) {
	hirer, a := h.pair()
	j := h.hire(hirer, a)
	h.finish(j, successOf(j, set("execution_cost", number("0.07"))))
	before := h.watch(hirer, a.principal)
	for _, body := range []message{
		transferOf(hirer.owner, a.owner, number("0.07"), set("job_id", j.id), without("transfer_id")),
		transferOf(hirer.owner, a.owner, number("0.07"), set("job_id", j.id)),
		transferOf(hirer.owner, a.owner, number("0.15"), set("job_id", j.id)),
		transferOf(h.account(hirer, 0), a.owner, number("0.07"), set("job_id", j.id)),
	} {
		got := h.transferred(hirer, body)
		row := got.object("transfer")
		h.want(row.text("kind") == "settle" && row.text("to_owner") == a.owner && row.text("job_id") == j.id, got,
			"the settlement of the job")
		h.wantAmount(row, "amount", 70_000)
	}
	before.wantMoved("0", "0")
	own := h.account(hirer, 0)
	h.transferred(hirer, transferOf(hirer.owner, own, number("0.07"), set("job_id", j.id)))
	before.wantMoved("-0.07", "0") // the job has not paid this payee
	h.transferred(a.principal, transferOf(a.owner, hirer.owner, number("0.07"), set("job_id", j.id)))
	before.wantMoved("0", "-0.07") // it is not a job of this payer
}

func overdraws(h *jobsProbe) {
	p, other := h.two()
	own := h.account(p, 0)
	h.drain(p, own)
	h.paidFrom(p, p.owner, own, 1)
	before := h.watch(p, other).add(p, own)
	taken := 0
	for _, a := range h.inParallel(10, func(int) answer { return h.transfer(p, transferOf(own, other.owner, number("0.3"))) }) {
		if a.status == http.StatusOK {
			h.completed(a)
			taken++
		} else {
			h.wantRefused(a, http.StatusBadRequest)
		}
	}
	h.expect("3 of 10 transfers of 0.3 from an account with 1")
	if taken != 3 {
		h.failf("%d", taken)
	}
	before.wantMoved("0", "0.9", "-0.9")
	h.paidFrom(p, p.owner, own, number("0.9"))
	a := h.agentAt(other, newName(), "0.3")
	taken = 0
	for _, got := range h.inParallel(10, func(int) answer {
		return h.write(p.key, a.path()+"?wait=0", request(p, a, set("orchestrator_id", own), set("budget", number("0.3"))))
	}) {
		if got.status == http.StatusAccepted {
			taken++
		} else {
			h.wantFailure(got, "TRANSFER_FAILED")
		}
	}
	h.expect("3 of 10 jobs with the budget 0.3, paid by an account with 1")
	if taken != 3 {
		h.failf("%d", taken)
	}
	before.wantMoved("-0.9", "0.9", "-0.9")
}
