package jobs

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// badOwners are values that are no owner_id.
func badOwners() []any {
	return append([]any{"", " ", ".a", "-a", "_a", "@a", "a b", "a/b", "ä", "a\n", "a#b", "a+b", nil,
		strings.Repeat("x", 129)}, kit.NotTexts...)
}

// jobsAccountChecks test accounts.
var jobsAccountChecks = []jobsCheck{
	{Number: "jobs.account.new", Title: "POST /accounts without a key makes a principal, whose key is in the answer",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			p := h.newPrincipal()
			a := h.wantStatus(h.Read(p.key, "/accounts/"+p.owner), http.StatusOK)
			h.Want(a.Text("owner_id") == p.owner && a.Members["api_key"] == nil && a.Members["balance"] != nil, a,
				`{"owner_id":%q,"balance":…}`, p.owner)
		}},
	{Number: "jobs.account.initial",
		Title: "The initial balances of a principal are what they ask for, until its initial credits are used up",
		Cites: `JOBS "Credits"; J-8, J-9`, Run: initialBalances},
	{Number: "jobs.account.again", Title: "POST /accounts again by the same principal is 201 with the account as it stands",
		Cites: `JOBS "Credits"; J-8`, Run: func(h *jobsProbe) {
			p := h.one()
			before := h.balance(p, p.owner)
			for _, body := range []kit.Message{{"owner_id": p.owner}, {"owner_id": p.owner, "initial_balance": 7}} {
				a := h.wantStatus(h.Write(p.key, "/accounts", body), http.StatusCreated)
				h.wantAmount(a, "balance", before)
				h.Want(a.Text("owner_id") == p.owner && a.Members["api_key"] == nil, a, "the owner_id, and no api_key")
			}
		}},
	{Number: "jobs.account.taken", Title: "POST /accounts for an account of another principal is 409",
		Cites: `JOBS "Who is who"; J-27`, Run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p)
			h.wantTaken(h.Write(other.key, "/accounts", kit.Message{"owner_id": p.owner}))
			h.wantTaken(h.Write("", "/accounts", kit.Message{"owner_id": p.owner}))
			before.wantMoved("0")
		}},
	{Number: "jobs.account.race", Title: "Of several principals that ask for one account at once, one gets it",
		Cites: `JOBS "Who is who"; J-27`, Run: func(h *jobsProbe) {
			p, other := h.two()
			body := kit.Message{"owner_id": kit.NewName(), "initial_balance": 0}
			owner := h.wantOneWinner(p, other, func(from *principal) kit.Answer { return h.Write(from.key, "/accounts", body) })
			owner.others = append(owner.others, body["owner_id"].(string))
			h.balance(owner, body["owner_id"].(string))
		}},
	{Number: "jobs.account.owner-id",
		Title: "An owner_id has 1 to 128 letters, digits and ._:@-, and begins with a letter or a digit",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			p := h.one()
			for i, owner := range []string{"K" + kit.NewName() + "._:@-", kit.NewName() + strings.Repeat("x",
				128-len(kit.NewName()))} {
				if len(p.others) > 6 {
					break // the principal has these accounts from earlier checks
				}
				a := h.wantStatus(h.Write(p.key, "/accounts", kit.Message{"owner_id": owner}), http.StatusCreated)
				h.Want(a.Text("owner_id") == owner, a, "the owner_id as it was given (%d)", i)
				p.others = append(p.others, owner)
			}
			for _, owner := range badOwners() {
				h.wantInvalid(h.Write(p.key, "/accounts", kit.Message{"owner_id": owner}))
			}
			h.wantInvalid(h.Write(p.key, "/accounts", kit.Message{}))
			h.wantInvalid(h.Write("", "/accounts", kit.Message{"owner_id": ""}))
			h.wantInvalid(h.Write("", "/accounts", kit.Message{}))
			for _, amount := range badAmounts() {
				h.wantInvalid(h.Write(p.key, "/accounts", rawNumber(kit.Message{"owner_id": p.owner}, "initial_balance", amount)))
			}
		}},
	{Number: "jobs.account.did", Title: "An owner_id that begins with did: is for that DID only",
		Cites: `JOBS "The HTTP interface"; J-27`, Run: func(h *jobsProbe) {
			p, did := h.one(), h.Actor("an agent with a DID").DID()
			for _, key := range []string{p.key, ""} {
				a := h.Write(key, "/accounts", kit.Message{"owner_id": did})
				h.Want(a.Status >= 400 && a.Status < 500 && a.Members["detail"] != nil, a, "refused: a status of 4xx")
				a = h.Write(key, "/register", registrationOf(newUUID(), did, kit.NewName(), usualPrice))
				h.Want(a.Status >= 400 && a.Status < 500 && a.Members["detail"] != nil, a, "refused: a status of 4xx")
			}
		}},
	{Number: "jobs.account.read",
		Title: "An account is shown to its principal; to others it is 403, and an unknown one is 404",
		Cites: `JOBS "Who is who"; J-28`, Run: func(h *jobsProbe) {
			p, other := h.two()
			second := h.account(p, 0)
			h.balance(p, p.owner)
			h.balance(p, second)
			for _, owner := range []string{p.owner, second} {
				a := h.Read(other.key, "/accounts/"+owner)
				h.wantForeign(a)
				h.Want(a.Members["balance"] == nil, a, "no balance")
				h.wantNoKey(h.Read("", "/accounts/"+owner))
			}
			h.wantUnknown(h.Read(other.key, "/accounts/"+kit.NewName()))
		}},
}

// wantOneWinner lets two principals send the same request at once, several times. All requests of one of them must get
// 201, and all others 409. It returns the one.
func (h *jobsProbe) wantOneWinner(p, other *principal, send func(from *principal) kit.Answer) *principal {
	both := []*principal{p, other}
	answers := h.InParallel(8, func(i int) kit.Answer { return send(both[i%2]) })
	winner := 0
	if answers[0].Status != http.StatusCreated {
		winner = 1
	}
	for i, a := range answers {
		if i%2 == winner {
			h.wantStatus(a, http.StatusCreated)
		} else {
			h.wantTaken(a)
		}
	}
	return both[winner]
}

// initialBalances makes a principal whose first account asks for 30 credits, and then asks for more than it can get.
func initialBalances(h *jobsProbe) {
	granted := h.one().initial // 100 credits, unless the registry gives less
	if granted > 100_000_000 {
		h.Expect("at most 100 credits without initial_balance")
		h.Failf("%s", credits(granted))
	}
	first := kit.NewName()
	a := h.wantStatus(h.Write("", "/accounts", kit.Message{"owner_id": first, "initial_balance": 30}), http.StatusCreated)
	p := &principal{key: a.Text("api_key"), owner: first}
	h.made = append(h.made, p)
	h.wantAmount(a, "balance", min(granted, 30_000_000))
	total := h.amount(a, "balance")
	records := h.movements(h.audit(p.key, ""))
	h.Expect("one record with the kind initial, from @issue to %s", first)
	if want := "initial @issue " + first + " " + credits(total); len(records) != 1 || records[0] != want {
		h.Failf("%q", records)
	}
	add := func(body kit.Message) int64 {
		p.others = append(p.others, kit.NewName())
		body["owner_id"] = p.others[len(p.others)-1]
		a := h.wantStatus(h.Write(p.key, "/accounts", body), http.StatusCreated)
		h.Want(a.Members["api_key"] == nil, a, "no second api_key")
		return h.amount(a, "balance")
	}
	h.Expect(`"initial_balance":0 gives nothing`)
	if n := add(kit.Message{"initial_balance": 0}); n != 0 {
		h.Failf("%s credits", credits(n))
	}
	rest := add(kit.Message{})
	h.Expect("at most 100 credits without initial_balance, and all that is left for this principal")
	if rest > 100_000_000 || total+rest < granted {
		h.Failf("%s credits, after %s", credits(rest), credits(total))
	}
	all := add(kit.Message{"initial_balance": 900_000_000})
	h.Expect("less than 900,000,000 credits, and no more when 100 have not been given before")
	if all >= 900_000_000_000_000 || rest < 100_000_000 && all != 0 {
		h.Failf("%s credits, after %s", credits(all), credits(total+rest))
	}
	if more := add(kit.Message{"initial_balance": 1}); more != 0 {
		h.Expect("the initial credits of the principal are used up")
		h.Failf("%s credits", credits(more))
	}
}

// rawNumber returns the text of a body with one more member, whose value is written as it is.
func rawNumber(body kit.Message, member, value string) []byte {
	return kit.SpliceMember(body, fmt.Sprintf("%q:%s", member, value))
}

// badAmounts returns texts of values that are no amounts.
func badAmounts() []string {
	return []string{"-0.1", "-0.000001", "0.0000001", "0.0000005", "0.1234567", "0.000001002", "1e9", "1000000000",
		"999999999.9999999", "1e300", `"0.1"`, "true", "[]", "{}"}
}

// jobsAmountChecks test amounts, by the prices of skills and by transfers.
var jobsAmountChecks = []jobsCheck{
	{Number: "jobs.amount.bounds",
		Title: "An amount is a number from 0 to less than 1,000,000,000 with six decimal places, else 422",
		Cites: `JOBS "The HTTP interface"; J-11`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, text := range []string{"0", "0.000001", "0.1", "999999999", "999999999.999999", "1e-6", "1e2", "1.50"} {
				h.wantPrice(a, text, mustMicros(text))
			}
			for _, text := range badAmounts() {
				h.wantInvalid(h.Write(a.key, "/register", priced(a, text)))
			}
			h.wantPriceOf(a, 1_500_000)
		}},
	{Number: "jobs.amount.noise", Title: "Float noise of at most 0.000000001 is rounded away",
		Cites: `JOBS "The HTTP interface"; J-12`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for text, want := range map[string]int64{"0.30000000000000004": 300_000, "0.7999999999999999": 800_000,
				"1.1102230246251565e-16": 0, "0.0000010005": 1, "0.0999999995": 100_000, "100.00000000000001": 100_000_000} {
				h.wantPrice(a, text, want)
			}
		}},
	{Number: "jobs.amount.form", Title: "Amounts in answers have the shortest decimal form",
		Cites: `JOBS "The HTTP interface"`, Run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for text, want := range map[string]string{"0.30000000000000004": "0.3", "100.0": "100", "1e-6": "0.000001",
				"1e8": "100000000", "0.10": "0.1", "0": "0", "12345.678901": "12345.678901"} {
				h.wantStatus(h.Write(a.key, "/register", priced(a, text)), http.StatusCreated)
				row := h.row(a)
				list, _ := row.List("skills")
				h.Want(len(list) == 1 && string(kit.ParseRow(list[0]).Members["cost_per_call"]) == want, row,
					`"cost_per_call":%s`, want)
			}
			got := h.Read(a.key, "/accounts/"+a.owner)
			h.Want(amountForm.Match(got.Members["balance"]), got, "a balance in the shortest decimal form")
		}},
	{Number: "jobs.amount.sums", Title: "Sums are exact: ten times 0.1 is 1, and 0.1 + 0.2 is 0.3",
		Cites: `JOBS "The HTTP interface"; J-12`, Run: func(h *jobsProbe) {
			p, other := h.two()
			moved := h.watch(p, other)
			for range 10 {
				h.paid(p, other, number("0.1"))
			}
			moved.wantMoved("-1", "1")
			sum := 0.1 // a variable, because constants are exact
			sum += 0.2
			h.paid(p, other, sum)
			moved.wantMoved("-1.3", "1.3")
			h.paid(p, other, number("0.000001"))
			moved.wantMoved("-1.300001", "1.300001")
		}},
}

// priced returns the text of a registration of an agent without an endpoint, with this price as it is written.
func priced(a *jobAgent, text string) []byte {
	body := registrationOf(a.id, a.owner, a.skill, "0.123456")
	return []byte(strings.Replace(string(kit.Canonical(body)), "0.123456", text, 1))
}

// wantPrice registers an agent again with this price. The registry must take it as so many millionths.
func (h *jobsProbe) wantPrice(a *jobAgent, text string, want int64) {
	h.wantStatus(h.Write(a.key, "/register", priced(a, text)), http.StatusCreated)
	h.wantPriceOf(a, want)
}

// wantPriceOf ends the check unless the only skill of an agent has this price.
func (h *jobsProbe) wantPriceOf(a *jobAgent, want int64) {
	row := h.row(a)
	list, _ := row.List("skills")
	h.Want(len(list) == 1, row, "one skill")
	h.wantAmount(kit.ParseRow(list[0]), "cost_per_call", want)
}
