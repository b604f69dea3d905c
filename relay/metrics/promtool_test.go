//go:build operations

package metrics_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPromtool checks the alerts and the expressions of the dashboard with Prometheus's own tool, and runs
// alerts_test.yml.
func TestPromtool(t *testing.T) {
	rules := "groups:\n  - name: dashboard\n    rules:\n"
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", "agora", "$instance", ".*")
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			expr, err := json.Marshal(variables.Replace(target.Expr)) // JSON is YAML
			if err != nil {
				t.Fatal(err)
			}
			rules += fmt.Sprintf("      - {record: 'panel:%d:%s', expr: %s}\n", p.ID, target.RefID, expr)
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	page := get(full(t), "/metrics").Body.String()
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"check", "rules", file}, {"check", "metrics"},
		{"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Stdin = strings.NewReader(page) // for check metrics
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
