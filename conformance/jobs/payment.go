package jobs

import (
	"net/http"

	"github.com/agora-relay/agora/conformance/kit"
)

// jobsPaymentChecks test what a job costs, and who pays.
var jobsPaymentChecks = []jobsCheck{
	{Number: "jobs.pay.escrow", Title: "The budget is held while a job runs; the end pays the agent and refunds the rest",
		Cites: `JOBS "Credits"; JOBS "Jobs"; J-2, J-7`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			before.wantMoved("-0.15", "0")
			hold := "hold " + hirer.owner + " @escrow 0.15"
			h.wantRecords(j, hold)
			h.dispatch(a, j)
			before.wantMoved("-0.15", "0")
			h.reported(j, successOf(j))
			before.wantMoved("-0.1", "0.1")
			h.wantRecords(j, hold, "settle @escrow "+a.owner+" 0.1", "refund @escrow "+hirer.owner+" 0.05")
		}},
	{Number: "jobs.pay.refund", Title: "A FAILURE refunds the whole budget", Cites: `JOBS "Jobs"; J-7, J-21`,
		Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			got := h.finish(j, failureOf(j, kit.Set("execution_cost", number("0.1"))))
			h.wantAmount(got, "execution_cost", 0)
			before.wantMoved("0", "0")
			h.wantRecords(j, "hold "+hirer.owner+" @escrow 0.15", "refund @escrow "+hirer.owner+" 0.15")
		}},
	{Number: "jobs.pay.cost",
		Title: "SUCCESS pays execution_cost, but no more than the price, and the price if there is no execution_cost",
		Cites: `JOBS "Jobs"`, Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			for _, c := range []struct {
				change func(kit.Message)
				paid   string
			}{
				{kit.Set("execution_cost", number("0.04")), "0.04"}, {kit.Set("execution_cost", number("0.000001")), "0.000001"},
				{kit.Set("execution_cost", 0), "0"}, {kit.Set("execution_cost", number("0.15")), "0.1"},
				{kit.Set("execution_cost", 5000), "0.1"}, {kit.Without("execution_cost"), "0.1"},
				{kit.Set("execution_cost", number("0.07000000000000001")), "0.07"},
			} {
				before := h.watch(hirer, a.principal)
				j := h.hire(hirer, a)
				got := h.finish(j, successOf(j, c.change))
				h.wantAmount(got, "execution_cost", mustMicros(c.paid))
				before.wantMoved("-"+c.paid, c.paid)
			}
		}},
	{Number: "jobs.pay.price", Title: "A job has the price of the moment when it was made", Cites: `JOBS "Jobs"`,
		Run: func(h *jobsProbe) {
			hirer, a := h.pair()
			before := h.watch(hirer, a.principal)
			j := h.hire(hirer, a)
			h.wantStatus(h.register(a, a.key, kit.Set("skills", []any{skillOf(a.skill, "0.14")})), http.StatusCreated)
			h.finish(j, successOf(j, kit.Set("execution_cost", number("0.14"))))
			before.wantMoved("-0.1", "0.1")
			h.wantFailure(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("budget", number("0.13")))),
				"BUDGET_INSUFFICIENT")
		}},
	{Number: "jobs.pay.orchestrator",
		Title: "orchestrator_id chooses the account: of the hirer's agent, or of that name, else the oldest that can pay",
		Cites: `JOBS "Jobs"; J-27`, Run: payers},
	{Number: "jobs.pay.within", Title: "A job within one principal and one account is held and refunded",
		Cites: `JOBS "Jobs"`, Run: func(h *jobsProbe) {
			p := h.one()
			a := h.agent(p)
			before := h.watch(p)
			j := h.hire(p, a)
			before.wantMoved("-0.15")
			h.finish(j, successOf(j))
			before.wantMoved("0")
		}},
}

func payers(h *jobsProbe) {
	hirer, a := h.pair()
	second := h.account(hirer, 0)
	h.paidFrom(hirer, hirer.owner, second, number("1"))
	own := h.agent(hirer, kit.Set("owner_id", second))
	empty := h.account(hirer, 1)
	h.drain(hirer, empty)
	pays := func(orchestrator, first, other string) {
		before := h.watch(hirer, a.principal).add(hirer, second)
		h.hire(hirer, a, kit.Set("orchestrator_id", orchestrator))
		before.wantMoved(first, "0", other)
	}
	pays(own.id, "0", "-0.15")                 // the owner of the hirer's agent
	pays(second, "0", "-0.15")                 // the account of that name
	pays("nobody in particular", "-0.15", "0") // the oldest account
	pays(a.id, "-0.15", "0")                   // an agent of another principal
	pays(a.principal.owner, "-0.15", "0")      // an account of another principal
	h.wantFailure(h.Write(hirer.key, a.path()+"?wait=0", request(hirer, a, kit.Set("orchestrator_id", empty))),
		"TRANSFER_FAILED")
	rest := credits(h.balance(hirer, hirer.owner))
	h.paidFrom(hirer, hirer.owner, second, number(rest))
	pays("nobody in particular", "0", "-0.15") // the oldest account has nothing left
	h.paidFrom(hirer, second, hirer.owner, number(rest))
}

// drain moves all credits of an account of p to its oldest account.
func (h *jobsProbe) drain(p *principal, owner string) {
	if n := h.balance(p, owner); n > 0 {
		h.paidFrom(p, owner, p.owner, number(credits(n)))
	}
}
