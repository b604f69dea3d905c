package jobs_test

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway/jobs"
)

// J-1: the scores of the text come out exactly, also after 10,000 jobs.
func TestScores(t *testing.T) {
	const points = 1_000_000
	for _, c := range []struct {
		from, boss int64
		want       string
	}{{50 * points, 80 * points, "51.6"}, {50 * points, 50 * points, "51.0"}, {50 * points, -1, "45.5"},
		{2 * points, -1, "0.0"}, {99.5 * points, 80 * points, "100.0"}, {0, 0, "0.0"}, {100 * points, 100 * points, "100.0"},
		{12_344_999, 0, "12.34"}, {12_345_000, 0, "12.35"}, {99_995_000, 0, "100.0"}, {49_000, 0, "0.05"}} {
		_, got := jobs.Succeeded(c.from, c.boss)
		if c.boss < 0 {
			_, got = jobs.Failed(c.from)
		}
		if got != c.want {
			t.Errorf("from %d with the hirer's score %d: %s, want %s", c.from, c.boss, got, c.want)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	score, exact := int64(50*points), big.NewRat(50*points, 1)
	most, half := big.NewRat(100*points, 1), big.NewRat(1, 2)
	for i := range 10_000 {
		if random.IntN(4) == 0 {
			score, _ = jobs.Failed(score)
			exact.Sub(exact, big.NewRat(4_500_000, 1))
			if exact.Sign() < 0 {
				exact.SetInt64(0)
			}
		} else {
			c := random.Int64N(100*points + 1)
			score, _ = jobs.Succeeded(score, c)
			reward := new(big.Rat).Add(big.NewRat(2*c, 100), half) // rounded half up to a millionth
			exact.Add(exact, new(big.Rat).SetInt(new(big.Int).Quo(reward.Num(), reward.Denom())))
			if exact.Cmp(most) > 0 {
				exact.Set(most)
			}
		}
		if exact.Cmp(big.NewRat(score, 1)) != 0 {
			t.Fatalf("after %d jobs the score is %d, want %v", i+1, score, exact)
		}
	}
}

// TestScoreOfHirer checks that the hirer's own score counts if orchestrator_id is an agent of it (J-1).
func TestScoreOfHirer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, eve := f.user("alice"), f.user("bob"), f.user("eve")
		boss := bob.agent(uuid(9), "")
		f.must(f.gateway.SetScore(t.Context(), boss, 80_000_000))
		for i, c := range []struct {
			hirer        user
			orchestrator string
			status       string
			want         string
		}{{bob, boss, "SUCCESS", "51.6"}, {bob, "00000000-0000-4000-8000-000000000009", "SUCCESS", "51.6"},
			{bob, "nobody", "SUCCESS", "51.0"}, {eve, boss, "SUCCESS", "51.0"}, {bob, boss, "FAILURE", "45.5"}} {
			a, j := alice.agent(uuid(20+i), ""), uuid(100+i)
			f.want(c.hirer.hire(a, j, "orchestrator_id", c.orchestrator), 202)
			alice.pull(a)
			f.want(alice.deliver(j, a, c.status), 200)
			if got := f.score(a); got != c.want {
				t.Errorf("%s for %s by %s: the score is %s, want %s", c.status, c.orchestrator, c.hirer.owner, got, c.want)
			}
		}
	})
}

// J-15: no job within one principal counts. J-16: no undispatched and no unpaid job counts.
func TestJobsThatDoNotCount(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a := alice.agent(uuid(1), "")
		wantStats := func(what, want string) {
			t.Helper()
			if got := f.do("GET", "/reputation/"+a, "", nil); got.Status != 200 ||
				number(got, "stats") != want || number(got, "score") != "50.0" {
				t.Errorf("%s: the reputation is %v", what, got)
			}
		}
		const none = `{"total":0,"successes":0,"failures":0}`
		f.want(alice.hire(a, uuid(100)), 202)
		alice.pull(a)
		f.want(alice.deliver(uuid(100), a, "SUCCESS"), 200)
		f.want(alice.hire(a, uuid(101)), 202)
		alice.pull(a)
		f.want(alice.deliver(uuid(101), a, "FAILURE"), 200)
		wantStats("own jobs", none)

		f.want(bob.hire(a, uuid(102)), 202)
		alice.pull(a)
		f.want(alice.deliver(uuid(102), a, "SUCCESS", "execution_cost", 0), 200)
		wantStats("a job that was not paid", none)

		f.want(bob.hire(a, uuid(103)), 202)
		f.pass(dispatchTime)
		bob.wantStatus("not dispatched", uuid(103), "FAILURE AGENT_OFFLINE")
		wantStats("a job that was not dispatched", none)

		f.want(alice.do("POST", "/heartbeat", object{"agent_id": a}), 200)
		f.want(bob.hire(a, uuid(105)), 202)
		f.want(alice.deliver(uuid(105), a, "SUCCESS"), 200)
		bob.wantStatus("never handed out", uuid(105), "SUCCESS")
		wantStats("a job that was never handed out", none)

		free := uuid(2)
		f.want(alice.do("POST", "/register", skilled(free, "alice", "", 0)), 201)
		f.want(bob.hire(free, uuid(104), "budget", 0), 202)
		alice.pull(free)
		f.want(alice.deliver(uuid(104), free, "SUCCESS"), 200)
		if got := f.score(free); got != "50.0" {
			t.Errorf("a job without a price: the score is %s", got)
		}
	})
}

const dispatchTime = 5 * time.Minute

// J-17: the 21st job of a hirer and an agent in 24 hours does not count.
func TestCountedJobs(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, carol := f.user("alice"), f.user("bob"), f.user("carol")
		a, next := alice.agent(uuid(1), ""), 100
		do := func(hirer user, status string) {
			t.Helper()
			next++
			f.want(alice.do("POST", "/heartbeat", object{"agent_id": a}), 200)
			f.want(hirer.hire(a, uuid(next)), 202)
			alice.pull(a)
			f.want(alice.deliver(uuid(next), a, status), 200)
		}
		wantScore := func(what, want string) {
			t.Helper()
			if got := f.score(a); got != want {
				t.Errorf("%s: the score is %s, want %s", what, got, want)
			}
		}
		for range 20 {
			do(bob, "SUCCESS")
		}
		wantScore("20 jobs", "70.0")
		do(bob, "SUCCESS")
		do(bob, "FAILURE")
		wantScore("22 jobs", "70.0")
		do(carol, "SUCCESS")
		wantScore("another hirer", "71.0")
		f.pass(24*time.Hour + time.Minute)
		do(bob, "SUCCESS")
		wantScore("a day later", "72.0")
		if got := number(f.do("GET", "/reputation/"+a, "", nil), "stats"); got != `{"total":22,"successes":22,"failures":0}` {
			t.Errorf("the stats are %s", got)
		}
		if got := f.want(f.do("POST", "/reputation/"+a+"/success?job_id=x&contractor_reputation=100", "", nil), 403); got.Status != 403 {
			t.Errorf("%v", got)
		}
	})
}

// TestScoreIsKept checks J-13 and J-14: a score cannot be washed off, and nobody else gets a deleted agent_id.
func TestScoreIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a := alice.agent(uuid(1), "")
		f.want(bob.hire(a, uuid(100)), 202)
		alice.pull(a)
		f.want(alice.deliver(uuid(100), a, "FAILURE"), 200)
		again := f.want(alice.do("POST", "/register", skilled(a, "alice", "", 0.2)), 201)
		if number(again, "reputation_score") != "45.5" {
			t.Errorf("registered again: %v", again)
		}
		f.want(alice.do("DELETE", "/agents/"+a, nil), 200)
		f.want(f.do("GET", "/agents/"+a, "", nil), 404)
		f.want(f.do("GET", "/reputation/"+a, "", nil), 404)
		f.want(bob.do("POST", "/register", skilled(a, "bob", "", 0.1)), 409)
		f.want(f.do("POST", "/register", "", skilled(a, "new-owner", "", 0.1)), 409)
		f.want(f.do("POST", "/register", "", skilled(uuid(2), "alice", "", 0.1)), 409)
		again = f.want(alice.do("POST", "/register", skilled(a, "alice", "", 0.2)), 201)
		if number(again, "reputation_score") != "45.5" {
			t.Errorf("registered after DELETE: %v", again)
		}
	})
}
