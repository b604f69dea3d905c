package jobsclient

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/gateway/jobs/credits"
)

// NewID returns a new UUID for an agent, a job, a transfer or a grant.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // version 4
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Account is an account of a principal. OwnerID is its name.
type Account struct {
	OwnerID string         `json:"owner_id"`
	Balance credits.Amount `json:"balance"`
}

// Open opens an account. If the caller is anonymous, the gateway makes a new principal, and key is its cj_ key. The
// gateway tells a key only once, so save it at once. Otherwise the account is added to the caller's principal, and key
// is empty; a repeat changes nothing and returns the account as it stands. initial is the balance that the account
// should begin with; nil: what the gateway gives. The account may get less.
func (c *Client) Open(ctx context.Context, owner string, initial *credits.Amount) (a Account, key string, err error) {
	var answer struct {
		Account
		Key string `json:"api_key"`
	}
	body := struct {
		OwnerID string          `json:"owner_id"`
		Initial *credits.Amount `json:"initial_balance,omitempty"`
	}{owner, initial}
	q := call{method: http.MethodPost, path: "/accounts", body: body, safe: !c.anonymous(), out: &answer}
	err = c.do(ctx, q)
	if err == nil && (answer.OwnerID == "" || c.anonymous() && answer.Key == "") {
		err = errors.New("the answer has no owner or no key; is this the URL of a jobs gateway?")
	}
	return answer.Account, answer.Key, err
}

// anonymous reports whether the caller does not say who it is.
func (c *Client) anonymous() bool { return c.Key == "" && c.Signer == nil && !HasKey(c.URL) }

// Account returns an account of the caller's principal; the operator may read every account.
func (c *Client) Account(ctx context.Context, owner string) (Account, error) {
	var answer Account
	q := call{method: http.MethodGet, path: "/accounts/" + url.PathEscape(owner), safe: true, out: &answer}
	return answer, c.do(ctx, q)
}

// Skill is a skill of an agent, with its price for one job.
type Skill struct {
	Name         string          `json:"skill_name"`
	Description  string          `json:"description,omitempty"`
	Cost         credits.Amount  `json:"cost_per_call"`
	InputSchema  json.RawMessage `json:"input_schema,omitempty"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
}

// Registration is what an agent says about itself.
type Registration struct {
	AgentID  string  `json:"agent_id"` // a UUID; empty: Register makes one
	Name     string  `json:"agent_name"`
	OwnerID  string  `json:"owner_id"`
	Endpoint string  `json:"api_endpoint,omitempty"` // the URL that gets the jobs; empty: the agent pulls them
	Skills   []Skill `json:"skills"`
}

// Registered is the answer to a registration.
type Registered struct {
	AgentID    string  `json:"agent_id"`
	Reputation float64 `json:"reputation_score"`
	JobURL     string  `json:"job_url"`
}

// Register registers an agent, or replaces what it says about itself. If the caller is anonymous, the gateway makes a
// new principal, as Open does, and key is its key.
func (c *Client) Register(ctx context.Context, r Registration) (done Registered, key string, err error) {
	if r.AgentID == "" {
		r.AgentID = NewID()
	}
	if r.Skills == nil {
		r.Skills = []Skill{}
	}
	var answer struct {
		Registered
		Key string `json:"api_key"`
	}
	q := call{method: http.MethodPost, path: "/register", body: r, safe: !c.anonymous(), out: &answer}
	err = c.do(ctx, q)
	if err == nil && (answer.AgentID == "" || c.anonymous() && answer.Key == "") {
		err = errors.New("the answer has no agent_id or no key; is this the URL of a jobs gateway?")
	}
	return answer.Registered, answer.Key, err
}

// Agent is an agent as the registry shows it.
type Agent struct {
	AgentID       string    `json:"agent_id"`
	Name          string    `json:"agent_name"`
	OwnerID       string    `json:"owner_id"`
	Endpoint      string    `json:"api_endpoint"`
	JobURL        string    `json:"job_url"`
	Skill         *Skill    `json:"skill,omitempty"` // the one that was searched for, else the first; nil: it has none
	Skills        []Skill   `json:"skills"`
	Reputation    float64   `json:"reputation_score"`
	Status        string    `json:"status"` // online or offline
	RegisteredAt  time.Time `json:"registered_at"`
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"`
}

// Query says which agents Discover returns.
type Query struct {
	Skill         string
	MinReputation float64         // from 0 to 100
	MaxCost       *credits.Amount // nil: no limit
}

// Discover returns the agents that are online and have a skill: by reputation, the highest first, then by cost.
func (c *Client) Discover(ctx context.Context, q Query) ([]Agent, error) {
	query := url.Values{"skill": {q.Skill}}
	if q.MinReputation != 0 {
		query.Set("min_reputation", strconv.FormatFloat(q.MinReputation, 'f', -1, 64))
	}
	if q.MaxCost != nil {
		query.Set("max_cost", q.MaxCost.String())
	}
	var answer struct {
		Agents []Agent `json:"agents"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: "/discover?" + query.Encode(), safe: true, out: &answer})
	return answer.Agents, err
}

// Skills returns the names of the skills of all agents that are online.
func (c *Client) Skills(ctx context.Context) ([]string, error) {
	var answer struct {
		Skills []string `json:"skills"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: "/skills", safe: true, out: &answer})
	return answer.Skills, err
}

// agentPath returns the path of something of an agent.
func agentPath(agent, rest string) string { return "/agents/" + url.PathEscape(agent) + rest }

// Agent returns an agent.
func (c *Client) Agent(ctx context.Context, agent string) (Agent, error) {
	var answer Agent
	return answer, c.do(ctx, call{method: http.MethodGet, path: agentPath(agent, ""), safe: true, out: &answer})
}

// Unregister removes an agent. Its agent_id stays reserved for its principal, and its score is kept.
func (c *Client) Unregister(ctx context.Context, agent string) error {
	q := call{method: http.MethodDelete, path: agentPath(agent, ""), safe: true, gone: true, out: new(struct{})}
	return c.do(ctx, q)
}

// Heartbeat says that an agent is there. The agent is online for 90 seconds from then on.
func (c *Client) Heartbeat(ctx context.Context, agent string) error {
	body := map[string]string{"agent_id": agent}
	return c.do(ctx, call{method: http.MethodPost, path: "/heartbeat", body: body, safe: true, out: new(struct{})})
}

// Reputation is an agent's score, from 0 to 100, and the number of jobs that have counted for it.
type Reputation struct {
	AgentID string  `json:"agent_id"`
	Score   float64 `json:"score"`
	Stats   Stats   `json:"stats"`
}

// Stats counts the jobs that have counted for a reputation.
type Stats struct {
	Total     int `json:"total"`
	Successes int `json:"successes"`
	Failures  int `json:"failures"`
}

// Reputation returns the reputation of an agent.
func (c *Client) Reputation(ctx context.Context, agent string) (Reputation, error) {
	var answer Reputation
	q := call{method: http.MethodGet, path: "/reputation/" + url.PathEscape(agent), safe: true, out: &answer}
	return answer, c.do(ctx, q)
}

// Transfer moves credits from one owner to another.
type Transfer struct {
	ID     string         `json:"transfer_id"` // a UUID; empty: Transfer makes one
	From   string         `json:"from_owner"`
	To     string         `json:"to_owner"`
	Amount credits.Amount `json:"amount"`
	JobID  string         `json:"job_id,omitempty"`
}

// Record is an entry of the ledger.
type Record struct {
	Transfer
	Time time.Time `json:"timestamp_utc"`
	Kind string    `json:"kind"` // initial, grant, hold, settle, refund or transfer
}

// Transferred is the answer to a transfer.
type Transferred struct {
	Transfer        Record         `json:"transfer"`
	SenderBalance   credits.Amount `json:"sender_balance"`
	ReceiverBalance credits.Amount `json:"receiver_balance"`
}

// Transfer moves credits. The caller must be the payer's principal. The same ID moves the credits once, however often
// it is sent. If a job of the payer's principal with this JobID has paid this payee, nothing moves, and the answer is
// that payment.
func (c *Client) Transfer(ctx context.Context, t Transfer) (Transferred, error) {
	if t.ID == "" {
		t.ID = NewID()
	}
	var answer Transferred
	return answer, c.do(ctx, call{method: http.MethodPost, path: "/transfer", body: t, safe: true, out: &answer})
}

// AuditQuery says which records Audit returns.
type AuditQuery struct {
	JobID, OwnerID string // empty: all
	Limit          int    // from 1 to 500; 0: 50
}

// Audit returns the last records of the ledger that the caller may see, the newest last, and how many there are in all.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (records []Record, total int, err error) {
	query := url.Values{}
	for name, value := range map[string]string{"job_id": q.JobID, "owner_id": q.OwnerID} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if q.Limit != 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	var answer struct {
		Transactions []Record `json:"transactions"`
		Total        int      `json:"total"`
	}
	err = c.do(ctx, call{method: http.MethodGet, path: "/audit?" + query.Encode(), safe: true, out: &answer})
	return answer.Transactions, answer.Total, err
}

// Economy is a summary of the ledger.
type Economy struct {
	Accounts     int                       `json:"total_accounts"`
	Transactions int                       `json:"total_transactions"`
	Volume       json.Number               `json:"total_volume"` // of all payments and transfers; it has no upper limit
	Balances     map[string]credits.Amount `json:"all_balances"` // by owner; only those of the caller
}

// Economy returns a summary of the ledger, with the balances of all the caller's owners.
func (c *Client) Economy(ctx context.Context) (Economy, error) {
	var answer Economy
	return answer, c.do(ctx, call{method: http.MethodGet, path: "/economy", safe: true, out: &answer})
}

// Grant issues credits to an owner. The caller must be the operator. id is a UUID; the same id issues the credits once,
// however often it is sent.
func (c *Client) Grant(ctx context.Context, id, owner string, amount credits.Amount) (Record, error) {
	body := struct {
		ID      string         `json:"grant_id"`
		OwnerID string         `json:"owner_id"`
		Amount  credits.Amount `json:"amount"`
	}{id, owner, amount}
	var answer Record
	err := c.do(ctx, call{method: http.MethodPost, path: "/operator/grants", body: body, safe: true, out: &answer})
	return answer, err
}

// Health is the state of the registry.
type Health struct {
	Service  string `json:"service"`
	Status   string `json:"status"`
	Online   int    `json:"agents_online"`
	Skills   int    `json:"total_skills"`
	Accounts int    `json:"total_accounts"`
}

// Health returns the state of the registry.
func (c *Client) Health(ctx context.Context) (Health, error) {
	var answer Health
	return answer, c.do(ctx, call{method: http.MethodGet, path: "/health", safe: true, out: &answer})
}
