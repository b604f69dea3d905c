package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// jobsAuditChecks test what the ledger shows.
var jobsAuditChecks = []jobsCheck{
	{number: "jobs.audit.rows", title: "/audit shows the caller's records with all their members, the newest last",
		cites: `JOBS "Credits"`, run: auditRows},
	{number: "jobs.audit.filter", title: "/audit filters by job_id and owner_id, and limit is 1 to 500",
		cites: `JOBS "Credits"`, run: func(h *jobsProbe) {
			p, other := h.two()
			own, id := h.account(p, 0), newUUID()
			for i := range 3 {
				h.transferred(p, transferOf(p.owner, own, number(fmt.Sprintf("0.0%d", i+1)), set("job_id", id)))
			}
			h.transferred(p, transferOf(p.owner, other.owner, number("0.09"), set("job_id", id)))
			for query, want := range map[string]int{"?job_id=" + id: 4, "?job_id=" + id + "&owner_id=" + p.owner: 4,
				"?job_id=" + id + "&owner_id=" + own: 3, "?job_id=" + id + "&limit=2": 2, "?job_id=" + id + "&limit=500": 4,
				"?job_id=" + newUUID(): 0} {
				rows := h.audit(p.key, query)
				h.expect("%d records", want)
				if len(rows) != want {
					h.failf("%s", describeRows(rows))
				}
			}
			last := h.movements(h.audit(p.key, "?limit=1&job_id="+id))
			h.expect("with limit=1 the newest record")
			if len(last) != 1 || !strings.HasSuffix(last[0], " 0.09") {
				h.failf("%q", last)
			}
			for _, limit := range []string{"0", "501", "-1", "x", "1.5"} {
				h.wantInvalid(h.read(p.key, "/audit?limit="+limit))
			}
		}},
	{number: "jobs.audit.foreign",
		title: "/audit shows a principal only its own records, and of another account those that they share",
		cites: `JOBS "Credits"; JOBS "Jobs"; J-28`, run: func(h *jobsProbe) {
			p, other, stranger := h.three()
			id := newUUID()
			own := h.account(p, 0)
			h.transferred(p, transferOf(p.owner, own, number("0.01"), set("job_id", id)))
			h.transferred(p, transferOf(p.owner, other.owner, number("0.02"), set("job_id", id)))
			shared := []string{"transfer " + p.owner + " " + other.owner + " 0.02"}
			for key, want := range map[string][]string{stranger.key: nil, other.key: shared} {
				for _, query := range []string{"?job_id=" + id, "?job_id=" + id + "&owner_id=" + p.owner} {
					got := h.movements(h.audit(key, query))
					h.expect("the records %q", want)
					if !slices.Equal(got, want) {
						h.failf("%q", got)
					}
				}
				for _, query := range []string{"?limit=500", "?limit=500&owner_id=" + p.owner} {
					h.wantNoText(h.read(key, "/audit"+query), "nothing of another principal's account", own)
				}
			}
		}},
	{number: "jobs.audit.sums", title: "The records of an account add up to its balance", cites: `JOBS "Credits"; J-2`,
		run: auditSums},
	{number: "jobs.economy", title: "/economy has the totals, and only the balances of the caller",
		cites: `JOBS "The HTTP interface"; JOBS "Credits"; J-28`, run: func(h *jobsProbe) {
			p, other := h.two()
			own := h.account(p, 0)
			before := h.wantStatus(h.read("", "/economy"), http.StatusOK)
			h.paid(p, other, number("0.25"))
			a := h.wantStatus(h.read(p.key, "/economy"), http.StatusOK)
			h.want(a.number("total_accounts") >= 3 && a.number("total_transactions") > before.number("total_transactions"), a,
				"total_accounts, and one more of total_transactions than %v", before.number("total_transactions"))
			h.want(h.amount(a, "total_volume") >= h.amount(before, "total_volume")+250_000, a,
				"a total_volume that is larger by 0.25 than %s", credits(h.amount(before, "total_volume")))
			balances := a.object("all_balances")
			h.wantAmount(balances, p.owner, h.balance(p, p.owner))
			h.wantAmount(balances, own, h.balance(p, own))
			h.want(balances.members[other.owner] == nil, a, "no balance of another principal")
			for _, got := range []answer{before, h.wantStatus(h.read(other.key, "/economy"), http.StatusOK)} {
				h.wantNoText(got, "no balance of another principal", p.owner, own)
				h.want(got.members["all_balances"] != nil, got, "all_balances")
			}
		}},
}

func auditRows(h *jobsProbe) {
	hirer, a := h.pair()
	j := h.hire(hirer, a)
	h.finish(j, successOf(j))
	body := transferOf(hirer.owner, h.account(hirer, 0), number("0.25"))
	h.transferred(hirer, body)
	rows := h.audit(hirer.key, "")
	h.expect("the records of the job and of the transfer, in their order")
	if len(rows) < 4 {
		h.failf("%s", describeRows(rows))
	}
	for _, row := range rows {
		h.want(uuidForm.MatchString(row.text("transfer_id")) && jobsTimeForm.MatchString(row.text("timestamp_utc")) &&
			row.members["job_id"] != nil && row.text("from_owner") != "" && row.text("to_owner") != "", row,
			`{"transfer_id":…,"from_owner":…,"to_owner":…,"amount":…,"job_id":…,"timestamp_utc":…,"kind":…}`)
	}
	newest := rows[len(rows)-1]
	h.want(newest.text("transfer_id") == body["transfer_id"] && newest.text("job_id") == body["job_id"], newest,
		"the transfer is the newest record, and the last one")
	first := rows[len(rows)-4]
	h.want(first.text("kind") == "hold" && first.text("job_id") == j.id, first, "the hold of the job is three before it")
}

func auditSums(h *jobsProbe) {
	p, a := h.pair()
	own := newName()
	h.wantStatus(h.write(p.key, "/accounts", message{"owner_id": own, "initial_balance": 0}), http.StatusCreated)
	p.others = append(p.others, own)
	h.paidFrom(p, p.owner, own, 3)
	for i, change := range []func(*job) message{func(j *job) message { return successOf(j) },
		func(j *job) message { return failureOf(j) },
		func(j *job) message { return successOf(j, set("execution_cost", number("0.033333"))) }} {
		j := h.hire(p, a, set("orchestrator_id", own), set("budget", number(fmt.Sprintf("0.%d", i+3))))
		h.finish(j, change(j))
	}
	h.paidFrom(p, own, a.owner, number("0.123456"))
	h.paidFrom(a.principal, a.owner, own, number("0.000001"))
	h.hire(p, a, set("orchestrator_id", own))
	rows := h.audit(p.key, "?limit=500&owner_id="+own)
	sum := int64(0)
	kinds := map[string]bool{}
	for _, row := range rows {
		n := h.amount(row, "amount")
		if row.text("to_owner") == own {
			sum += n
		}
		if row.text("from_owner") == own {
			sum -= n
		}
		kinds[row.text("kind")] = true
	}
	h.expect("records whose sum is the balance %s", credits(h.balance(p, own)))
	if sum != h.balance(p, own) {
		h.failf("the sum is %s:\n%s", credits(sum), describeRows(rows))
	}
	h.expect("records of the kinds hold, refund and transfer")
	if !kinds["hold"] || !kinds["refund"] || !kinds["transfer"] {
		h.failf("%v", kinds)
	}
}

// jobsOperatorChecks test what only the operator may do.
var jobsOperatorChecks = []jobsCheck{
	{number: "jobs.operator.grant", title: "A grant gives credits to an account, and a repeat of it gives nothing",
		cites: `JOBS "Credits"; J-8, J-10`, needs: needsOperator, run: func(h *jobsProbe) {
			p := h.one()
			before := h.watch(p)
			id := newUUID()
			for range 2 {
				a := h.wantStatus(h.grant(id, p.owner, number("0.25")), http.StatusCreated)
				h.want(a.text("kind") == "grant" && a.text("to_owner") == p.owner && a.text("from_owner") == "@issue", a,
					`the record with "kind":"grant","from_owner":"@issue","to_owner":%q`, p.owner)
				h.wantAmount(a, "amount", 250_000)
			}
			before.wantMoved("0.25")
			for _, a := range h.inParallel(6, func(int) answer { return h.grant(id, p.owner, number("0.25")) }) {
				h.wantStatus(a, http.StatusCreated)
			}
			h.wantTaken(h.grant(id, p.owner, number("0.26")))
			h.wantTaken(h.grant(id, h.account(p, 0), number("0.25")))
			before.wantMoved("0.25")
		}},
	{number: "jobs.operator.supply", title: "A grant beyond the supply is 409 and gives nothing",
		cites: `JOBS "Credits"; J-9`, needs: needsOperator, run: func(h *jobsProbe) {
			p := h.one()
			before := h.watch(p)
			h.wantTaken(h.grant(newUUID(), p.owner, number("999999999.999999")))
			before.wantMoved("0")
		}},
	{number: "jobs.operator.refused", title: "A grant needs the operator's key, a known account and good fields",
		cites: `JOBS "Credits"; JOBS "Jobs"; G-10`, needs: needsOperator, run: func(h *jobsProbe) {
			p := h.one()
			before := h.watch(p)
			body := message{"grant_id": newUUID(), "owner_id": p.owner, "amount": 1}
			h.wantForeign(h.write(p.key, "/operator/grants", body))
			h.wantNoKey(h.write("", "/operator/grants", body))
			h.wantUnknown(h.grant(newUUID(), newName(), 1))
			for _, change := range []func(message){set("grant_id", "x"), set("grant_id", 1), without("owner_id"),
				set("owner_id", ""), without("amount"), set("amount", -1), set("amount", "1"), set("amount", number("0.0000001"))} {
				bad := with(body, "x", nothing)
				change(bad)
				h.wantInvalid(h.write(h.registry.OperatorKey, "/operator/grants", bad))
			}
			before.wantMoved("0")
		}},
	{number: "jobs.operator.reads", title: "The operator sees every account and every record",
		cites: `JOBS "The HTTP interface"`, needs: needsOperator, run: func(h *jobsProbe) {
			p := h.one()
			body := transferOf(p.owner, h.account(p, 0), number("0.25"))
			h.transferred(p, body)
			for _, query := range []string{"?job_id=" + body["job_id"].(string), "?owner_id=" + p.owner + "&limit=500"} {
				rows := h.audit(h.registry.OperatorKey, query)
				h.expect("the transfer %s", body["transfer_id"])
				if !slices.ContainsFunc(rows, func(row answer) bool { return row.text("transfer_id") == body["transfer_id"] }) {
					h.failf("%s", describeRows(rows))
				}
			}
			a := h.wantStatus(h.read(h.registry.OperatorKey, "/accounts/"+p.owner), http.StatusOK)
			h.wantAmount(a, "balance", h.balance(p, p.owner))
		}},
	{number: "jobs.operator.purpose", title: "The operator's key is refused where only a principal is the caller",
		cites: `GATEWAYS "Keys of callers"; G-10`, needs: needsOperator, run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			key, before := h.registry.OperatorKey, h.watch(hirer)
			for _, got := range []answer{h.transfer(&principal{key: key}, transferOf(hirer.owner, a.owner, 1)),
				h.write(key, "/heartbeat", message{"agent_id": a.id}), h.remove(key, "/agents/"+a.id),
				h.read(key, "/agents/"+a.id+"/jobs"), h.write(key, "/agents/"+a.id+"/results", successOf(j))} {
				h.wantForeign(got)
			}
			before.wantMoved("0")
			h.dispatch(a, j)
		}},
}
