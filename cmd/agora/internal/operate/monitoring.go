package operate

import (
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/relay/metrics"
)

type MonitoringCmd struct {
	File string `arg:"" enum:"alerts,dashboard" help:"alerts: alert rules for Prometheus, as YAML. dashboard: a dashboard for Grafana, as JSON."`
}

func (MonitoringCmd) Help() string {
	return "The rules and the dashboard use the metrics that agora serve --metrics-addr serves.\n\n" +
		"Examples:\n  agora monitoring alerts > alerts.yml\n  agora monitoring dashboard > dashboard.json"
}

func (c MonitoringCmd) Run(env cli.Environment) error {
	text := metrics.Alerts
	if c.File == "dashboard" {
		text = metrics.Dashboard
	}
	_, err := env.Exact.Write(text)
	return err
}
