package jobs_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/jobs/credits"
)

// send returns the body of a transfer.
func send(from, to string, amount any, changes ...any) object {
	return changed(object{"from_owner": from, "to_owner": to, "amount": amount}, changes...)
}

// kinds returns the kinds and amounts of records, the oldest first.
func kinds(a answer) (all string) {
	list, _ := member(a, "transactions").([]any)
	for _, r := range list {
		r := r.(object)
		all += fmt.Sprintf("%v %v>%v %v; ", r["kind"], r["from_owner"], r["to_owner"], r["amount"])
	}
	return all
}

// J-4: a repeated transfer moves credits once, with and without transfer_id.
func TestTransfer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		named := send("bob", "alice", 1.5, "transfer_id", uuid(1), "job_id", "j1")
		first := f.want(bob.do("POST", "/transfer", named), 200)
		if text(first, "status") != "completed" || number(first, "sender_balance") != "98.5" ||
			number(first, "receiver_balance") != "101.5" || text(first, "transfer", "kind") != "transfer" {
			t.Errorf("the answer is %v", first)
		}
		f.want(bob.do("POST", "/transfer", send("bob", "alice", 1)), 200)
		f.pass(30 * 24 * time.Hour)
		if again := f.want(bob.do("POST", "/transfer", named), 200); string(again.Body) != string(first.Body) {
			t.Errorf("the repeat gets %v, and the first got %v", again, first)
		}
		f.user("carol")
		for _, other := range []object{changed(named, "amount", 1.6), changed(named, "to_owner", "carol"),
			changed(named, "job_id", "j2"), changed(named, "job_id", nil)} {
			f.want(bob.do("POST", "/transfer", other), 409)
		}
		wantBalance("after the repeats", "102.5 97.5", alice, bob)

		unnamed := send("bob", "alice", 2, "job_id", "j3")
		first = f.want(bob.do("POST", "/transfer", unnamed), 200)
		if again := f.want(bob.do("POST", "/transfer", unnamed), 200); string(again.Body) != string(first.Body) {
			t.Errorf("the repeat gets %v, and the first got %v", again, first)
		}
		wantBalance("after a repeat without an id", "104.5 95.5", alice, bob)
		f.want(bob.do("POST", "/transfer", changed(unnamed, "job_id", "j4")), 200)
		f.pass(24 * time.Hour)
		f.want(bob.do("POST", "/transfer", unnamed), 200)
		wantBalance("a day later", "108.5 91.5", alice, bob)
	})
}

// TestTransferRefused checks who may pay whom, and what (J-11, J-27).
func TestTransferRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		f.want(f.do("POST", "/transfer", "", send("alice", "bob", 1)), 401)
		f.want(bob.do("POST", "/transfer", send("alice", "bob", 1)), 403)
		f.want(f.do("POST", "/transfer", f.Operator, send("alice", "bob", 1)), 403)
		for _, c := range []struct{ from, to string }{{"bob", "nobody"}, {"nobody", "bob"}, {"bob", "@escrow"}, {"bob", "@issue"},
			{"@escrow", "bob"}, {"@issue", "bob"}} {
			f.want(bob.do("POST", "/transfer", send(c.from, c.to, 1)), 404)
		}
		f.wantField(bob.do("POST", "/transfer", send("bob", "bob", 1)), "body.to_owner")
		for _, amount := range []any{0, -0.1, 0.0000001, 1e9, "1", nil, true} {
			f.wantField(bob.do("POST", "/transfer", send("bob", "alice", amount)), "body.amount")
		}
		f.wantField(bob.do("POST", "/transfer", send("bob", "alice", 1, "transfer_id", "x")), "body.transfer_id")
		f.wantField(bob.do("POST", "/transfer", send("bob", "alice", 1, "job_id", "")), "body.job_id")
		short := f.want(bob.do("POST", "/transfer", send("bob", "alice", 100.000001)), 400)
		if text(short, "error_code") != "TRANSFER_FAILED" {
			t.Errorf("the answer is %v", short)
		}
		wantBalance("after refusals", "100 100", alice, bob)
		f.want(bob.do("POST", "/transfer", send("bob", "alice", 0.000001)), 200)
		f.want(bob.do("POST", "/transfer", `{"from_owner":"bob","to_owner":"alice","amount":0.30000000000000004}`), 200)
		wantBalance("after small ones", "100.300001 99.699999", alice, bob)
		f.want(bob.do("POST", "/transfer", send("bob", "alice", 99.699999)), 200)
		wantBalance("after all", "200 0", alice, bob)
	})
}

// J-12: ten times 0.1 is 1.
func TestTenTenths(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		for i := range 10 {
			f.want(bob.do("POST", "/transfer", send("bob", "alice", 0.1, "transfer_id", uuid(i))), 200)
		}
		wantBalance("after ten transfers", "101 99", alice, bob)
	})
}

// J-5: a transfer for a settled job moves nothing.
func TestTransferForSettledJob(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		f.want(bob.hire(a, j), 202)
		alice.pull(a)
		f.want(alice.deliver(j, a, "SUCCESS"), 200)
		for _, body := range []object{send("bob", "alice", 0.1, "job_id", j), send("bob", "alice", 5, "job_id", j),
			send("bob", "alice", 0.1, "job_id", j, "transfer_id", uuid(5))} {
			a := f.want(bob.do("POST", "/transfer", body), 200)
			if text(a, "transfer", "kind") != "settle" || text(a, "transfer", "job_id") != j ||
				number(a, "sender_balance") != "99.9" || number(a, "receiver_balance") != "100.1" {
				t.Errorf("the answer is %v", a)
			}
		}
		wantBalance("after the transfers", "100.1 99.9", alice, bob)
		// Its transfer_id stands for this transfer from now on, and is answered as it was.
		named := send("bob", "alice", 0.1, "job_id", strings.ToUpper(hex), "transfer_id", uuid(6))
		f.want(bob.hire(a, hex), 202)
		alice.pull(a)
		f.want(alice.deliver(hex, a, "SUCCESS"), 200)
		first := f.want(bob.do("POST", "/transfer", named), 200)
		f.want(bob.do("POST", "/transfer", send("bob", "alice", 1, "transfer_id", uuid(9))), 200)
		if again := f.want(bob.do("POST", "/transfer", changed(named, "job_id", hex)), 200); text(first, "transfer", "kind") != "settle" ||
			string(again.Body) != string(first.Body) {
			t.Errorf("the repeat gets %v, and the first got %v", again, first)
		}
		for _, other := range []object{changed(named, "amount", 0.2), changed(named, "job_id", "j"), changed(named, "job_id", nil)} {
			f.want(bob.do("POST", "/transfer", other), 409)
		}
		if got := kinds(bob.do("GET", "/audit?job_id="+strings.ToUpper(hex), nil)); !strings.Contains(got, "settle") {
			t.Errorf("the audit is %s", got)
		}
		wantBalance("after another job and a transfer", "101.2 98.8", alice, bob)
		// Others can pay alice with the same job_id, because the job was not theirs.
		carol := f.user("carol")
		f.want(carol.do("POST", "/transfer", send("carol", "alice", 0.1, "job_id", j)), 200)
		wantBalance("after that of another", "101.3 98.8 99.9", alice, bob, carol)
	})
}

// hex is a UUID that has an upper case.
const hex = "a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f"

// J-8, J-9, J-31: what is issued, and when.
func TestInitialBalances(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		f.want(alice.do("POST", "/accounts", object{"owner_id": "alice", "initial_balance": 1000}), 201)
		wantBalance("asked again", "100", alice)
		second := f.want(alice.do("POST", "/accounts", object{"owner_id": "alice2"}), 201)
		if number(second, "balance") != "0" || text(second, "api_key") != "" {
			t.Errorf("the second account is %v", second)
		}
		part := f.want(f.do("POST", "/accounts", "", object{"owner_id": "bob", "initial_balance": 10.5}), 201)
		bob := user{f, text(part, "api_key"), "bob"}
		f.want(bob.do("POST", "/accounts", object{"owner_id": "bob2"}), 201)
		if got := number(f.want(bob.do("POST", "/accounts", object{"owner_id": "bob3"}), 201), "balance"); got != "0" {
			t.Errorf("bob3 has %s", got)
		}
		if got := number(bob.do("GET", "/accounts/bob2", nil), "balance"); got != "89.5" {
			t.Errorf("bob2 has %s", got)
		}

		made := f.want(f.do("POST", "/register", "", skilled(uuid(1), "carol", "", 0.1)), 201)
		carol := user{f, text(made, "api_key"), "carol"}
		wantBalance("made by /register", "0", carol)
		f.want(carol.do("POST", "/accounts", object{"owner_id": "carol", "initial_balance": 50}), 201)
		wantBalance("the first POST /accounts", "50", carol)
		f.want(carol.do("POST", "/accounts", object{"owner_id": "carol"}), 201)
		wantBalance("the second POST /accounts", "50", carol)

		f.want(f.do("POST", "/accounts", "", object{"owner_id": "alice"}), 409)
		f.want(bob.do("POST", "/accounts", object{"owner_id": "alice"}), 409)
		f.want(bob.do("GET", "/accounts/alice", nil), 403)
		f.want(f.do("GET", "/accounts/alice", "", nil), 401)
		f.want(bob.do("GET", "/accounts/nobody", nil), 404)
		f.want(f.do("GET", "/accounts/@escrow", f.Operator, nil), 404)
		if got := number(f.want(f.do("GET", "/accounts/alice", f.Operator, nil), 200), "balance"); got != "100" {
			t.Errorf("the operator sees %s", got)
		}
		f.want(f.do("POST", "/accounts", f.Operator, object{"owner_id": "mine"}), 403)
	})
}

// J-9: no more than the supply is issued. J-10: a repeated grant issues once.
func TestSupply(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, carol := f.user("alice"), f.user("bob"), f.user("carol")
		wantBalance("with a supply of 250", "100 100 50", alice, bob, carol)
		wantBalance("when nothing is left", "0", f.user("dave"))
		grant := object{"grant_id": uuid(1), "owner_id": "alice", "amount": 1}
		f.want(f.do("POST", "/operator/grants", f.Operator, grant), 409)
		f.options.Supply = 260 * credits.One
		f.Restart()
		f.want(f.do("POST", "/operator/grants", "", grant), 401)
		f.want(alice.do("POST", "/operator/grants", grant), 403)
		first := f.want(f.do("POST", "/operator/grants", f.Operator, grant), 201)
		if text(first, "kind") != "grant" || text(first, "from_owner") != "@issue" || text(first, "transfer_id") != uuid(1) {
			t.Errorf("the grant is %v", first)
		}
		if again := f.want(f.do("POST", "/operator/grants", f.Operator, grant), 201); string(again.Body) != string(first.Body) {
			t.Errorf("the repeat is %v", again)
		}
		f.want(f.do("POST", "/operator/grants", f.Operator, changed(grant, "amount", 2)), 409)
		f.want(f.do("POST", "/operator/grants", f.Operator, changed(grant, "owner_id", "bob")), 409)
		f.want(f.do("POST", "/operator/grants", f.Operator, changed(grant, "owner_id", "nobody")), 404)
		f.want(f.do("POST", "/operator/grants", f.Operator, changed(grant, "owner_id", "bob", "grant_id", nil, "amount", 9.000001)), 409)
		f.want(f.do("POST", "/operator/grants", f.Operator, changed(grant, "owner_id", "bob", "grant_id", nil, "amount", 9)), 201)
		f.wantField(f.do("POST", "/operator/grants", f.Operator, changed(grant, "amount", 0)), "body.amount")
		f.wantField(f.do("POST", "/operator/grants", f.Operator, changed(grant, "owner_id", "@escrow")), "body.owner_id")
		wantBalance("after the grants", "101 109 50", alice, bob, carol)
		f.options.Supply = 100 * credits.One // less than was issued
		f.Restart()
		f.want(f.do("POST", "/operator/grants", f.Operator, changed(grant, "grant_id", nil)), 409)
		wantBalance("with a smaller supply", "0", f.user("erin"))
	}, func(f *fixture) { f.options.Supply = 250 * credits.One })
}

// TestAudit checks what the ledger shows, and to whom (J-28).
func TestAudit(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, eve := f.user("alice"), f.user("bob"), f.user("eve")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		f.want(bob.hire(a, j), 202)
		alice.pull(a)
		f.want(alice.deliver(j, a, "SUCCESS", "execution_cost", 0.04), 200)
		f.want(bob.do("POST", "/transfer", send("bob", "alice", 1)), 200)
		audit := func(u user, query string) answer {
			t.Helper()
			return f.want(u.do("GET", "/audit"+query, nil), 200)
		}
		const initialAlice, initialBob, initialEve = "initial @issue>alice 100; ", "initial @issue>bob 100; ", "initial @issue>eve 100; "
		const hold, settle, refund = "hold bob>@escrow 0.15; ", "settle @escrow>alice 0.04; ", "refund @escrow>bob 0.11; "
		const paid = "transfer bob>alice 1; "
		for _, c := range []struct {
			who         user
			query, want string
		}{
			{alice, "", initialAlice + settle + paid}, {bob, "", initialBob + hold + settle + refund + paid}, {eve, "", initialEve},
			{bob, "?limit=2", refund + paid}, {bob, "?job_id=" + j, hold + settle + refund}, {alice, "?job_id=" + j, settle},
			{eve, "?job_id=" + j, ""}, {bob, "?owner_id=alice", settle + paid}, {alice, "?owner_id=bob", settle + paid},
			{eve, "?owner_id=bob", ""}, {bob, "?owner_id=bob&job_id=" + j, hold + settle + refund}, {bob, "?owner_id=nobody", ""},
			{user{f, f.Operator, ""}, "", initialAlice + initialBob + initialEve + hold + settle + refund + paid},
			{user{f, f.Operator, ""}, "?owner_id=@escrow", hold + settle + refund},
			{bob, "?owner_id=@escrow", hold + settle + refund}, {eve, "?owner_id=@escrow", ""},
		} {
			if got := kinds(audit(c.who, c.query)); got != c.want {
				t.Errorf("%s sees with %q: %s\nwant %s", c.who.owner, c.query, got, c.want)
			}
		}
		if got := member(audit(bob, "?limit=1"), "total"); got != 5.0 {
			t.Errorf("the total is %v, want 5", got)
		}
		f.want(f.do("GET", "/audit", "", nil), 401)
		for _, query := range []string{"limit=0", "limit=501", "limit=x", "limit=1&limit=2"} {
			f.wantField(bob.do("GET", "/audit?"+query, nil), "query.limit")
		}
		for who, want := range map[user]string{{f, "", ""}: "map[]", eve: "map[eve:100]", bob: "map[bob:98.96]",
			{f, f.Operator, ""}: "map[]"} {
			e := f.want(who.do("GET", "/economy", nil), 200)
			if got := fmt.Sprint(member(e, "all_balances")); got != want || number(e, "total_volume") != "1.04" ||
				number(e, "total_transactions") != "7" || number(e, "total_accounts") != "3" {
				t.Errorf("%s sees the economy %v, want %s", who.owner, e, want)
			}
		}
		synctest.Wait()
	})
}
