//go:build cluster && linux

package cluster

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agora-relay/agora/internal/markdown"
	"github.com/agora-relay/agora/internal/postgrestest"
)

// testRunbook does what docs/CLUSTER.md says about a lost primary, command by command, while messages are posted. No
// acknowledged message may be missing afterwards, and the old primary must be a standby of the new one.
func testRunbook(t *testing.T, d *database, nodes [3]*node, urls []string) {
	text, err := os.ReadFile("../../../docs/CLUSTER.md")
	must(t, err)
	// The blocks of a list are indented.
	page, err := markdown.Parse(strings.ReplaceAll(string(text), "\n   ", "\n"))
	must(t, err)
	section, _ := page.Section("When the primary is lost")
	steps := section.Code("sh")
	if len(steps) != 6 {
		t.Fatalf("the guide has %d steps with commands, want 6", len(steps))
	}
	o := &oracle{acked: map[string]string{}}
	by := newKey(t)
	post := func(n int) {
		for range n {
			o.post(t, urls, by, t.Context().Done())
		}
	}
	post(20)
	old := d.servers[d.primary]
	next, other := d.servers[(d.primary+1)%3], d.servers[(d.primary+2)%3]
	translate := func(step string) string {
		for name, s := range map[string]*pgServer{"db2": next, "db3": other} {
			step = strings.NewReplacer("-h "+name, fmt.Sprintf("-h 127.0.0.1 -p %d", s.port),
				"host="+name, fmt.Sprintf("host=127.0.0.1 port=%d", s.port)).Replace(step)
		}
		return strings.NewReplacer("/var/lib/postgresql/15/main", old.data, "postgres -X", "agora -d postgres -X",
			"user=replicator", "user=agora", "user=postgres", "user=agora").Replace(step)
	}
	follow := func(step string) string {
		t.Helper()
		cmd := postgrestest.Command(d.folder, "bash", "-euc", translate(step))
		cmd.Env = append(os.Environ(), "PATH=/usr/lib/postgresql/15/bin:"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", translate(step), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	follow(steps[0])
	old.kill() // it has ended; the test must know it, too
	received := strings.Fields(follow(steps[1]))
	if len(received) != 2 {
		t.Fatalf("the standbys have received %q", received)
	}
	if d.query(next, fmt.Sprintf("SELECT '%s'::pg_lsn < '%s'::pg_lsn", received[0], received[1])) == "true" {
		next, other = other, next
	}
	follow(steps[2])
	follow(steps[3])
	for i, s := range d.servers {
		if s == next {
			d.primary = i
		}
	}
	waitUntil(t, "a standby streams", func() bool { return follow(steps[4]) == "1" })
	post(20)
	follow(steps[5])
	d.start(old)
	waitUntil(t, "the old primary is a standby", func() bool { return follow(steps[4]) == "2" })
	post(20)
	o.check(t, nodes)
}
