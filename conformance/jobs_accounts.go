package conformance

import (
	"fmt"
	"net/http"
	"strings"
)

// badOwners are values that are no owner_id.
func badOwners() []any {
	return append([]any{"", " ", ".a", "-a", "_a", "@a", "a b", "a/b", "ä", "a\n", "a#b", "a+b", nil,
		strings.Repeat("x", 129)}, notTexts...)
}

// jobsAccountChecks test accounts.
var jobsAccountChecks = []jobsCheck{
	{number: "jobs.account.new", title: "POST /accounts without a key makes a principal, whose key is in the answer",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			p := h.newPrincipal()
			a := h.wantStatus(h.read(p.key, "/accounts/"+p.owner), http.StatusOK)
			h.want(a.text("owner_id") == p.owner && a.members["api_key"] == nil && a.members["balance"] != nil, a,
				`{"owner_id":%q,"balance":…}`, p.owner)
		}},
	{number: "jobs.account.initial",
		title: "The initial balances of a principal are what they ask for, until its initial credits are used up",
		cites: `JOBS "Credits"; J-8, J-9`, run: initialBalances},
	{number: "jobs.account.again", title: "POST /accounts again by the same principal is 201 with the account as it stands",
		cites: `JOBS "Credits"; J-8`, run: func(h *jobsProbe) {
			p := h.one()
			before := h.balance(p, p.owner)
			for _, body := range []message{{"owner_id": p.owner}, {"owner_id": p.owner, "initial_balance": 7}} {
				a := h.wantStatus(h.write(p.key, "/accounts", body), http.StatusCreated)
				h.wantAmount(a, "balance", before)
				h.want(a.text("owner_id") == p.owner && a.members["api_key"] == nil, a, "the owner_id, and no api_key")
			}
		}},
	{number: "jobs.account.taken", title: "POST /accounts for an account of another principal is 409",
		cites: `JOBS "Who is who"; J-27`, run: func(h *jobsProbe) {
			p, other := h.two()
			before := h.watch(p)
			h.wantTaken(h.write(other.key, "/accounts", message{"owner_id": p.owner}))
			h.wantTaken(h.write("", "/accounts", message{"owner_id": p.owner}))
			before.wantMoved("0")
		}},
	{number: "jobs.account.race", title: "Of several principals that ask for one account at once, one gets it",
		cites: `JOBS "Who is who"; J-27`, run: func(h *jobsProbe) {
			p, other := h.two()
			body := message{"owner_id": newName(), "initial_balance": 0}
			owner := h.wantOneWinner(p, other, func(from *principal) answer { return h.write(from.key, "/accounts", body) })
			owner.others = append(owner.others, body["owner_id"].(string))
			h.balance(owner, body["owner_id"].(string))
		}},
	{number: "jobs.account.owner-id",
		title: "An owner_id has 1 to 128 letters, digits and ._:@-, and begins with a letter or a digit",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			p := h.one()
			for i, owner := range []string{"K" + newName() + "._:@-", newName() + strings.Repeat("x", 128-len(newName()))} {
				if len(p.others) > 6 {
					break // the principal has these accounts from earlier checks
				}
				a := h.wantStatus(h.write(p.key, "/accounts", message{"owner_id": owner}), http.StatusCreated)
				h.want(a.text("owner_id") == owner, a, "the owner_id as it was given (%d)", i)
				p.others = append(p.others, owner)
			}
			for _, owner := range badOwners() {
				h.wantInvalid(h.write(p.key, "/accounts", message{"owner_id": owner}))
			}
			h.wantInvalid(h.write(p.key, "/accounts", message{}))
			h.wantInvalid(h.write("", "/accounts", message{"owner_id": ""}))
			h.wantInvalid(h.write("", "/accounts", message{}))
			for _, amount := range badAmounts() {
				h.wantInvalid(h.write(p.key, "/accounts", rawNumber(message{"owner_id": p.owner}, "initial_balance", amount)))
			}
		}},
	{number: "jobs.account.did", title: "An owner_id that begins with did: is for that DID only",
		cites: `JOBS "The HTTP interface"; J-27`, run: func(h *jobsProbe) {
			p, did := h.one(), h.actor("an agent with a DID").did()
			for _, key := range []string{p.key, ""} {
				a := h.write(key, "/accounts", message{"owner_id": did})
				h.want(a.status >= 400 && a.status < 500 && a.members["detail"] != nil, a, "refused: a status of 4xx")
				a = h.write(key, "/register", registrationOf(newUUID(), did, newName(), usualPrice))
				h.want(a.status >= 400 && a.status < 500 && a.members["detail"] != nil, a, "refused: a status of 4xx")
			}
		}},
	{number: "jobs.account.read",
		title: "An account is shown to its principal; to others it is 403, and an unknown one is 404",
		cites: `JOBS "Who is who"; J-28`, run: func(h *jobsProbe) {
			p, other := h.two()
			second := h.account(p, 0)
			h.balance(p, p.owner)
			h.balance(p, second)
			for _, owner := range []string{p.owner, second} {
				a := h.read(other.key, "/accounts/"+owner)
				h.wantForeign(a)
				h.want(a.members["balance"] == nil, a, "no balance")
				h.wantNoKey(h.read("", "/accounts/"+owner))
			}
			h.wantUnknown(h.read(other.key, "/accounts/"+newName()))
		}},
}

// wantOneWinner lets two principals send the same request at once, several times. All requests of one of them must get
// 201, and all others 409. It returns the one.
func (h *jobsProbe) wantOneWinner(p, other *principal, send func(from *principal) answer) *principal {
	both := []*principal{p, other}
	answers := h.inParallel(8, func(i int) answer { return send(both[i%2]) })
	winner := 0
	if answers[0].status != http.StatusCreated {
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
		h.expect("at most 100 credits without initial_balance")
		h.failf("%s", credits(granted))
	}
	first := newName()
	a := h.wantStatus(h.write("", "/accounts", message{"owner_id": first, "initial_balance": 30}), http.StatusCreated)
	p := &principal{key: a.text("api_key"), owner: first}
	h.made = append(h.made, p)
	h.wantAmount(a, "balance", min(granted, 30_000_000))
	total := h.amount(a, "balance")
	records := h.movements(h.audit(p.key, ""))
	h.expect("one record with the kind initial, from @issue to %s", first)
	if want := "initial @issue " + first + " " + credits(total); len(records) != 1 || records[0] != want {
		h.failf("%q", records)
	}
	add := func(body message) int64 {
		p.others = append(p.others, newName())
		body["owner_id"] = p.others[len(p.others)-1]
		a := h.wantStatus(h.write(p.key, "/accounts", body), http.StatusCreated)
		h.want(a.members["api_key"] == nil, a, "no second api_key")
		return h.amount(a, "balance")
	}
	h.expect(`"initial_balance":0 gives nothing`)
	if n := add(message{"initial_balance": 0}); n != 0 {
		h.failf("%s credits", credits(n))
	}
	rest := add(message{})
	h.expect("at most 100 credits without initial_balance, and all that is left for this principal")
	if rest > 100_000_000 || total+rest < granted {
		h.failf("%s credits, after %s", credits(rest), credits(total))
	}
	all := add(message{"initial_balance": 900_000_000})
	h.expect("less than 900,000,000 credits, and no more when 100 have not been given before")
	if all >= 900_000_000_000_000 || rest < 100_000_000 && all != 0 {
		h.failf("%s credits, after %s", credits(all), credits(total+rest))
	}
	if more := add(message{"initial_balance": 1}); more != 0 {
		h.expect("the initial credits of the principal are used up")
		h.failf("%s credits", credits(more))
	}
}

// rawNumber returns the text of a body with one more member, whose value is written as it is.
func rawNumber(body message, member, value string) []byte {
	return spliceMember(body, fmt.Sprintf("%q:%s", member, value))
}

// badAmounts returns texts of values that are no amounts.
func badAmounts() []string {
	return []string{"-0.1", "-0.000001", "0.0000001", "0.0000005", "0.1234567", "0.000001002", "1e9", "1000000000",
		"999999999.9999999", "1e300", `"0.1"`, "true", "[]", "{}"}
}

// jobsAmountChecks test amounts, by the prices of skills and by transfers.
var jobsAmountChecks = []jobsCheck{
	{number: "jobs.amount.bounds",
		title: "An amount is a number from 0 to less than 1,000,000,000 with six decimal places, else 422",
		cites: `JOBS "The HTTP interface"; J-11`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for _, text := range []string{"0", "0.000001", "0.1", "999999999", "999999999.999999", "1e-6", "1e2", "1.50"} {
				h.wantPrice(a, text, mustMicros(text))
			}
			for _, text := range badAmounts() {
				h.wantInvalid(h.write(a.key, "/register", priced(a, text)))
			}
			h.wantPriceOf(a, 1_500_000)
		}},
	{number: "jobs.amount.noise", title: "Float noise of at most 0.000000001 is rounded away",
		cites: `JOBS "The HTTP interface"; J-12`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for text, want := range map[string]int64{"0.30000000000000004": 300_000, "0.7999999999999999": 800_000,
				"1.1102230246251565e-16": 0, "0.0000010005": 1, "0.0999999995": 100_000, "100.00000000000001": 100_000_000} {
				h.wantPrice(a, text, want)
			}
		}},
	{number: "jobs.amount.form", title: "Amounts in answers have the shortest decimal form",
		cites: `JOBS "The HTTP interface"`, run: func(h *jobsProbe) {
			a := h.agent(h.one())
			for text, want := range map[string]string{"0.30000000000000004": "0.3", "100.0": "100", "1e-6": "0.000001",
				"1e8": "100000000", "0.10": "0.1", "0": "0", "12345.678901": "12345.678901"} {
				h.wantStatus(h.write(a.key, "/register", priced(a, text)), http.StatusCreated)
				row := h.row(a)
				list, _ := row.list("skills")
				h.want(len(list) == 1 && string(parseRow(list[0]).members["cost_per_call"]) == want, row,
					`"cost_per_call":%s`, want)
			}
			got := h.read(a.key, "/accounts/"+a.owner)
			h.want(amountForm.Match(got.members["balance"]), got, "a balance in the shortest decimal form")
		}},
	{number: "jobs.amount.sums", title: "Sums are exact: ten times 0.1 is 1, and 0.1 + 0.2 is 0.3",
		cites: `JOBS "The HTTP interface"; J-12`, run: func(h *jobsProbe) {
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
	return []byte(strings.Replace(string(canonical(body)), "0.123456", text, 1))
}

// wantPrice registers an agent again with this price. The registry must take it as so many millionths.
func (h *jobsProbe) wantPrice(a *jobAgent, text string, want int64) {
	h.wantStatus(h.write(a.key, "/register", priced(a, text)), http.StatusCreated)
	h.wantPriceOf(a, want)
}

// wantPriceOf ends the check unless the only skill of an agent has this price.
func (h *jobsProbe) wantPriceOf(a *jobAgent, want int64) {
	row := h.row(a)
	list, _ := row.list("skills")
	h.want(len(list) == 1, row, "one skill")
	h.wantAmount(parseRow(list[0]), "cost_per_call", want)
}
