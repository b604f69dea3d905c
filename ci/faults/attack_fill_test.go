package faults

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

// exampleID is the id of agents and jobs in the examples of the OpenAPI document.
const exampleID = "a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f"

// rowWriter writes rows of gateways as the first version of the relay did. A relay that opens them must first run all
// later migrations.
type rowWriter struct {
	t     testing.TB
	store *sqlite.Store
	now   int64
	rows  [][]any // each is a table, and the values of a row without its checksum
}

// put stores a row later.
func (w *rowWriter) put(table string, values ...any) {
	if w.rows = append(w.rows, append([]any{table}, values...)); len(w.rows) == 1000 {
		w.flush()
	}
}

func (w *rowWriter) flush() {
	_, err := w.store.Update(context.Background(), func(tx relay.StoreTx) error {
		for _, row := range w.rows {
			table := row[0].(string)
			values := gateway.WithSum(table, append([]any{}, row[1:]...))
			text := "INSERT INTO " + table + " VALUES (?" + strings.Repeat(", ?", len(values)-1) + ")"
			if _, err := tx.Exec(text, values...); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return nil
	})
	must(w.t, err)
	w.rows = nil
}

// key stores a new key, and returns it.
func (w *rowWriter) key(kind gateway.Kind, owner int) string {
	key := gateway.NewKey(kind)
	hash := sha256.Sum256([]byte(key))
	w.put("gate_key", hash[:], string(kind), owner, "", 0)
	return key
}

func (w *rowWriter) counter(name string, value int) { w.put("gate_counter", name, value) }

// fillGateways writes rows that make the reads of gateways dear. It returns the keys of their owners, by security
// scheme. The rows have the names of the examples in the OpenAPI document.
func fillGateways(t testing.TB, data string) (keys map[string]string) {
	t.Helper()
	extensions := []relay.Extension{gateway.Extension, hub.Extension, channel.Extension, jobs.Extension}
	for i := range extensions {
		extensions[i].Migrations = extensions[i].Migrations[:1]
	}
	store, err := sqlite.Open(t.Context(), filepath.Join(data, "agora.db"), sqlite.Options{Extensions: extensions})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	w := &rowWriter{t: t, store: store, now: time.Now().UnixNano()}
	w.fillHub(scaled(10_000), scaled(10_000))
	w.fillChannel(200, scaled(10_000))
	w.fillJobs(scaled(2_000), scaled(100_000))
	keys = map[string]string{"hubKey": w.key(gateway.HubAgent, 1), "channelKey": w.key(gateway.Channel, 1),
		"memberKey": w.key(gateway.Member, 1), "jobsKey": w.key(gateway.Principal, 1),
		"operatorKey": gateway.NewKey(gateway.Operator)} // of another relay
	w.flush()
	return keys
}

// fillHub writes agents. The first has a long history.
func (w *rowWriter) fillHub(agents, messages int) {
	const alice, bob = "alice@relay.example", "bob@relay.example"
	text := strings.Repeat("Good morning! ", 40)
	envelope := `{"chorus_version":"0.4","original_text":"` + text + `","sender_culture":"en","sender_id":"` + bob + `"}`
	for n := 1; n <= agents; n++ {
		address, kept := fmt.Sprintf("agent%d@relay.example", n), 0
		if n <= 2 {
			address, kept = []string{alice, bob}[n-1], messages
		}
		const card = `{"card_version":"0.3","supported_languages":["en"],"user_culture":"en"}`
		w.put("hub_agent", n, address, "en", card, []byte{}, w.now, 0)
		w.put("hub_use", n, w.now, 0, 0, 0, kept, kept*len(envelope), 0, 0)
	}
	for n := 1; n <= messages; n++ {
		w.put("hub_message", n, fmt.Sprintf("%032x", n), 2, bob, 1, alice, envelope, w.now-int64(time.Hour)+int64(n))
		w.put("hub_delivery", n, 2, 1, len(envelope), 2, "poll", w.now, w.now, "")
		w.put("hub_entry", 1, n)
		w.put("hub_entry", 2, n)
	}
	w.counter("hub_agent", agents)
	w.counter("hub_message", messages)
}

// fillChannel writes a channel.
func (w *rowWriter) fillChannel(members, events int) {
	w.put("channel_channel", 1, "ch_1", "ops", "Servers and alarms", w.now, 0)
	for n := 1; n <= members; n++ {
		w.put("channel_party", n, 1, fmt.Sprint("member", n), 0, []byte{}, "", "none", 0, 0)
		w.put("channel_presence", n, "", w.now)
	}
	body := `{"content":"` + strings.Repeat("Good morning! ", 40) + `","type":"message"}`
	for n := 1; n <= events; n++ {
		w.put("channel_event", 1, n, fmt.Sprint("msg_", n), w.now, 1, "member1", 0, "message", "api", 0, body)
	}
	w.counter("channel_channel", 1)
	w.counter("channel_party", members)
	w.counter("channel_event_1", events)
}

// fillJobs writes agents with the same skill, and the records of two accounts of one principal.
func (w *rowWriter) fillJobs(agents, records int) {
	const initial = 1_000_000_000 // millionths of a credit
	w.put("jobs_principal", 1, "", 2*initial, w.now)
	w.put("jobs_owner", 1, "@issue", 0, -2*initial, 1)
	schema := `{"description":"` + strings.Repeat("words ", 80) + `","type":"object"}`
	for n := 1; n <= agents; n++ {
		id, principal, owner := fmt.Sprintf("a3b8d1b6-0b3b-4b1a-9c1a-%012d", n), 2+n/100, 4+n/100 // 100 agents each
		if n == 1 {
			id, principal, owner = exampleID, 1, 2
		}
		if n == 1 || n%100 == 0 {
			w.put("jobs_principal", 2+n/100, "", 0, w.now)
			w.put("jobs_owner", 4+n/100, fmt.Sprint("owner", n), 2+n/100, 0, 1)
		}
		w.put("jobs_agent", n, id, principal, owner, fmt.Sprint("Text-Analyst ", n), []byte{}, 50_000_000,
			0, 0, w.now, w.now, w.now, 0, 0)
		w.put("jobs_skill", n, "analyze_text", 0, 100_000, "Counts words", schema, schema)
		w.put("jobs_skill", n, fmt.Sprint("analyze_text_", n), 1, 100_000, "Counts words", schema, schema)
	}
	balances := []int{0, 0}
	for n := 1; n <= records; n++ {
		from, to, amount, kind := 2+n%2, 3-n%2, 100_000, "transfer"
		if n <= 2 {
			from, to, amount, kind = 1, 1+n, initial, "initial"
			w.put("jobs_entry", 1, n, -amount, -n*amount)
		} else {
			balances[from-2] -= amount
			w.put("jobs_entry", from, n, -amount, balances[from-2])
		}
		balances[to-2] += amount
		w.put("jobs_entry", to, n, amount, balances[to-2])
		w.put("jobs_record", n, fmt.Sprintf("c3b8d1b6-0b3b-4b1a-9c1a-%012d", n), kind, from, to, 0, amount, 0, "", 0, w.now)
	}
	w.put("jobs_owner", 2, "bob", 1, balances[0], 1)
	w.put("jobs_owner", 3, "acme", 1, balances[1], 1)
	w.put("jobs_total", 1, records, fmt.Sprint((records-2)*100_000))
	for name, value := range map[string]int{"principal": 2 + agents/100, "owner": 4 + agents/100, "agent": agents,
		"record": records} {
		w.counter("jobs_"+name, value)
	}
}
