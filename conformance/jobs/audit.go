package jobs

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// jobsAuditChecks test what the ledger shows.
var jobsAuditChecks = []jobsCheck{
	{Number: "jobs.audit.rows", Title: "/audit shows the caller's records with all their members, the newest last",
		Cites: `JOBS "Credits"`, Run: auditRows},
	{Number: "jobs.audit.filter", Title: "/audit filters by job_id and owner_id, and limit is 1 to 500",
		Cites: `JOBS "Credits"`, Run: func(h *jobsProbe) {
			p, other := h.two()
			own, id := h.account(p, 0), newUUID()
			for i := range 3 {
				h.transferred(p, transferOf(p.owner, own, number(fmt.Sprintf("0.0%d", i+1)), kit.Set("job_id", id)))
			}
			h.transferred(p, transferOf(p.owner, other.owner, number("0.09"), kit.Set("job_id", id)))
			for query, want := range map[string]int{"?job_id=" + id: 4, "?job_id=" + id + "&owner_id=" + p.owner: 4,
				"?job_id=" + id + "&owner_id=" + own: 3, "?job_id=" + id + "&limit=2": 2, "?job_id=" + id + "&limit=500": 4,
				"?job_id=" + newUUID(): 0} {
				rows := h.audit(p.key, query)
				h.Expect("%d records", want)
				if len(rows) != want {
					h.Failf("%s", kit.DescribeRows(rows))
				}
			}
			last := h.movements(h.audit(p.key, "?limit=1&job_id="+id))
			h.Expect("with limit=1 the newest record")
			if len(last) != 1 || !strings.HasSuffix(last[0], " 0.09") {
				h.Failf("%q", last)
			}
			for _, limit := range []string{"0", "501", "-1", "x", "1.5"} {
				h.wantInvalid(h.Read(p.key, "/audit?limit="+limit))
			}
		}},
	{Number: "jobs.audit.foreign",
		Title: "/audit shows a principal only its own records, and of another account those that they share",
		Cites: `JOBS "Credits"; JOBS "Jobs"; J-28`, Run: func(h *jobsProbe) {
			p, other, stranger := h.three()
			id := newUUID()
			own := h.account(p, 0)
			h.transferred(p, transferOf(p.owner, own, number("0.01"), kit.Set("job_id", id)))
			h.transferred(p, transferOf(p.owner, other.owner, number("0.02"), kit.Set("job_id", id)))
			shared := []string{"transfer " + p.owner + " " + other.owner + " 0.02"}
			for key, want := range map[string][]string{stranger.key: nil, other.key: shared} {
				for _, query := range []string{"?job_id=" + id, "?job_id=" + id + "&owner_id=" + p.owner} {
					got := h.movements(h.audit(key, query))
					h.Expect("the records %q", want)
					if !slices.Equal(got, want) {
						h.Failf("%q", got)
					}
				}
				for _, query := range []string{"?limit=500", "?limit=500&owner_id=" + p.owner} {
					h.WantNoText(h.Read(key, "/audit"+query), "nothing of another principal's account", own)
				}
			}
		}},
	{Number: "jobs.audit.sums", Title: "The records of an account add up to its balance", Cites: `JOBS "Credits"; J-2`,
		Run: auditSums},
	{Number: "jobs.economy", Title: "/economy has the totals, and only the balances of the caller",
		Cites: `JOBS "The HTTP interface"; JOBS "Credits"; J-28`, Run: func(h *jobsProbe) {
			p, other := h.two()
			own := h.account(p, 0)
			before := h.wantStatus(h.Read("", "/economy"), http.StatusOK)
			h.paid(p, other, number("0.25"))
			a := h.wantStatus(h.Read(p.key, "/economy"), http.StatusOK)
			h.Want(a.Number("total_accounts") >= 3 && a.Number("total_transactions") > before.Number("total_transactions"), a,
				"total_accounts, and one more of total_transactions than %v", before.Number("total_transactions"))
			h.Want(h.amount(a, "total_volume") >= h.amount(before, "total_volume")+250_000, a,
				"a total_volume that is larger by 0.25 than %s", credits(h.amount(before, "total_volume")))
			balances := a.Object("all_balances")
			h.wantAmount(balances, p.owner, h.balance(p, p.owner))
			h.wantAmount(balances, own, h.balance(p, own))
			h.Want(balances.Members[other.owner] == nil, a, "no balance of another principal")
			for _, got := range []kit.Answer{before, h.wantStatus(h.Read(other.key, "/economy"), http.StatusOK)} {
				h.WantNoText(got, "no balance of another principal", p.owner, own)
				h.Want(got.Members["all_balances"] != nil, got, "all_balances")
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
	h.Expect("the records of the job and of the transfer, in their order")
	if len(rows) < 4 {
		h.Failf("%s", kit.DescribeRows(rows))
	}
	for _, row := range rows {
		h.Want(uuidForm.MatchString(row.Text("transfer_id")) && jobsTimeForm.MatchString(row.Text("timestamp_utc")) &&
			row.Members["job_id"] != nil && row.Text("from_owner") != "" && row.Text("to_owner") != "", row,
			`{"transfer_id":…,"from_owner":…,"to_owner":…,"amount":…,"job_id":…,"timestamp_utc":…,"kind":…}`)
	}
	newest := rows[len(rows)-1]
	h.Want(newest.Text("transfer_id") == body["transfer_id"] && newest.Text("job_id") == body["job_id"], newest,
		"the transfer is the newest record, and the last one")
	first := rows[len(rows)-4]
	h.Want(first.Text("kind") == "hold" && first.Text("job_id") == j.id, first, "the hold of the job is three before it")
}

func auditSums(h *jobsProbe) {
	p, a := h.pair()
	own := kit.NewName()
	h.wantStatus(h.Write(p.key, "/accounts", kit.Message{"owner_id": own, "initial_balance": 0}), http.StatusCreated)
	p.others = append(p.others, own)
	h.paidFrom(p, p.owner, own, 3)
	for i, change := range []func(*job) kit.Message{func(j *job) kit.Message { return successOf(j) },
		func(j *job) kit.Message { return failureOf(j) },
		func(j *job) kit.Message { return successOf(j, kit.Set("execution_cost", number("0.033333"))) }} {
		j := h.hire(p, a, kit.Set("orchestrator_id", own), kit.Set("budget", number(fmt.Sprintf("0.%d", i+3))))
		h.finish(j, change(j))
	}
	h.paidFrom(p, own, a.owner, number("0.123456"))
	h.paidFrom(a.principal, a.owner, own, number("0.000001"))
	h.hire(p, a, kit.Set("orchestrator_id", own))
	rows := h.audit(p.key, "?limit=500&owner_id="+own)
	sum := int64(0)
	kinds := map[string]bool{}
	for _, row := range rows {
		n := h.amount(row, "amount")
		if row.Text("to_owner") == own {
			sum += n
		}
		if row.Text("from_owner") == own {
			sum -= n
		}
		kinds[row.Text("kind")] = true
	}
	h.Expect("records whose sum is the balance %s", credits(h.balance(p, own)))
	if sum != h.balance(p, own) {
		h.Failf("the sum is %s:\n%s", credits(sum), kit.DescribeRows(rows))
	}
	h.Expect("records of the kinds hold, refund and transfer")
	if !kinds["hold"] || !kinds["refund"] || !kinds["transfer"] {
		h.Failf("%v", kinds)
	}
}

// jobsOperatorChecks test what only the operator may do.
var jobsOperatorChecks = []jobsCheck{
	{Number: "jobs.operator.grant", Title: "A grant gives credits to an account, and a repeat of it gives nothing",
		Cites: `JOBS "Credits"; J-8, J-10`, Needs: kit.NeedsOperator, Run: func(h *jobsProbe) {
			p := h.one()
			before := h.watch(p)
			id := newUUID()
			for range 2 {
				a := h.wantStatus(h.grant(id, p.owner, number("0.25")), http.StatusCreated)
				h.Want(a.Text("kind") == "grant" && a.Text("to_owner") == p.owner && a.Text("from_owner") == "@issue", a,
					`the record with "kind":"grant","from_owner":"@issue","to_owner":%q`, p.owner)
				h.wantAmount(a, "amount", 250_000)
			}
			before.wantMoved("0.25")
			for _, a := range h.InParallel(6, func(int) kit.Answer { return h.grant(id, p.owner, number("0.25")) }) {
				h.wantStatus(a, http.StatusCreated)
			}
			h.wantTaken(h.grant(id, p.owner, number("0.26")))
			h.wantTaken(h.grant(id, h.account(p, 0), number("0.25")))
			before.wantMoved("0.25")
		}},
	{Number: "jobs.operator.supply", Title: "A grant beyond the supply is 409 and gives nothing",
		Cites: `JOBS "Credits"; J-9`, Needs: kit.NeedsOperator, Run: func(h *jobsProbe) {
			p := h.one()
			before := h.watch(p)
			h.wantTaken(h.grant(newUUID(), p.owner, number("999999999.999999")))
			before.wantMoved("0")
		}},
	{Number: "jobs.operator.refused", Title: "A grant needs the operator's key, a known account and good fields",
		Cites: `JOBS "Credits"; JOBS "Jobs"; G-10`, Needs: kit.NeedsOperator, Run: func(h *jobsProbe) {
			p := h.one()
			before := h.watch(p)
			body := kit.Message{"grant_id": newUUID(), "owner_id": p.owner, "amount": 1}
			h.wantForeign(h.Write(p.key, "/operator/grants", body))
			h.wantNoKey(h.Write("", "/operator/grants", body))
			h.wantUnknown(h.grant(newUUID(), kit.NewName(), 1))
			for _, change := range []func(kit.Message){kit.Set("grant_id", "x"), kit.Set("grant_id", 1), kit.Without("owner_id"),
				kit.Set("owner_id", ""), kit.Without("amount"), kit.Set("amount", -1), kit.Set("amount", "1"), kit.Set("amount",
					number("0.0000001"))} {
				bad := kit.With(body, "x", kit.Nothing)
				change(bad)
				h.wantInvalid(h.Write(h.registry.OperatorKey, "/operator/grants", bad))
			}
			before.wantMoved("0")
		}},
	{Number: "jobs.operator.reads", Title: "The operator sees every account and every record",
		Cites: `JOBS "The HTTP interface"`, Needs: kit.NeedsOperator, Run: func(h *jobsProbe) {
			p := h.one()
			body := transferOf(p.owner, h.account(p, 0), number("0.25"))
			h.transferred(p, body)
			for _, query := range []string{"?job_id=" + body["job_id"].(string), "?owner_id=" + p.owner + "&limit=500"} {
				rows := h.audit(h.registry.OperatorKey, query)
				h.Expect("the transfer %s", body["transfer_id"])
				if !slices.ContainsFunc(rows, func(row kit.Answer) bool { return row.Text("transfer_id") == body["transfer_id"] }) {
					h.Failf("%s", kit.DescribeRows(rows))
				}
			}
			a := h.wantStatus(h.Read(h.registry.OperatorKey, "/accounts/"+p.owner), http.StatusOK)
			h.wantAmount(a, "balance", h.balance(p, p.owner))
		}},
	{Number: "jobs.operator.purpose", Title: "The operator's key is refused where only a principal is the caller",
		Cites: `GATEWAYS "Keys of callers"; G-10`, Needs: kit.NeedsOperator, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			j := h.hire(hirer, a)
			key, before := h.registry.OperatorKey, h.watch(hirer)
			for _, got := range []kit.Answer{h.transfer(&principal{key: key}, transferOf(hirer.owner, a.owner, 1)),
				h.Write(key, "/heartbeat", kit.Message{"agent_id": a.id}), h.Remove(key, "/agents/"+a.id),
				h.Read(key, "/agents/"+a.id+"/jobs"), h.Write(key, "/agents/"+a.id+"/results", successOf(j))} {
				h.wantForeign(got)
			}
			before.wantMoved("0")
			h.dispatch(a, j)
		}},
}
