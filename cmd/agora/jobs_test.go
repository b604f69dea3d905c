package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

const (
	testAgent = "a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f"
	testJob   = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
)

// jobsCommand is a command of agora jobs, and what it must do. Its words are separated by |.
type jobsCommand struct {
	args, stdin    string
	code           int
	stdout, stderr string // what is in the output; empty: nothing is printed
}

// checkJobs runs commands of agora jobs, on a terminal if terminal is true.
func checkJobs(t *testing.T, terminal bool, commands []jobsCommand) {
	t.Helper()
	for _, c := range commands {
		var out, problems bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		env := cli.Environment{Ctx: ctx, Stdin: strings.NewReader(c.stdin), Stdout: &out, Stderr: &problems, StdoutIsTerminal: terminal}
		code := run(env, append([]string{"jobs"}, strings.Split(c.args, "|")...))
		cancel()
		stdout, stderr := out.String(), problems.String()
		if code != c.code || !strings.Contains(stdout, c.stdout) || (c.stdout == "") != (stdout == "") ||
			!strings.Contains(stderr, c.stderr) || (c.stderr == "") != (stderr == "") {
			t.Errorf("agora jobs %s ends with %d and prints %q and %q", c.args, code, stdout, stderr)
		}
	}
}

// newRegistry returns a registry with fixed answers, and sets AGORA_JOBS_URL.
func newRegistry(t *testing.T) *fakeGateway {
	t.Helper()
	const row = `{"agent_id":"` + testAgent + `","agent_name":"Texts","owner_id":"acme","api_endpoint":"","job_url":"u","skill":{"skill_name":"s","cost_per_call":0.1},` +
		`"skills":[{"skill_name":"s","cost_per_call":0.1},{"skill_name":"t","cost_per_call":2}],"reputation_score":92.3,"status":"online","registered_at":"2026-02-11T14:15:09.000Z","last_heartbeat":"2026-02-11T14:15:09.000Z"}`
	const moved = `{"transfer_id":"t","from_owner":"acme","to_owner":"bob","amount":0.5,"job_id":"","timestamp_utc":"2026-02-11T14:15:09.000Z","kind":"transfer"}`
	const paid = `{"transfer_id":"u","from_owner":"@escrow","to_owner":"bob","amount":12,"job_id":"` + testJob + `","timestamp_utc":"2026-02-11T14:15:09.000Z","kind":"settle"}`
	f := newFakeGateway(t, map[string]string{
		"POST /jobs/accounts":                         `201 {"owner_id":"acme","balance":99.5,"api_key":"cj_` + strings.Repeat("N", 43) + `"}`,
		"GET /jobs/accounts/acme":                     `{"owner_id":"acme","balance":99.5}`,
		"GET /jobs/accounts/bob":                      `403 {"detail":"not yours"}`,
		"GET /jobs/economy":                           `{"total_accounts":3,"total_transactions":4,"total_volume":5,"all_balances":{"b":0.000001,"acme":99.5}}`,
		"POST /jobs/register":                         `201 {"status":"registered","agent_id":"` + testAgent + `","reputation_score":50.0,"job_url":"u"}`,
		"GET /jobs/skills":                            `{"skills":["s","t"],"total_agents":1}`,
		"GET /jobs/discover":                          `{"agents":[` + row + `],"total":1}`,
		"GET /jobs/agents/" + testAgent:               row,
		"GET /jobs/reputation/" + testAgent:           `{"agent_id":"` + testAgent + `","score":92.3,"stats":{"total":3,"successes":2,"failures":1}}`,
		"DELETE /jobs/agents/" + testAgent:            `{"status":"unregistered"}`,
		"POST /jobs/heartbeat":                        `{"status":"ok"}`,
		"GET /jobs/agents/" + testAgent + "/jobs":     `{"jobs":[{"job_id":"` + testJob + `","orchestrator_id":"bob","skill_name":"s","input_data":{"n":1},"budget":0.15}]}`,
		"POST /jobs/agents/" + testAgent + "/results": `{"status":"ok"}`,
		"POST /jobs/a/" + testAgent + "/jobs":         `{"job_id":"` + testJob + `","agent_id":"` + testAgent + `","status":"SUCCESS","output_data":{"n":2},"execution_cost":0.1,"execution_time_ms":5,"error_message":null,"error_code":null}`,
		"GET /jobs/jobs/" + testJob:                   `{"job_id":"` + testJob + `","agent_id":"` + testAgent + `","status":"FAILURE","output_data":null,"execution_cost":0,"error_message":"no wind","error_code":"EXECUTION_ERROR"}`,
		"POST /jobs/transfer":                         `{"status":"completed","transfer":` + moved + `,"sender_balance":99,"receiver_balance":1}`,
		"GET /jobs/audit":                             `{"transactions":[` + moved + `,` + paid + `],"total":7}`,
		"POST /jobs/operator/grants":                  `201 ` + moved,
	})
	t.Setenv("AGORA_JOBS_URL", f.URL+"/jobs")
	return f
}

// TestJobsLedger runs the commands for accounts and credits.
func TestJobsLedger(t *testing.T) {
	f := newRegistry(t)
	key, operator, fresh := newKeyFile(t, "cj_", 0o600), newKeyFile(t, "op_", 0o600), filepath.Join(t.TempDir(), "fresh.key")
	balances := `{"owner_id":"acme","balance":99.5}` + "\n" + `{"owner_id":"b","balance":0.000001}` + "\n"
	checkJobs(t, false, []jobsCommand{
		{"account|acme|--key-file|" + fresh, "", 0, `{"owner_id":"acme","balance":99.5,"key_file":"` + fresh + `"}` + "\n", "your key is in " + fresh},
		{"account|acme|--initial|5", "", 0, `{"owner_id":"acme","balance":99.5,"api_key":"cj_NNN`, "save api_key now"},
		{"account|acme|--initial|0.0000001", "", 2, "", "--initial: must be a number"},
		{"account|acme|--key-file|missing/x", "", 1, "", "could not be created, so nothing was sent"},
		{"account|acme|--key-file|" + operator, "", 1, "", "this needs your key for the registry (cj_…)"},
		{"account|acme|--key-file|cj_" + strings.Repeat("A", 43), "", 1, "", "agora: this needs the name of a file with the key, not the key itself"},
		{"account|acme|--key-file|" + newKeyFile(t, "cj_", 0o644), "", 1, "", "chmod 600"},
		{"account|acme|--key-file|" + fresh + "2|--jobs|" + f.URL + "/jobs/k/cj_" + strings.Repeat("A", 43), "", 1, "", "leave out one of them"},
		{"account|acme|--key-file|" + key + "|--key|x", "", 2, "", "--key-file and --key can't be used together"},
		{"balance", "", 2, "", "say who you are"},
		{"balance|--key-file|" + key, "", 0, balances, ""},
		{"balance|acme|--key-file|" + operator, "", 0, `{"owner_id":"acme","balance":99.5}` + "\n", ""},
		{"balance|bob|--key-file|" + key, "", 1, "", "403: not yours; you have asked with the key in " + key},
		{"balance|--key-file|missing", "", 1, "", "agora jobs account OWNER --key-file FILE creates it"},
		{"transfer|acme|bob|0.5|--key-file|" + key, "", 0, `{"transfer":{"transfer_id":"t",`, ""},
		{"transfer|acme|bob|0.5|--transfer-id|" + strings.ToUpper(testJob) + "|--job|j|--key-file|" + key, "", 0, `"sender_balance":99,"receiver_balance":1}`, ""},
		{"transfer|acme|bob|-1|--key-file|" + key, "", 2, "", "no number may be negative here"},
		{"account|acme|--initial|-3", "", 2, "", "--initial: must be a number from 0"},
		{"account|acme|--initial|--json", "", 2, "", `expected amount value but got "--json"`},
		{"transfer|acme|bob|1|--transfer-id|x|--key-file|" + key, "", 2, "", "want a UUID"},
		{"audit|--limit|2|--key-file|" + key, "", 0, `{"transfer_id":"t","from_owner":"acme","to_owner":"bob","amount":0.5,"timestamp_utc":"2026-02-11T14:15:09Z","kind":"transfer"}`, "the last 2 of 7 records"},
		{"audit|--limit|501|--key-file|" + key, "", 2, "", "from 1 to 500"},
		{"audit", "", 2, "", "say who you are"},
		{"grant|acme|100|--operator-key|" + operator, "", 0, `"amount":0.5`, ""},
		{"grant|acme|100|--operator-key|" + key, "", 1, "", "this needs the operator's key (op_…)"},
		{"grant|acme|100|--operator-key|" + newKeyFile(t, "zz_", 0o600), "", 1, "", "this needs the operator's key (op_…), which is in operator.key in the relay's data folder, on one line"},
	})
	if text, err := os.ReadFile(fresh); err != nil || string(text) != "cj_"+strings.Repeat("N", 43)+"\n" {
		t.Errorf("saved %q, %v", text, err)
	}
	if info, err := os.Stat(fresh); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	when := time.Date(2026, 2, 11, 14, 15, 9, 0, time.UTC).Local().Format("2006-01-02 15:04:05 MST")
	checkJobs(t, true, []jobsCommand{
		{"balance|--key-file|" + key, "", 0, "OWNER  BALANCE\nacme   99.5\nb      0.000001\n", ""},
		{"balance|--json|--key-file|" + key, "", 0, balances, ""},
		{"audit|--key-file|" + key, "", 0, "TIME" + strings.Repeat(" ", len(when)-4) + "  KIND      AMOUNT  FROM     TO   JOB\n" + when + "  transfer  0.5     acme     bob  -\n" +
			when + "  settle    12      @escrow  bob  f81d4fae-", "of 7 records"},
	})
	checkJobs(t, false, []jobsCommand{{"audit|--text|--key-file|" + key, "", 0, "  " + testJob + "\n", "of 7 records"}})
	f.wasAsked(t, `POST /jobs/accounts {"owner_id":"acme","initial_balance":5}`, `"amount":0.5,"job_id":"j"}`, `POST /jobs/transfer {"transfer_id":"`+testJob+`"`,
		`"owner_id":"acme","amount":100}`)
	f.answers["GET /jobs/economy"] = `{"all_balances":{}}`
	f.answers["GET /jobs/audit"] = `{"transactions":[],"total":0}`
	f.answers["POST /jobs/accounts"] = `409 {"detail":"taken"}`
	checkJobs(t, true, []jobsCommand{
		{"balance|--key-file|" + key, "", 0, "", "you have no account"},
		{"audit|--owner|zork|--key-file|" + key, "", 0, "", "no record"},
		{"balance|--key-file|" + operator, "", 0, "", "the operator has no accounts; agora jobs balance OWNER"},
		{"account|acme", "", 1, "", "409: taken; if it is yours, give your key with --key-file FILE"},
		{"account|acme|--key-file|" + fresh + "3", "", 1, "", "you asked as somebody new"},
	})
	f.answers["POST /jobs/accounts"] = `500 {}`
	checkJobs(t, false, []jobsCommand{{"account|acme", "", 1, "", "it is unknown if the registry has done this"}})
}

// TestJobsFindTheRegistry checks that the commands go to the relay of AGORA_RELAY unless a URL is given.
func TestJobsFindTheRegistry(t *testing.T) {
	f := newRegistry(t)
	discover := jobsCommand{"discover", "", 0, `{"skill_name":"s"}`, ""}
	t.Setenv("AGORA_RELAY", "http://127.0.0.1:1")
	checkJobs(t, false, []jobsCommand{discover})
	if err := os.Unsetenv("AGORA_JOBS_URL"); err != nil { // newRegistry has set it, so the test restores it
		t.Fatal(err)
	}
	for _, relay := range []string{f.URL, f.URL + "/"} {
		t.Setenv("AGORA_RELAY", relay)
		checkJobs(t, false, []jobsCommand{discover})
	}
	t.Setenv("AGORA_RELAY", "http://127.0.0.1/?x")
	checkJobs(t, false, []jobsCommand{{"discover", "", 2, "", "AGORA_RELAY"}})
}

// TestMissingCommand checks that the error names all commands if the name of one is missing.
func TestMissingCommand(t *testing.T) {
	var problems bytes.Buffer
	code := run(cli.Environment{Ctx: t.Context(), Stdout: new(bytes.Buffer), Stderr: &problems}, []string{"jobs"})
	if want := "agora: the name of a command must follow: account, balance, register, discover, agent, hire, status, pull, deliver, " +
		"heartbeat, unregister, transfer, audit, grant\nTry: agora jobs --help\n"; code != cli.ExitUsage || problems.String() != want {
		t.Errorf("agora jobs ends with %d and prints %s", code, problems.String())
	}
}

// TestJobsKeyIsNotLost checks that a key which cannot be written to its file is printed.
func TestJobsKeyIsNotLost(t *testing.T) {
	f := newRegistry(t)
	file := filepath.Join(t.TempDir(), "new.key")
	f.during = func(context.Context) { // somebody else creates the file while the registry makes the key
		if err := os.WriteFile(file, []byte("other"), 0o600); err != nil {
			t.Error(err)
		}
	}
	checkJobs(t, false, []jobsCommand{{"account|acme|--key-file|" + file, "", 1, `"api_key":"cj_NNN`, "could not be written to the file, so it is printed"}})
	if text, err := os.ReadFile(file); err != nil || string(text) != "other" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// TestJobsAgent runs the commands of agents.
func TestJobsAgent(t *testing.T) {
	f := newRegistry(t)
	key := newKeyFile(t, "cj_", 0o600)
	t.Setenv("AGORA_JOBS_KEY", key)
	checkJobs(t, false, []jobsCommand{
		{"register|Texts|--owner|acme|--skill|s=0.1|--skill|t=2|--agent|" + testAgent, "", 0, `{"agent_id":"` + testAgent + `","reputation_score":50,"job_url":"u"}` + "\n", ""},
		{"register|Texts|--owner|acme|--endpoint|https://x.example|--skills|-", `[{"skill_name":"s","cost_per_call":1,"input_schema":{}}]`, 0, testAgent, ""},
		{"register|Texts|--owner|acme|--skills|-", `{}`, 1, "", "a JSON list of objects"},
		{"register|Texts|--owner|acme", "", 0, testAgent, "no skill, so nobody can hire it"},
		{"register|Texts|--owner|acme|--skill|s", "", 2, "", "want a skill and its price"},
		{"discover|s|--min-reputation|50|--max-cost|1", "", 0, `{"agent_id":"` + testAgent + `","agent_name":"Texts"`, ""},
		{"discover|s|--min-reputation|101", "", 2, "", "from 0 to 100"},
		{"discover", "", 0, `{"skill_name":"s"}` + "\n" + `{"skill_name":"t"}` + "\n", ""},
		{"agent|" + testAgent, "", 0, `"stats":{"total":3,"successes":2,"failures":1}}`, ""},
		{"agent|x", "", 2, "", "want a UUID"},
		{"heartbeat|" + testAgent, "", 0, "", "the agent " + testAgent + " is online for 90 seconds"},
		{"heartbeat|" + testAgent + "|--every|5ms", "", 2, "", "at least 1s"},
		{"unregister|" + testAgent, "", 0, "", "removed the agent " + testAgent},
		{"pull|" + testAgent + "|--timeout|1m", "", 0, `{"job_id":"` + testJob + `","orchestrator_id":"bob","skill_name":"s","input_data":{"n":1},"budget":0.15}` + "\n", ""},
		{"pull|" + testAgent + "|--timeout=-1s", "", 2, "", "must not be negative"},
		{"deliver|" + testAgent + "|" + testJob + "|--output|-", `{"n": 2}`, 0, "", "reported the result"},
		{"deliver|" + testAgent + "|" + testJob + "|--failure|no wind", "", 0, "", "reported the result"},
		{"deliver|" + testAgent + "|" + testJob + "|--output|[]", "", 1, "", "must be a JSON object"},
		{"deliver|" + testAgent + "|" + testJob + "|--output|null", "", 1, "", "must be a JSON object"},
		{"deliver|" + testAgent + "|" + testJob, "", 2, "", "--output JSON, or say why there is none with --failure TEXT"},
		{"deliver|" + testAgent + "|" + testJob + "|--output|{}|--time=-1s", "", 2, "", "--time must not be negative"},
		{"deliver|" + testAgent + "|" + testJob + "|--output|{}|--time|1.5s", "", 0, "", "reported the result"},
		{"deliver|" + testAgent + "|" + testJob + "|--output|{}|--failure|x", "", 2, "", "can't be used together"},
	})
	checkJobs(t, true, []jobsCommand{
		{"discover|s", "", 0, "AGENT                                 NAME   OWNER  COST  REPUTATION\n" + testAgent + "  Texts  acme   0.1   92.30\n", ""},
		{"discover", "", 0, "SKILL\ns\nt\n", ""},
		{"agent|" + testAgent, "", 0, "NAME   OWNER  STATUS  REPUTATION  SUCCESSES  FAILURES  SKILLS\nTexts  acme   online  92.30       2          1         s=0.1 t=2\n", ""},
	})
	f.wasAsked(t, `POST /jobs/register {"agent_id":"`+testAgent+`","agent_name":"Texts","owner_id":"acme","skills":[{"skill_name":"s","cost_per_call":0.1},{"skill_name":"t","cost_per_call":2}]}`,
		`"api_endpoint":"https://x.example","skills":[{"skill_name":"s","cost_per_call":1,"input_schema":{}}]}`,
		`/results {"job_id":"`+testJob+`","agent_id":"`+testAgent+`","status":"SUCCESS","output_data":{"n":2}}`,
		`"status":"SUCCESS","output_data":{},"execution_time_ms":1500}`,
		`/results {"job_id":"`+testJob+`","agent_id":"`+testAgent+`","status":"FAILURE","error_message":"no wind","error_code":"EXECUTION_ERROR"}`)
	f.answers["GET /jobs/agents/"+testAgent+"/jobs"] = `{"jobs":[]}`
	f.answers["POST /jobs/agents/"+testAgent+"/results"] = `409 {"detail":"over"}`
	f.answers["GET /jobs/discover"] = `{"agents":[],"total":0}`
	f.answers["GET /jobs/skills"] = `{"skills":[],"total_agents":0}`
	f.asked = nil
	checkJobs(t, true, []jobsCommand{
		{"pull|" + testAgent + "|--timeout|300ms", "", 1, "", "no job came within 300ms"},
		{"deliver|" + testAgent + "|" + testJob + "|--output|{}", "", 1, "", "agora: the job has ended already, in another way; agora jobs status " + testJob},
		{"discover|s", "", 0, "", "no such agent is online"},
		{"discover", "", 0, "", "no agent is online"},
	})
	f.wasAsked(t, `POST /jobs/heartbeat {"agent_id":"`+testAgent+`"}`) // by pull
}

// TestTablesFit checks that tables on a terminal have at most 80 columns, as far as the columns that may be shortened
// allow it.
func TestTablesFit(t *testing.T) {
	long := strings.Repeat("Übersetzung", 10)
	for _, c := range []struct {
		cells []string
		long  []int
		want  string
	}{
		{[]string{testAgent, "Texts", "acme", "0.25", "100.00"}, []int{1, 2}, testAgent + "  Texts  acme  0.25  100.00\n"},
		{[]string{testAgent, long, "acme", "0.25", "100.00"}, []int{1, 2}, testAgent + "  Übersetzung…bersetzung  acme  0.25  100.00\n"},
		{[]string{testAgent, long, long, "0.25", "999999999.999999"}, []int{1, 2}, testAgent + "  Über…ung  Über…ung  0.25  999999999.999999\n"},
		{[]string{long, "x"}, nil, long + "  x\n"},
	} {
		rows := [][]string{c.cells}
		cli.Narrow(rows, c.long, cli.DefaultWidth)
		if got := string(cli.AlignedTable(rows, nil)); got != c.want || c.long != nil && utf8.RuneCountInString(got) > cli.DefaultWidth+1 {
			t.Errorf("%q has %d columns, want %q", got, utf8.RuneCountInString(got)-1, c.want)
		}
	}
}

// TestJobsHire runs the commands of those who hire.
func TestJobsHire(t *testing.T) {
	f := newRegistry(t)
	key := newKeyFile(t, "cj_", 0o600)
	t.Setenv("AGORA_JOBS_KEY", key)
	hire := "hire|" + testAgent + "|s|--budget|0.15|--job-id|" + testJob
	checkJobs(t, false, []jobsCommand{
		{hire + `|--input|{"n":1}|--orchestrator|bob|--callback|https://c.example`, "", 0,
			`{"job_id":"` + testJob + `","agent_id":"` + testAgent + `","status":"SUCCESS","output_data":{"n":2},"execution_cost":0.1,"execution_time_ms":5}` + "\n", ""},
		{hire + "|--input|-", `{"n":1}`, 0, "SUCCESS", ""},
		{hire + "|--input|7", "", 1, "", "the input must be a JSON object"},
		{hire + "|--timeout|1s|--no-wait", "", 2, "", "can't be used together"},
		{hire + "|--timeout=-1s", "", 2, "", "must not be negative"},
		{"hire|" + testAgent + "|s", "", 2, "", "--budget"},
		{"status|" + testJob, "", 1, `"status":"FAILURE"`, "the job failed: EXECUTION_ERROR: no wind"},
		{"status|" + testJob + "|--timeout|1m", "", 1, `"status":"FAILURE"`, "the job failed"},
		{"status|" + testJob + "|--timeout=-1s", "", 2, "", "must not be negative"},
	})
	f.wasAsked(t, `POST /jobs/a/`+testAgent+`/jobs {"job_id":"`+testJob+`","orchestrator_id":"bob","skill_name":"s","input_data":{"n":1},"budget":0.15,"callback_url":"https://c.example"}`)
	pending := `{"job_id":"` + testJob + `","agent_id":"` + testAgent + `","status":"PENDING","output_data":{},"execution_cost":0}`
	f.answers["POST /jobs/a/"+testAgent+"/jobs"] = "202 " + pending
	f.answers["GET /jobs/jobs/"+testJob] = pending
	checkJobs(t, false, []jobsCommand{
		{hire + "|--no-wait", "", 0, pending + "\n", ""},
		{hire + "|--timeout|300ms", "", 1, "", "has not ended within 300ms; agora jobs status " + testJob},
		{"status|" + testJob, "", 0, "PENDING", ""},
		{"status|" + testJob + "|--timeout|300ms", "", 1, "", "has not ended within 300ms"},
	})
	var progress bytes.Buffer
	env := cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: new(bytes.Buffer), Stderr: &progress, StderrIsTerminal: true}
	run(env, strings.Split("jobs|"+hire+"|--timeout|300ms", "|"))
	if !strings.HasPrefix(progress.String(), "agora: waiting for the result of the job "+testJob+"\n") {
		t.Errorf("on a terminal, agora jobs hire says %q", progress.String())
	}
	f.answers["POST /jobs/a/"+testAgent+"/jobs"] = `401 {"detail":"who are you?"}`
	checkJobs(t, false, []jobsCommand{{hire, "", 1, "", "who are you?; the key in " + key + " is not valid"}})
}

// TestJobsSigned checks that --key signs the requests, also if AGORA_JOBS_KEY is set, and that no key is saved.
func TestJobsSigned(t *testing.T) {
	f := newRegistry(t)
	t.Setenv("AGORA_JOBS_KEY", newKeyFile(t, "cj_", 0o600))
	carol := newKey(t)
	file := filepath.Join(t.TempDir(), "carol.key")
	if err := didkey.Save(file, carol); err != nil {
		t.Fatal(err)
	}
	f.answers["POST /jobs/accounts"] = `201 {"owner_id":"carol","balance":100}`
	checkJobs(t, false, []jobsCommand{
		{"account|carol|--key|" + file, "", 0, `{"owner_id":"carol","balance":100}` + "\n", ""},
		{"balance|--key|missing", "", 1, "", "missing"},
	})
	token, ok := strings.CutPrefix(f.auth, "Agora ")
	call, err := envelope.ParseCall(token)
	if !ok || err != nil || call.Reader != carol.DID() || call.Target != "/jobs/accounts" || call.Verify() != nil {
		t.Errorf("%q: %+v, %v", f.auth, call, err)
	}
	f.answers["GET /jobs/economy"] = `401 {"detail":"no"}`
	checkJobs(t, false, []jobsCommand{{"balance|--key|" + file, "", 1, "", "status 401: no\n"}}) // the file of AGORA_JOBS_KEY has no part in it
	var asked map[string]any
	if _, body, _ := strings.Cut(f.asked[0], "{"); json.Unmarshal([]byte("{"+body), &asked) != nil || asked["owner_id"] != "carol" {
		t.Errorf("asked %q", f.asked)
	}
}

// TestJobsInterrupted checks what a command says that is interrupted while the registry does not answer.
func TestJobsInterrupted(t *testing.T) {
	f := newRegistry(t)
	key := newKeyFile(t, "cj_", 0o600)
	for args, want := range map[string]string{
		"hire|" + testAgent + "|s|--budget|1|--job-id|" + testJob: "interrupted; the job may run; agora jobs status " + testJob,
		"transfer|a|b|1|--transfer-id|" + testJob:                 "interrupted; it is unknown if the credits have moved; the same command with --transfer-id " + testJob,
		"pull|" + testAgent: "handed out again in five minutes",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		f.during = func(gone context.Context) { // there is no answer, or the command could get it first
			cancel()
			<-gone.Done()
		}
		var out, problems bytes.Buffer
		code := run(cli.Environment{Ctx: ctx, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &problems}, strings.Split("jobs|"+args+"|--key-file|"+key, "|"))
		if code != cli.ExitFailed || !strings.Contains(problems.String(), want) {
			t.Errorf("agora jobs %s ends with %d and prints %s", args, code, problems.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	beats := 0
	f.during = func(gone context.Context) {
		if beats++; beats == 3 {
			cancel()
			<-gone.Done()
		}
	}
	f.asked = nil
	var problems bytes.Buffer
	if code := run(cli.Environment{Ctx: ctx, Stdin: strings.NewReader(""), Stdout: new(bytes.Buffer), Stderr: &problems},
		[]string{"jobs", "heartbeat", testAgent, "--every", "1s", "--key-file", key}); code != cli.ExitOK || len(f.asked) != 3 ||
		strings.Count(problems.String(), "is online") != 1 {
		t.Errorf("%d after %q: %s", code, f.asked, problems.String())
	}
}
