package serve

import (
	"context"
	"errors"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// jobsFlags are the flags of serve for the registry of jobs.
type jobsFlags struct {
	Jobs        bool              `help:"Serve a registry of skills, jobs, credits and reputation for Chorus agents under /jobs."`
	JobsAddr    cli.ListenAddress `placeholder:"HOST:PORT" help:"Serve the registry at the root of this address too."`
	JobsInitial cli.CreditAmount  `default:"100" placeholder:"CREDITS" help:"The most initial credits of one user of the registry, over all its accounts (default: ${default})."`
	JobsSupply  cli.CreditAmount  `default:"1000000" placeholder:"CREDITS" help:"The most credits that the registry ever issues, to all users together (default: ${default})."`
	JobsTimeout time.Duration     `default:"1h" placeholder:"DURATION" help:"Longest run of a job (default: ${default})."`
	JobsDaily   int               `default:"5000" placeholder:"N" help:"How many transfers and jobs one account of the registry may pay in 24 hours. All accounts of one address together may pay twice as many (default: ${default})."`
}

func (f jobsFlags) choice() choice           { return choice{"jobs", f.Jobs, f.JobsAddr} }
func (jobsFlags) extension() relay.Extension { return jobs.Extension }

func (f jobsFlags) check() error {
	switch {
	case f.JobsTimeout < time.Second || f.JobsTimeout > 30*24*time.Hour:
		return errors.New("--jobs-timeout must be from 1s to 720h")
	case f.JobsDaily < 1:
		return errors.New("--jobs-daily must be at least 1")
	}
	return nil
}

func (f jobsFlags) open(ctx context.Context, core *gateway.Core) (servedGateway, error) {
	j, err := jobs.New(ctx, core, jobs.Options{Initial: credits.Amount(f.JobsInitial), Supply: credits.Amount(f.JobsSupply),
		Timeout: f.JobsTimeout, Daily: f.JobsDaily})
	if err != nil {
		return servedGateway{}, err
	}
	return servedGateway{url: j.URL(), api: jobs.API, mounts: j.Mounts, run: j.Run, remove: j.Remove,
		removeSender: j.RemoveSender}, nil
}

func (jobsFlags) standby(core *gateway.Core) servedGateway {
	return servedGateway{api: jobs.API, mounts: (&jobs.Gateway{Core: core}).Mounts}
}
