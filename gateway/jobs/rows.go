package jobs

import (
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file reads and writes the rows of principals, accounts and agents. Each row type has the columns of its table, in
// their order, without the checksum. The functions that find a row return the zero row if there is none. ledger.go has
// the tables of the ledger, and job.go those of jobs.

// The counters of the rows' numbers.
const (
	principalCounter = "jobs_principal"
	ownerCounter     = "jobs_owner"
	agentCounter     = "jobs_agent"
	recordCounter    = "jobs_record"
	jobCounter       = "jobs_job"
)

// principal is a row of jobs_principal.
type principal struct {
	n       int64
	did     didkey.DID
	issued  credits.Amount
	created int64
}

const (
	principalTable   = "jobs_principal"
	principalColumns = "n, did, issued, created"
)

func (p principal) values() []any { return []any{p.n, string(p.did), int64(p.issued), p.created} }

func (p *principal) fields() []any { return []any{&p.n, &p.did, &p.issued, &p.created} }

func principalByNumber(q relay.Querier, n int64) (p principal, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(p.fields()...) },
		"SELECT "+principalColumns+" FROM jobs_principal WHERE n = ?", n)
	return p, err
}

func principalByDID(q relay.Querier, did didkey.DID) (p principal, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(p.fields()...) },
		"SELECT "+principalColumns+" FROM jobs_principal WHERE did = ? AND did <> ''", string(did))
	return p, err
}

func insertPrincipal(tx relay.ExtTx, p principal) error {
	return gateway.Exec(tx, "INSERT INTO jobs_principal ("+principalColumns+", sum) VALUES (?, ?, ?, ?, ?)",
		gateway.WithSum(principalTable, p.values())...)
}

func updatePrincipal(tx relay.ExtTx, p principal) error {
	return gateway.Exec(tx, "UPDATE jobs_principal SET n = ?, did = ?, issued = ?, created = ?, sum = ? WHERE n = ?",
		append(gateway.WithSum(principalTable, p.values()), p.n)...)
}

// owner is a row of jobs_owner: an account.
type owner struct {
	n         int64
	id        string
	principal int64
	balance   credits.Amount
	opened    bool
}

const (
	ownerTable   = "jobs_owner"
	ownerColumns = "n, id, principal, balance, opened"
)

func (a owner) values() []any {
	return []any{a.n, a.id, a.principal, int64(a.balance), flag(a.opened)}
}

func (a *owner) fields() []any { return []any{&a.n, &a.id, &a.principal, &a.balance, &a.opened} }

// flag is how a column stores a bool.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// blob returns b as a column stores it. Reading a column without bytes gives nil, which would be stored as NULL.
func blob(b []byte) []byte { return append([]byte{}, b...) }

func ownerByNumber(q relay.Querier, n int64) (a owner, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(a.fields()...) },
		"SELECT "+ownerColumns+" FROM jobs_owner WHERE n = ?", n)
	return a, err
}

// ownerByID finds an account, also @issue and @escrow.
func ownerByID(q relay.Querier, id string) (a owner, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(a.fields()...) },
		"SELECT "+ownerColumns+" FROM jobs_owner WHERE id = ?", id)
	return a, err
}

// ownersOf returns the accounts of a principal, the oldest first.
func ownersOf(q relay.Querier, principal int64) (all []owner, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var a owner
		err := scan(a.fields()...)
		all = append(all, a)
		return err
	}, "SELECT "+ownerColumns+" FROM jobs_owner WHERE principal = ? ORDER BY n", principal)
	return all, err
}

func insertOwner(tx relay.ExtTx, a owner) error {
	return gateway.Exec(tx, "INSERT INTO jobs_owner ("+ownerColumns+", sum) VALUES (?, ?, ?, ?, ?, ?)",
		gateway.WithSum(ownerTable, a.values())...)
}

func updateOwner(tx relay.ExtTx, a owner) error {
	return gateway.Exec(tx, "UPDATE jobs_owner SET n = ?, id = ?, principal = ?, balance = ?, opened = ?, sum = ? WHERE n = ?",
		append(gateway.WithSum(ownerTable, a.values()), a.n)...)
}

// agent is a row of jobs_agent.
type agent struct {
	n                   int64
	id                  string
	principal, owner    int64
	name                string
	endpoint            []byte
	score               score
	successes, failures int64
	registered          int64
	heartbeat, active   int64
	offline             bool
	deleted             int64
	bridged             bool // its endpoint is the DID of its principal
}

const (
	agentTable   = "jobs_agent"
	agentColumns = "n, id, principal, owner, name, endpoint, score, successes, failures, registered, heartbeat, active, " +
		"offline, deleted, bridged"
)

// agents describes the table. Rows of earlier versions are not bridged.
var agents = gateway.Table{Name: agentTable, Key: 1, Columns: strings.Split(agentColumns, ", "), Added: 1}

func (a agent) values() []any {
	return []any{a.n, a.id, a.principal, a.owner, a.name, blob(a.endpoint), int64(a.score), a.successes, a.failures, a.registered,
		a.heartbeat, a.active, flag(a.offline), a.deleted, flag(a.bridged)}
}

func (a *agent) fields() []any {
	return []any{&a.n, &a.id, &a.principal, &a.owner, &a.name, &a.endpoint, &a.score, &a.successes, &a.failures,
		&a.registered, &a.heartbeat, &a.active, &a.offline, &a.deleted, &a.bridged}
}

// live reports whether the agent exists. The zero agent does not.
func (a agent) live() bool { return a.n != 0 && a.deleted == 0 }

// pulls reports whether the agent pulls its jobs, because it has no endpoint.
func (a agent) pulls() bool { return len(a.endpoint) == 0 }

// way returns how jobs go to the agent.
func (a agent) way() way {
	switch {
	case a.bridged:
		return byRequest
	case a.pulls():
		return byPull
	}
	return toEndpoint
}

// endpointPlace says where the endpoint of an agent is stored.
func endpointPlace(agent int64) gateway.Place {
	return gateway.Place{Table: agentTable, Column: "endpoint", Row: agent}
}

func agentByNumber(q relay.Querier, n int64) (a agent, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(a.fields()...) },
		"SELECT "+agentColumns+" FROM jobs_agent WHERE n = ?", n)
	return a, err
}

// agentWithPrincipal returns an agent and its principal.
func agentWithPrincipal(q relay.Querier, n int64) (a agent, p principal, err error) {
	if a, err = agentByNumber(q, n); err == nil {
		p, err = principalByNumber(q, a.principal)
	}
	return a, p, err
}

// agentByID finds an agent, also one that was deleted.
func agentByID(q relay.Querier, id string) (a agent, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(a.fields()...) },
		"SELECT "+agentColumns+" FROM jobs_agent WHERE id = ?", id)
	return a, err
}

func insertAgent(tx relay.ExtTx, a agent) error {
	return gateway.Exec(tx, "INSERT INTO jobs_agent ("+agentColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "+
		"?, ?, ?, ?)", agents.WithSum(a.values())...)
}

// updateAgent stores an agent, and changes the lists if it has another score, has become online, or is no longer.
func updateAgent(tx relay.ExtTx, a agent) error {
	before, wasOnline, err := listed(tx, a.n)
	if err != nil {
		return err
	}
	until := a.until()
	if err := gateway.Exec(tx, "UPDATE jobs_agent SET n = ?, id = ?, principal = ?, owner = ?, name = ?, endpoint = ?, "+
		"score = ?, successes = ?, failures = ?, registered = ?, heartbeat = ?, active = ?, offline = ?, deleted = ?, bridged = ?, sum = ?, "+
		"until = ? WHERE n = ?", append(agents.WithSum(a.values()), until, a.n)...); err != nil {
		return err
	}
	if online := until > 0; a.score != before || online != wasOnline {
		return relist(tx, a.n, a.score, online, wasOnline)
	}
	return nil
}

// skill is a row of jobs_skill.
type skill struct {
	agent         int64
	name          string
	position      int64
	cost          credits.Amount
	description   string
	input, output string // JSON
}

const (
	skillTable   = "jobs_skill"
	skillColumns = "agent, name, position, cost, description, input, output"
)

func (s skill) values() []any {
	return []any{s.agent, s.name, s.position, int64(s.cost), s.description, s.input, s.output}
}

func (s *skill) fields() []any {
	return []any{&s.agent, &s.name, &s.position, &s.cost, &s.description, &s.input, &s.output}
}

// skillsOf returns the skills of an agent, in its order.
func skillsOf(q relay.Querier, agent int64) (all []skill, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var s skill
		err := scan(s.fields()...)
		all = append(all, s)
		return err
	}, "SELECT "+skillColumns+" FROM jobs_skill WHERE agent = ? ORDER BY position", agent)
	return all, err
}

// skillNamed returns a skill of an agent without its schemas. It does not read them, because they may be large.
func skillNamed(q relay.Querier, agent int64, name string) (all []skill, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		s := skill{agent: agent, name: name, input: "{}", output: "{}"}
		err := scan(&s.cost, &s.description)
		all = append(all, s)
		return err
	}, "SELECT cost, description FROM jobs_skill WHERE agent = ? AND name = ?", agent, name)
	return all, err
}

// insertSkill stores a skill of an agent, whose row must be stored.
func insertSkill(tx relay.ExtTx, s skill) error {
	rating, online, err := listed(tx, s.agent)
	if err != nil {
		return err
	}
	if err := gateway.Exec(tx, "INSERT INTO jobs_skill ("+skillColumns+", sum, score, online) VALUES (?, ?, ?, ?, ?, ?, "+
		"?, ?, ?, ?)", append(gateway.WithSum(skillTable, s.values()), int64(rating), flag(online))...); err != nil {
		return err
	}
	return nameSkill(tx, s.name, online)
}

func deleteSkills(tx relay.ExtTx, agent int64) error {
	_, online, err := listed(tx, agent)
	if err != nil {
		return err
	}
	if err := unnameSkills(tx, agent, online); err != nil {
		return err
	}
	return gateway.Exec(tx, "DELETE FROM jobs_skill WHERE agent = ?", agent)
}
