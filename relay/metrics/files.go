package metrics

import _ "embed"

// Alerts are alert rules for Prometheus, as YAML.
//
//go:embed alerts.yml
var Alerts []byte

// Dashboard is a dashboard for Grafana, as JSON.
//
//go:embed dashboard.json
var Dashboard []byte
