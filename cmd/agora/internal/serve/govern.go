package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/relay/policycmd"
)

// governFlags are the flags of serve for what the operator decides about messages, and for backups.
type governFlags struct {
	PolicyCmd     []string        `sep:"none" placeholder:"ARG" help:"A program that decides which messages are stored, and its arguments, one in each flag. There is no shell. It gets a line of JSON for each message; see docs/OPERATING.md."`
	PolicyPayload bool            `help:"Give the policy program the payloads of messages too."`
	PolicyTimeout time.Duration   `default:"2s" placeholder:"DURATION" help:"How long the policy program may take for one message (default: ${default})."`
	PolicyFail    string          `default:"closed" enum:"open,closed" placeholder:"open|closed" help:"What happens to messages that the policy program has not decided about: refuse them (closed, the default), or store them (open)."`
	BackupDir     string          `placeholder:"FOLDER" help:"The folder for backups of agora admin backup and of --backup-every."`
	BackupEvery   time.Duration   `placeholder:"DURATION" help:"Make a backup this often, such as 24h."`
	BackupKeep    int             `default:"7" placeholder:"N" help:"How many backups stay in --backup-dir; 0: all (default: ${default})."`
	Retention     []retentionText `sep:"none" placeholder:"TYPE=DURATION" help:"How long messages of a type are kept at most, such as MANIFEST=24h, if that is less than --max-ttl. May be repeated."`
}

func (f governFlags) Validate() error {
	switch {
	case len(f.PolicyCmd) > 0 && f.PolicyCmd[0] == "":
		return errors.New("--policy-cmd must begin with the name of a program")
	case f.PolicyTimeout < 10*time.Millisecond || f.PolicyTimeout > 8*time.Second:
		return errors.New("--policy-timeout must be from 10ms to 8s")
	case f.BackupEvery != 0 && f.BackupEvery < time.Minute:
		return errors.New("--backup-every must be at least 1m")
	case f.BackupEvery != 0 && f.BackupDir == "":
		return errors.New("--backup-every needs a folder for the backups; give it with --backup-dir")
	case f.BackupKeep < 0:
		return errors.New("--backup-keep must not be negative; 0 means all")
	}
	seen := map[envelope.Type]bool{}
	for _, r := range f.Retention {
		kind, _ := r.parts()
		if seen[kind] {
			return fmt.Errorf("--retention names %s twice", kind)
		}
		seen[kind] = true
	}
	return nil
}

// checkPolicy returns an error if the policy program cannot be started.
func (f governFlags) checkPolicy() error {
	if len(f.PolicyCmd) == 0 {
		return nil
	}
	if _, err := exec.LookPath(f.PolicyCmd[0]); err != nil {
		return fmt.Errorf("--policy-cmd: %w; name a program that can be run", err)
	}
	return nil
}

// policy returns the policy program, or nil if there is none.
func (f governFlags) policy(log *slog.Logger) *policycmd.Command {
	if len(f.PolicyCmd) == 0 {
		return nil
	}
	return policycmd.New(policycmd.Options{Argv: f.PolicyCmd, Payload: f.PolicyPayload, FailOpen: f.PolicyFail == "open",
		Timeout: f.PolicyTimeout, Log: log})
}

// retention returns how long messages are kept, by type.
func (f governFlags) retention() map[envelope.Type]time.Duration {
	all := map[envelope.Type]time.Duration{}
	for _, r := range f.Retention {
		kind, limit := r.parts()
		all[kind] = limit
	}
	return all
}

// retentionText is TYPE=DURATION.
type retentionText string

func (r *retentionText) UnmarshalText(text []byte) error {
	kind, span, _ := strings.Cut(string(text), "=")
	var t cli.TypeText
	if err := t.UnmarshalText([]byte(kind)); err != nil {
		return err
	}
	d, err := cli.ParseDuration(span)
	if err != nil || d < time.Second {
		return fmt.Errorf("%q: want a type and a duration of at least 1s, such as MANIFEST=24h", text)
	}
	*r = retentionText(text)
	return nil
}

// parts returns the type and the duration. UnmarshalText has checked both.
func (r retentionText) parts() (envelope.Type, time.Duration) {
	kind, span, _ := strings.Cut(string(r), "=")
	d, _ := cli.ParseDuration(span)
	return envelope.Type(kind), d
}

// governed is what the operator uses of a relay that runs.
type governed struct {
	bans    *admin.Bans
	policy  *policycmd.Command          // nil: there is none
	backups *admin.Backups              // nil: there is no folder for them
	socket  net.Listener                // nil: it cannot be created
	serve   func(context.Context) error // serves the socket; nil: there is none
	log     *slog.Logger
}

// openGoverned prepares what the operator uses. It needs s.relay and s.policy.
func (s *server) openGoverned(store openedStore) (err error) {
	g := &s.governed
	g.log = s.log
	if g.bans, err = admin.OpenBans(s.env.Ctx, s.relay, s.Limits.bans(), store.announcing()); err != nil {
		return err
	}
	if s.Govern.BackupDir != "" {
		g.backups, err = admin.NewBackups(admin.BackupOptions{Folder: s.Govern.BackupDir, Every: s.Govern.BackupEvery,
			Keep: s.Govern.BackupKeep, Log: s.log, Make: func(ctx context.Context, to string) error {
				_, err := datafolder.Copy(ctx, s.Data, to, nil)
				return err
			}})
		if err != nil {
			return fmt.Errorf("--backup-dir: %w", err)
		}
	}
	if g.socket, err = admin.Listen(s.Data); err != nil {
		s.log.Error("agora admin does not work, because there is no admin socket", "err", err)
	}
	handler := admin.Handler(admin.Options{Relay: s.relay, Bans: g.bans, Build: cli.Build(), Log: s.log, Backups: g.backups,
		Policy: g.policyHealth, Checkpoint: store.checkpoint, Stats: s.usage(store), Top: s.top(store), Nodes: store.nodeOptions(),
		Remove: s.removeFromGateway, RemoveSender: s.removeSender})
	if g.socket != nil {
		g.serve = func(ctx context.Context) error { return admin.Serve(ctx, g.socket, handler, s.log) }
	}
	return nil
}

// removeFromGateway removes the content that has an id at a gateway.
func (s *server) removeFromGateway(ctx context.Context, name, id string) error {
	all, err := s.servedGateways()
	if err != nil {
		return err
	}
	for _, g := range all {
		if g.name == name {
			return g.remove(ctx, id)
		}
	}
	return envelope.Errorf(envelope.CodeInvalidRequest, "this relay does not serve the gateway %s; start it with --%s", name, name)
}

// removeSender removes what a sender has sent to the gateways since a time, up to limit things.
func (s *server) removeSender(ctx context.Context, sender string, since time.Time, limit int) (map[string]int, error) {
	removed := map[string]int{}
	all, err := s.servedGateways()
	for _, g := range all {
		if err != nil || limit == 0 {
			break
		}
		var n int
		if n, err = g.removeSender(ctx, sender, since, limit); n > 0 {
			removed[g.name], limit = n, limit-n
		}
	}
	return removed, err
}

// servedGateways returns the gateways that this node serves.
func (s *server) servedGateways() ([]servedGateway, error) {
	if s.leased == nil {
		return s.gateways.all, nil
	}
	serving := s.leased.current.Load()
	if serving == nil {
		return nil, errNotServing
	}
	return serving.all, nil
}

// policyHealth returns why the policy program does not decide; nil: it does, or there is none.
func (g *governed) policyHealth() error {
	if g.policy == nil {
		return nil
	}
	return g.policy.Health()
}

// tasks returns what runs as long as the relay.
func (g *governed) tasks() []func(context.Context) {
	all := []func(context.Context){g.bans.Run}
	if g.policy != nil {
		all = append(all, g.policy.Run)
	}
	if g.backups != nil {
		all = append(all, g.backups.Run)
	}
	if g.serve != nil {
		all = append(all, func(ctx context.Context) {
			if err := g.serve(ctx); err != nil {
				g.log.Error("agora admin does not work any more", "err", err)
			}
		})
	}
	return all
}

// close closes the socket, for a relay that does not start.
func (g *governed) close() error {
	if g.socket == nil {
		return nil
	}
	return g.socket.Close()
}
