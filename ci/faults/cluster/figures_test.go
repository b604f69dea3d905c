//go:build cluster && linux

package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agora-relay/agora/internal/bench"
)

// TestFigures compares three nodes with a quorum commit with one node on SQLite, on the same machine and in the same
// run. agora bench measures both: the rate of posts, and how long a message takes from the post at one node to a poll
// that waits at any node. It runs only if AGORA_CLUSTER_FIGURES is set, and checks nothing but what agora bench checks:
// that each message is stored and delivered once.
func TestFigures(t *testing.T) {
	if os.Getenv("AGORA_CLUSTER_FIGURES") == "" {
		return
	}
	d := startDatabase(t)
	d.synced()
	single := &node{t: t, name: "single", port: freePort(t), data: filepath.Join(t.TempDir(), "single")}
	t.Cleanup(single.kill)
	nodes := newNodes(t, d, "")
	var addresses []string
	for _, n := range nodes {
		n.args = n.args[:2]                  // a node with a public URL would let this one address store only a few messages at a time
		n.store = d.servers[d.primary].url() // without the links, which would cost time
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", n.port))
	}
	for _, n := range append(nodes[:], single) {
		n.start()
	}
	three := []string{nodes[0].url(), "--nodes", strings.Join(addresses, ",")}
	for _, connections := range []int{32, 256} {
		for range 3 {
			post := []string{"--mode", "post", "--connections", fmt.Sprint(connections)}
			one := measure(t, append(post, single.url())...)
			all := measure(t, append(post, three...)...)
			t.Logf("%d connections post: one node on SQLite %.0f events/s, three nodes %.0f events/s, ratio %.2f", connections,
				one.Rate, all.Rate, all.Rate/one.Rate)
		}
	}
	for _, pollers := range []int{100, 5000} {
		for range 2 {
			r := measure(t, append(three, "--mode", "deliver", "--pollers", fmt.Sprint(pollers), "--rate", "200")...)
			t.Logf("%d polls, 200 posts/s: from sending to delivery p50 %.1f ms, p99 %.1f ms", pollers,
				r.DeliveryFromSending.P50, r.DeliveryFromSending.P99)
		}
	}
}

// measure runs agora bench for five seconds.
func measure(t *testing.T, args ...string) (report bench.Report) {
	t.Helper()
	program, err := agora()
	must(t, err)
	var progress strings.Builder
	cmd := exec.Command(program, append([]string{"bench", "--json", "--duration", "5s"}, args...)...)
	cmd.Stderr = &progress
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("agora bench: %v\n%s%s", err, progress.String(), out)
	}
	must(t, json.Unmarshal(out, &report))
	return report
}
