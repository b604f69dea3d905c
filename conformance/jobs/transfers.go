package jobs

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// transferOf returns the body of a transfer for a job that the registry does not know.
func transferOf(from, to string, amount any, changes ...func(kit.Message)) kit.Message {
	body := kit.Message{"transfer_id": newUUID(), "from_owner": from, "to_owner": to, "amount": amount,
		"job_id":        newUUID(),
		"timestamp_utc": "2026-02-11T14:15:09Z"}
	kit.Combine(changes...)(body)
	return body
}

// transfer sends a transfer.
func (h *jobsProbe) transfer(p *principal, body kit.Message) kit.Answer {
	return h.Write(p.key, "/transfer", body)
}

// transferred is transfer for one that the registry must answer with its record.
func (h *jobsProbe) transferred(p *principal, body kit.Message) kit.Answer {
	return h.completed(h.transfer(p, body))
}

// completed ends the check unless a is the answer to a transfer.
func (h *jobsProbe) completed(a kit.Answer) kit.Answer {
	h.wantStatus(a, http.StatusOK)
	h.Want(a.Text("status") == "completed" && a.Object("transfer").Members != nil, a,
		`{"status":"completed","transfer":{…},…}`)
	return a
}

// paid moves credits from the oldest account of p to the oldest account of another principal.
func (h *jobsProbe) paid(p, to *principal, amount any) { h.paidFrom(p, p.owner, to.owner, amount) }

// paidFrom moves credits from an account of p.
func (h *jobsProbe) paidFrom(p *principal, from, to string, amount any) {
	h.transferred(p, transferOf(from, to, amount))
}

// jobsTransferChecks test transfers.
var jobsTransferChecks = []jobsCheck{
	{Number: "jobs.transfer.ok", Title: "A transfer moves credits, and its answer has the record and both balances",
		Cites: `JOBS "Credits"; J-2`, Run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			body := transferOf(p.owner, other.owner, number("0.25"))
			a := h.transferred(p, body)
			row := a.Object("transfer")
			for _, name := range []string{"transfer_id", "from_owner", "to_owner", "job_id"} {
				h.Want(kit.SameJSON(row.Members[name], body[name]), a, "the %s of the request", name)
			}
			h.Want(row.Text("kind") == "transfer" && jobsTimeForm.MatchString(row.Text("timestamp_utc")), a,
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
	{Number: "jobs.transfer.fields", Title: "Fields are taken at both sides of their bounds, and refused with 422 beyond",
		Cites: `JOBS "The HTTP interface"; JOBS "Credits"; J-11`, Run: transferFields},
	{Number: "jobs.transfer.repeat-id",
		Title: "The same transfer_id with the same content gets the first answer and moves nothing; other content is 409",
		Cites: `JOBS "Credits"; J-4`, Run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			body := transferOf(p.owner, other.owner, number("0.25"))
			first := h.transferred(p, body)
			h.paid(p, other, number("0.5"))
			for _, id := range []any{body["transfer_id"], strings.ToUpper(body["transfer_id"].(string))} {
				h.wantSame(h.transferred(p, kit.With(body, "transfer_id", id)), first)
			}
			h.wantSame(h.transferred(p, kit.With(body, "timestamp_utc", "2026-02-11T14:16:00Z")), first)
			for _, change := range []func(kit.Message){kit.Set("amount", number("0.26")), kit.Set("job_id", newUUID()),
				kit.Set("to_owner", h.account(p, 0))} {
				changed := kit.With(body, "x", kit.Nothing)
				change(changed)
				h.wantTaken(h.transfer(p, changed))
			}
			h.wantTaken(h.transfer(other, transferOf(other.owner, p.owner, number("0.25"),
				kit.Set("transfer_id", body["transfer_id"]))))
			before.wantMoved("-0.75", "0.75")
		}},
	{Number: "jobs.transfer.repeat",
		Title: "Without transfer_id the same payer, payee, amount and job_id is a repeat, which moves nothing",
		Cites: `JOBS "Credits"; J-4`, Run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			body := transferOf(p.owner, other.owner, number("0.25"), kit.Without("transfer_id"))
			first := h.transferred(p, body)
			id := first.Object("transfer").Text("transfer_id")
			h.Want(uuidForm.MatchString(id), first, "a new transfer_id")
			for range 2 {
				again := h.transferred(p, kit.With(body, "timestamp_utc", "2026-02-11T14:16:00Z"))
				h.Want(again.Object("transfer").Text("transfer_id") == id, again, "the transfer %s", id)
			}
			before.wantMoved("-0.25", "0.25")
			own := h.account(p, 0)
			h.transferred(p, kit.With(body, "amount", number("0.26")))
			h.transferred(p, kit.With(body, "job_id", newUUID()))
			h.transferred(p, kit.With(body, "to_owner", own))
			h.transferred(p, transferOf(p.owner, other.owner, number("0.25"), kit.Set("job_id", body["job_id"])))
			before.wantMoved("-1.26", "1.01")
		}},
	{Number: "jobs.transfer.settled",
		Title: "A transfer for a job that has paid the payee answers with that payment and moves nothing",
		Cites: `JOBS "Credits"; J-5`, Run: settledTransfers},
	{Number: "jobs.transfer.settled-case", Title: "A job_id in upper case names the same job in a transfer",
		Cites: `JOBS "The HTTP interface"; JOBS "Credits"; J-4, J-5`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.finish(j, successOf(j))
			before := h.watch(hirer, a.principal)
			got := h.transferred(hirer, transferOf(hirer.owner, a.owner, number("0.1"), kit.Set("job_id", strings.ToUpper(j.id)),
				kit.Without("transfer_id")))
			h.Want(got.Object("transfer").Text("kind") == "settle", got, "the settlement of the job")
			before.wantMoved("0", "0")
			id := newUUID()
			for _, text := range []string{id, strings.ToUpper(id)} {
				h.transferred(hirer, transferOf(hirer.owner, a.owner, number("0.25"), kit.Set("job_id", text),
					kit.Without("transfer_id")))
			}
			before.wantMoved("-0.25", "0.25")
		}},
	{Number: "jobs.transfer.settled-id", Title: "A transfer_id that was answered with a settlement is 409 with other content",
		Cites: `JOBS "Credits"; J-4`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			h.finish(j, successOf(j))
			before := h.watch(hirer, a.principal)
			body := transferOf(hirer.owner, a.owner, number("0.1"), kit.Set("job_id", j.id))
			first := h.transferred(hirer, body)
			h.Want(first.Object("transfer").Text("kind") == "settle", first, "the settlement of the job")
			h.wantTaken(h.transfer(hirer, kit.With(body, "job_id", newUUID())))
			again := h.transferred(hirer, body)
			h.Want(again.Object("transfer").Text("transfer_id") == first.Object("transfer").Text("transfer_id"), again,
				"the same settlement")
			before.wantMoved("0", "0")
		}},
	{Number: "jobs.transfer.refused",
		Title: "An unknown payer or payee is 404, also @issue and @escrow; the same payer and payee are 422",
		Cites: `JOBS "Credits"; JOBS "Jobs"`, Run: func(h *jobsProbe) {
			p := h.one()
			before := h.watch(p)
			for _, owner := range []string{kit.NewName(), "@issue", "@escrow"} {
				h.wantUnknown(h.transfer(p, transferOf(p.owner, owner, 1)))
				h.wantUnknown(h.transfer(p, transferOf(owner, p.owner, 1)))
			}
			h.wantInvalid(h.transfer(p, transferOf(p.owner, p.owner, 1)))
			before.wantMoved("0")
		}},
	{Number: "jobs.transfer.foreign", Title: "Nobody moves the credits of another principal: 403",
		Cites: `JOBS "Credits"; J-27`, Run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			h.wantForeign(h.transfer(p, transferOf(other.owner, p.owner, number("0.25"))))
			h.wantForeign(h.transfer(p, transferOf(other.owner, p.owner, number("0.25"), kit.Without("transfer_id"))))
			body := transferOf(other.owner, p.owner, number("0.25"))
			h.transferred(other, body)
			h.wantForeign(h.transfer(p, kit.With(body, "transfer_id", kit.Nothing)))
			before.wantMoved("0.25", "-0.25")
		}},
	{Number: "jobs.transfer.too-little", Title: "An account below the amount is 400 with TRANSFER_FAILED",
		Cites: `JOBS "Credits"; J-3`, Run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p, other)
			body := transferOf(p.owner, other.owner, number(credits(before.balance[0]+1)))
			a := h.wantRefused(h.transfer(p, body), http.StatusBadRequest)
			h.Want(a.Text("error_code") == "TRANSFER_FAILED" && a.Text("detail") != "", a,
				`{"detail":"…","error_code":"TRANSFER_FAILED"}`)
			before.wantMoved("0", "0")
			own := h.account(p, 0)
			all := credits(before.balance[0])
			h.paidFrom(p, p.owner, own, number(all))
			before.wantMoved("-"+all, "0")
			h.paidFrom(p, own, p.owner, number(all))
			before.wantMoved("0", "0")
		}},
	{Number: "jobs.transfer.race", Title: "A transfer that is sent 8 times at once moves its credits once",
		Cites: `JOBS "Credits"; J-4`, Run: func(h *jobsProbe) {
			p, other := h.two()
			for _, change := range []func(kit.Message){kit.Set("x", 1), kit.Without("transfer_id")} {
				before := h.watch(p, other)
				body := transferOf(p.owner, other.owner, number("0.25"), change)
				ids := map[string]bool{}
				for _, a := range h.InParallel(8, func(int) kit.Answer { return h.transfer(p, body) }) {
					ids[h.completed(a).Object("transfer").Text("transfer_id")] = true
				}
				before.wantMoved("-0.25", "0.25")
				h.Expect("8 answers with the same transfer")
				if len(ids) != 1 {
					h.Failf("%d transfers", len(ids))
				}
			}
		}},
	{Number: "jobs.transfer.overdraw", Title: "Transfers and jobs at once never take more than an account has",
		Cites: `JOBS "Credits"; J-3`, Run: overdraws},
}

func transferFields(h *jobsProbe) {
	p, other := h.two()
	before := h.watch(p, other)
	good := transferOf(p.owner, other.owner, number("0.25"))
	for _, change := range []func(kit.Message){
		kit.Without("from_owner"), kit.Without("to_owner"), kit.Without("amount"), kit.Set("from_owner", ""),
		kit.Set("to_owner", ""),
		kit.Set("from_owner", 1), kit.Set("to_owner", 1), kit.Set("amount", 0), kit.Set("amount", nil),
		kit.Set("transfer_id", "x"),
		kit.Set("transfer_id", 1), kit.Set("job_id", ""), kit.Set("job_id", strings.Repeat("j", 129)), kit.Set("job_id", 1),
	} {
		body := kit.With(good, "x", kit.Nothing)
		change(body)
		h.wantInvalid(h.transfer(p, body))
	}
	for _, text := range badAmounts() {
		h.wantInvalid(h.Write(p.key, "/transfer", rawNumber(kit.With(good, "amount", kit.Nothing), "amount", text)))
	}
	before.wantMoved("0", "0")
	for _, change := range []func(kit.Message){kit.Set("job_id", strings.ToLower(kit.NewName())), kit.Set("job_id",
		"not a UUID"),
		kit.Set("job_id", strings.Repeat("j", 128-12)+kit.NewName()[4:]), kit.Set("amount", number("0.000001"))} {
		body := transferOf(p.owner, other.owner, number("0.25"))
		change(body)
		a := h.transferred(p, body)
		h.Want(a.Object("transfer").Text("job_id") == body["job_id"], a, "the job_id as it was given")
	}
	before.wantMoved("-0.750001", "0.750001")
}

func settledTransfers(h *jobsProbe) {
	hirer, a := h.pair()
	j := h.hire(hirer, a)
	h.finish(j, successOf(j, kit.Set("execution_cost", number("0.07"))))
	before := h.watch(hirer, a.principal)
	for _, body := range []kit.Message{
		transferOf(hirer.owner, a.owner, number("0.07"), kit.Set("job_id", j.id), kit.Without("transfer_id")),
		transferOf(hirer.owner, a.owner, number("0.07"), kit.Set("job_id", j.id)),
		transferOf(hirer.owner, a.owner, number("0.15"), kit.Set("job_id", j.id)),
		transferOf(h.account(hirer, 0), a.owner, number("0.07"), kit.Set("job_id", j.id)),
	} {
		got := h.transferred(hirer, body)
		row := got.Object("transfer")
		h.Want(row.Text("kind") == "settle" && row.Text("to_owner") == a.owner && row.Text("job_id") == j.id, got,
			"the settlement of the job")
		h.wantAmount(row, "amount", 70_000)
	}
	before.wantMoved("0", "0")
	own := h.account(hirer, 0)
	h.transferred(hirer, transferOf(hirer.owner, own, number("0.07"), kit.Set("job_id", j.id)))
	before.wantMoved("-0.07", "0") // the job has not paid this payee
	h.transferred(a.principal, transferOf(a.owner, hirer.owner, number("0.07"), kit.Set("job_id", j.id)))
	before.wantMoved("0", "-0.07") // it is not a job of this payer
}

func overdraws(h *jobsProbe) {
	p, other := h.two()
	own := h.account(p, 0)
	h.drain(p, own)
	h.paidFrom(p, p.owner, own, 1)
	before := h.watch(p, other).add(p, own)
	taken := 0
	for _, a := range h.InParallel(10, func(int) kit.Answer {
		return h.transfer(p, transferOf(own, other.owner,
			number("0.3")))
	}) {
		if a.Status == http.StatusOK {
			h.completed(a)
			taken++
		} else {
			h.wantRefused(a, http.StatusBadRequest)
		}
	}
	h.Expect("3 of 10 transfers of 0.3 from an account with 1")
	if taken != 3 {
		h.Failf("%d", taken)
	}
	before.wantMoved("0", "0.9", "-0.9")
	h.paidFrom(p, p.owner, own, number("0.9"))
	a := h.agentAt(other, kit.NewName(), "0.3")
	taken = 0
	for _, got := range h.InParallel(10, func(int) kit.Answer {
		return h.Write(p.key, a.path()+"?wait=0", request(p, a, kit.Set("orchestrator_id", own), kit.Set("budget",
			number("0.3"))))
	}) {
		if got.Status == http.StatusAccepted {
			taken++
		} else {
			h.wantFailure(got, "TRANSFER_FAILED")
		}
	}
	h.Expect("3 of 10 jobs with the budget 0.3, paid by an account with 1")
	if taken != 3 {
		h.Failf("%d", taken)
	}
	before.wantMoved("-0.9", "0.9", "-0.9")
}
