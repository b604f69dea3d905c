package serve

import (
	"context"
	"fmt"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/relay/metrics"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/postgres"
)

// NodeFigures are the figures of a node for agora admin status.
type NodeFigures struct {
	postgres.Health
	LeaseChanges      int64 `json:"leaseChanges"` // how often this node has begun or ceased to lead
	*postgres.Servers       // nil: the servers did not answer
}

// figuresOf returns the figures of a node. With an error, it returns only those that the node knows itself.
func figuresOf(ctx context.Context, node *postgres.Store) (f NodeFigures, err error) {
	f.Health, f.LeaseChanges = node.Health(), node.LeaseChanges()
	servers, err := node.Servers(ctx)
	if err == nil {
		f.Servers = &servers
	}
	return f, err
}

// Rows returns a table of the figures.
func (f NodeFigures) Rows() [][]string {
	rows := [][]string{{"node", fmt.Sprintf("%s, %s", f.Role, f.State)}, {"durability", f.Durability},
		{"lag", fmt.Sprintf("%d events of other nodes", f.Lag)}, {"lease", cli.Count(f.LeaseChanges, "change")}}
	if f.Servers == nil {
		return rows
	}
	standbys := "unknown; the role of the nodes needs pg_monitor"
	if f.Standbys != nil {
		standbys = fmt.Sprintf("%d in sync, and a commit waits for %d", *f.Standbys, f.Required)
	}
	backup := "none was recorded; see agora admin backup --made"
	if f.Backup != nil {
		backup = "recorded at " + envelope.FormatTime(*f.Backup)
	}
	return append(rows, []string{"standbys", standbys}, []string{"backup", backup})
}

// nodeOptions returns what agora admin governs of a relay of several nodes; nil: it has one.
func (s openedStore) nodeOptions() *admin.NodeOptions {
	if s.nodes == nil {
		return nil
	}
	return &admin.NodeOptions{RecordBackup: s.nodes.RecordBackup,
		Figures: func(ctx context.Context) (any, error) { return figuresOf(ctx, s.nodes) }}
}

// announcing returns what tells the nodes that the bans have changed.
func (s openedStore) announcing() admin.Nodes {
	if s.nodes == nil {
		return admin.Nodes{}
	}
	return admin.Nodes{Announce: s.nodes.Announce, Announced: s.nodes.Announced()}
}

// nodeReport is what the metrics show of a node.
func nodeReport(node *postgres.Store) metrics.NodeReport {
	h := node.Health()
	return metrics.NodeReport{Role: h.Role, State: h.State, Lag: int64(h.Lag), LeaseChanges: node.LeaseChanges()}
}

// usage measures the database of a running relay.
func (s *server) usage(store openedStore) func(context.Context) (any, error) {
	return func(ctx context.Context) (any, error) { return store.measure(ctx, s.relay.Now()) }
}

// top ranks identities by their messages.
func (s *server) top(store openedStore) func(ctx context.Context, by, order string, limit int) (any, error) {
	return func(ctx context.Context, by, order string, limit int) (any, error) {
		return store.top(ctx, ledger.Ranking(by), order == "bytes", limit, s.relay.Now())
	}
}

// measures are the figures of a database that an operator asks for. See sqlite.Measure and sqlite.Top.
type measures struct {
	measure func(ctx context.Context, now time.Time) (ledger.Usage, error)
	top     func(ctx context.Context, by ledger.Ranking, bytes bool, limit int, now time.Time) ([]ledger.Ranked, error)
}
