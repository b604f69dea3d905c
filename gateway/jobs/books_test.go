package jobs_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// tour uses all parts of the gateway, and makes rows in all of its tables.
func tour(t *testing.T, f *fixture) (alice, bob user) {
	t.Helper()
	alice, bob = f.user("alice"), f.user("bob")
	e := newEndpoint(t, nil)
	hook := newEndpoint(t, says(503, nil))
	a := alice.agent(uuid(1), e.url+"/url-secret")
	e.answers(does(a, "PENDING"))
	f.want(bob.hire(a, uuid(100), "callback_url", hook.url+"/url-secret"), 202)
	e.calls() // it has got the job
	f.want(bob.hire(a, uuid(101)), 202)
	f.want(f.callback(e.calls()[0].body, result(uuid(100), a, "SUCCESS")), 200)
	e.answers(says(503, nil))
	f.want(bob.hire(a, uuid(102)), 202)
	f.want(bob.do("POST", "/transfer", send("bob", "alice", 1)), 200)
	f.want(bob.do("POST", "/transfer", send("bob", "alice", 1, "job_id", uuid(100), "transfer_id", uuid(7))), 200)
	f.want(f.do("POST", "/operator/grants", f.Operator, object{"owner_id": "alice", "amount": 1}), 201)
	for _, path := range []string{"/k/" + alice.key + "/accounts/alice", "/k/" + alice.key + "/nothing", "/cb/" + bob.key, "/" + bob.key} {
		f.do("GET", path, "", nil)
		f.do("POST", path, "", object{})
	}
	synctest.Wait()
	return alice, bob
}

// G-7: no key and no secret URL is in the database in clear. G-8: none is in a log line. G-9: a key is in one answer.
func TestSecrets(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		_, bob := tour(t, f)
		if got := bob.do("GET", "/jobs/"+uuid(100), nil); strings.Contains(string(got.Body), "url-secret") {
			t.Errorf("the job shows the callback: %v", got)
		}
		f.Stop()
		places := map[string]string{"the log": f.Logged()}
		for _, name := range engine.Files(t, f.Path) {
			b, err := os.ReadFile(name)
			f.must(err)
			places[name] = string(b)
		}
		secret := regexp.MustCompile(`(cj|tok|op)_[A-Za-z0-9_-]{43}|url-secret`)
		for place, text := range places {
			if found := secret.FindString(text); found != "" {
				t.Errorf("%s has %s", place, found)
			}
		}
		if !strings.Contains(f.Logged(), "/jobs/k/…/accounts") {
			t.Error("the log has no path with a key that was replaced")
		}
	})
}

// Answers on paths with keys are not stored by caches, and browsers send no referrer.
func TestHeadersOfAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		for _, path := range []string{"/k/" + alice.key + "/accounts/alice", "/k/x/health", "/health"} {
			if a := f.do("GET", path, "", nil); a.Header.Get("Cache-Control") != "no-store" ||
				a.Header.Get("Referrer-Policy") != "no-referrer" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s: %v has %v", path, a, a.Header)
			}
		}
	})
}

// G-28: `agora check` finds a changed row in any table of the gateway.
func TestCheckFindsEveryChange(t *testing.T) {
	racing.Skip(t, "nothing runs at the same time as the checks")
	synctest.Test(t, func(t *testing.T) {
		f, store := startFolding(t)
		oldMarket(t, f)
		f.fold(store)
		_, bob := tour(t, f)
		f.want(bob.hire(f.worker(uuid(9)).id, uuid(109)), 202)
		gatetest.Tamper(t, f.Relay, jobs.Extension)
	})
}

// J-2: `agora check` proves that every record sums to zero, that each balance is the sum of its entries, and that each
// hold belongs to a running job. Each statement breaks one of these rules.
func TestCheckFindsRelations(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		tour(t, f)
		undo := errors.New("undo")
		for statement, want := range map[string]string{
			"UPDATE jobs_entry SET amount = amount + 1 WHERE record = 1 AND amount > 0": "jobs_record 1: has not exactly two entries",
			"UPDATE jobs_entry SET amount = 2 * amount WHERE record = 1":                "jobs_record 1: has not exactly two entries",
			"DELETE FROM jobs_entry WHERE record = 1 AND amount > 0":                    "jobs_record 1: has not exactly two entries",
			"INSERT INTO jobs_entry VALUES (3, 2, 0, 0, 0)":                             "jobs_record 2: has not exactly two entries",
			"UPDATE jobs_record SET amount = 0 WHERE n = 1":                             "jobs_record 1: has no amount above 0",
			"DELETE FROM jobs_record WHERE n = 1":                                       "jobs_entry 1: belongs to a record that does not exist",
			"UPDATE jobs_entry SET owner = 99 WHERE record = 1 AND amount > 0":          "jobs_entry 1: belongs to an account that does not exist",
			"UPDATE jobs_owner SET balance = balance + 1 WHERE id = 'bob'":              "jobs_owner 4: has a balance that is not the sum",
			"UPDATE jobs_owner SET balance = -1 WHERE id = 'bob'":                       "jobs_owner 4: has a balance below 0",
			"UPDATE jobs_owner SET principal = 99 WHERE id = 'bob'":                     "jobs_owner 4: belongs to a principal",
			"UPDATE jobs_settled SET record = 1":                                        "jobs_settled 1: names a record",
			"UPDATE jobs_job SET budget = budget + 1 WHERE n = 2":                       "jobs_owner 2: is @escrow",
			"UPDATE jobs_principal SET issued = 1 WHERE n = 1":                          "jobs_principal 1: has got other initial",
			"DELETE FROM jobs_job WHERE n = 2":                                          "jobs_record 4: holds, pays or refunds",
			"UPDATE jobs_job SET budget = budget + 1, n = 2 WHERE n = 2":                "jobs_job 2: does not hold its budget",
			"UPDATE jobs_job SET state = 2 WHERE n = 2":                                 "jobs_job 2: has ended, but what was paid",
			"UPDATE jobs_job SET cost = cost + 1 WHERE n = 1":                           "jobs_job 1: has another cost",
			"UPDATE jobs_job SET state = 0 WHERE n = 1":                                 "jobs_job 1: runs, but was paid",
			"DELETE FROM gate_outbox WHERE gateway = 'jobs'":                            "jobs_job 3: runs, but waits neither",
			"DELETE FROM jobs_agent":                                                    "jobs_job 1: is for an agent that does not exist",
			"UPDATE jobs_job SET hirer = 1 WHERE n = 1":                                 "jobs_job 1: is paid from an account of another",
			"UPDATE jobs_agent SET owner = 4":                                           "jobs_agent 1: has an account that does not exist",
			"UPDATE jobs_agent SET score = 100000001":                                   "jobs_agent 1: has a score",
			"UPDATE jobs_agent SET successes = 2":                                       "jobs_agent 1: counts other jobs",
			"UPDATE jobs_agent SET deleted = 1":                                         "jobs_skill 1: belongs to an agent",
			"UPDATE jobs_total SET records = records + 1":                               "jobs_total 1: does not have the sums",
			"DELETE FROM jobs_total":                                                    "jobs_total 1: does not have the sums",
			"DELETE FROM gate_key WHERE kind = 'cj_' AND owner = 1":                     "jobs_principal 1: has no key",
			"UPDATE gate_counter SET value = value - 1 WHERE name = 'jobs_record'":      `gate_counter name="jobs_record"`,
		} {
			var found []string
			err := f.Relay.Update(t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
				found = nil
				if n, err := tx.Exec(statement); err != nil || n == 0 {
					return fmt.Errorf("%d rows: %w", n, err)
				}
				if err := jobs.Extension.Check(tx, func(where, what string) { found = append(found, where+": "+what) }); err != nil {
					return err
				}
				return undo
			})
			if err != undo || !slices.ContainsFunc(found, func(text string) bool { return strings.HasPrefix(text, want) }) {
				t.Errorf("%s: %v, found %q", statement, err, found)
			}
		}
	})
}

// G-29, G-30: after the restore of a backup the database answers as before, and no number is used for something else.
func TestRestoredBackup(t *testing.T) {
	engine.OnlySQLite(t, "it copies a file")
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a := alice.agent(uuid(1), "")
		f.want(bob.hire(a, uuid(100)), 202)
		backup := filepath.Join(t.TempDir(), "agora.db")
		if _, err := sqlite.Backup(t.Context(), f.Path, backup, nil); err != nil {
			t.Fatal(err)
		}
		f.want(bob.do("POST", "/transfer", send("bob", "alice", 50)), 200)
		f.Stop()
		f.Path = backup
		f.Run()
		wantBalance("after the restore", "100 99.85", alice, bob)
		if got := alice.pull(a); len(got) != 1 {
			t.Errorf("the agent pulls %v", got)
		}
		f.want(alice.deliver(uuid(100), a, "SUCCESS"), 200)
		wantBalance("after the job", "100.1 99.9", alice, bob)
	})
}

// TestRestart checks that jobs continue after a restart: waiting ones, and those whose attempt was cut off.
func TestRestart(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, func(_ http.ResponseWriter, r *http.Request, _ object) { <-r.Context().Done() })
		a, puller := alice.agent(uuid(1), e.url), alice.agent(uuid(2), "")
		f.want(bob.hire(puller, uuid(101)), 202)
		answers := make(chan answer)
		go func() { answers <- bob.do("POST", "/a/"+a, order(uuid(100))) }()
		time.Sleep(time.Second)
		f.Stop()
		if got := f.want(<-answers, 202); statusOf(got) != "PENDING" {
			t.Errorf("the hirer gets %v", got)
		}
		e.answers(does(a, "SUCCESS"))
		f.Run()
		time.Sleep(time.Second)
		bob.wantStatus("after the restart", uuid(100), "SUCCESS")
		if n := len(e.calls()); n != 2 {
			t.Errorf("the endpoint got %d calls", n)
		}
		if got := alice.pull(puller); len(got) != 1 {
			t.Errorf("the agent pulls %v", got)
		}
		wantBalance("after the restart", "100.1 99.75", alice, bob)
	})
}

// TestBrokenDisk checks that what was not stored has no effect, and is done when the disk works again (G-5).
func TestBrokenDisk(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, nil)
		a := alice.agent(uuid(1), e.url)
		e.answers(func(w http.ResponseWriter, r *http.Request, job object) {
			f.Broken.Store(true)
			does(a, "SUCCESS")(w, r, job)
		})
		f.want(bob.hire(a, uuid(100)), 202)
		synctest.Wait()
		if got := bob.do("POST", "/transfer", send("bob", "alice", 1)); got.Status < 500 {
			t.Errorf("the transfer gets %v", got)
		}
		bob.wantStatus("while the disk is broken", uuid(100), "PENDING")
		wantBalance("while the disk is broken", "100 99.85", alice, bob)
		f.Broken.Store(false)
		time.Sleep(2 * time.Minute)
		bob.wantStatus("when the disk works", uuid(100), "SUCCESS")
		wantBalance("when the disk works", "100.1 99.9", alice, bob)
	})
}

// inParallel makes n calls at once.
func inParallel(n int, call func(i int) answer) []answer {
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = call(i) })
	}
	all.Wait()
	return answers
}

// J-7: a hold ends once, whatever races. J-3: no balance is negative. J-6, J-4: what is repeated is done once.
func TestRaces(t *testing.T) {
	f := start(t)
	f.Client = http.DefaultClient
	alice, bob := f.user("alice"), f.user("bob")
	a := alice.agent(uuid(1), "")
	for round := range 10 {
		j := uuid(100 + round)
		for i, got := range inParallel(8, func(int) answer { return bob.hire(a, j, "budget", 1) }) {
			if got.Status != 202 {
				t.Errorf("order %d gets %v", i, got)
			}
		}
		alice.pull(a)
		ended := 0
		for i, got := range inParallel(8, func(i int) answer {
			return alice.deliver(j, a, []string{"SUCCESS", "FAILURE"}[i%2], "execution_time_ms", i)
		}) {
			switch got.Status {
			case 200:
				ended++
			case 409:
			default:
				t.Errorf("result %d gets %v", i, got)
			}
		}
		if ended != 1 {
			t.Errorf("%d results have ended the job", ended)
		}
	}
	paid := 0
	for _, got := range inParallel(30, func(i int) answer {
		return alice.do("POST", "/transfer", send("alice", "bob", 30, "transfer_id", uuid(i/2)))
	}) {
		switch got.Status {
		case 200:
			paid++
		case 400:
		default:
			t.Errorf("the transfer gets %v", got)
		}
	}
	if paid != 6 {
		t.Errorf("%d transfers of 30 were answered with 200, and the account had 100", paid)
	}
	granted := inParallel(8, func(int) answer {
		return f.do("POST", "/operator/grants", f.Operator, object{"grant_id": uuid(999), "owner_id": "bob", "amount": 5})
	})
	for _, got := range granted {
		f.want(got, 201)
	}
	opened := inParallel(8, func(int) answer { return f.do("POST", "/accounts", "", object{"owner_id": "carol"}) })
	keys := 0
	for _, got := range opened {
		if got.Status == 201 {
			keys++
		}
	}
	if keys != 1 {
		t.Errorf("%d principals have the account", keys)
	}
}
