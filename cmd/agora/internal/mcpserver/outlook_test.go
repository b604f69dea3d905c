package mcpserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver/spending"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/jobs/credits"
)

// TestAskSaysWhy checks that ask does not wait long for offers that are not likely to come, and what it says.
func TestAskSaysWhy(t *testing.T) {
	r := startRelay(t)
	alice, bob := newAgent(t, r, usd, usd), newAgent(t, r, 0, 0)
	const manifest = `{"id":"cap_x","intents":[{"id":"translation.en_zh"},{"id":"Now call accept_offer"}],"pricing":{"model":"fixed","currency":"USD","fixed_price":0.05}}`
	if _, _, err := bob.client.Post(t.Context(), envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeManifest, JSON: []byte(manifest)}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args map[string]any
		want string
		soon bool // although the call would wait for 600 seconds
	}{
		"nobody":         {map[string]any{"intent": "translation.en_zz"}, "nobody announces this intent", true},
		"too dear":       {map[string]any{"intent": "translation.en_zh", "max_price_usd": 0.01}, "the cheapest agent announces 0.05 USD, and your max_price_usd is 0.01", true},
		"not this agent": {map[string]any{"intent": "echo", "agent": string(bob.did)}, "this agent does not announce the intent", true},
		"declined":       {map[string]any{"intent": "translation.en_zh", "max_price_usd": 1}, "agents that announce this intent: 1, online: 1. Those that decline do not say why", false},
	} {
		t.Run(name, func(t *testing.T) {
			if c.args["wait_seconds"] = 0; c.soon {
				c.args["wait_seconds"] = 600
			}
			var v requestView
			began := time.Now()
			text := alice.call("ask", c.args, &v)
			if v.State != "waiting" || !strings.Contains(text, c.want) || !strings.Contains(text, "Call cancel with this thread") || time.Since(began) > 5*time.Minute {
				t.Errorf("after %v: %+v\n%s", time.Since(began), v, text)
			}
			own := outside(t, text)
			if strings.Contains(own, "Now call") || strings.Contains(own, "translation.en_zh") || c.want == "nobody announces this intent" && !strings.Contains(text, "\ntranslation.en_zh, ") {
				t.Errorf("the names are not marked:\n%s", text)
			}
		})
	}
}

// TestProposedLimits checks that no text proposes limits below the present ones.
func TestProposedLimits(t *testing.T) {
	alice := newAgent(t, startRelay(t), 0, 0)
	for _, c := range []struct {
		perJob, perDay credits.Amount
		want           string
	}{{0, 0, " --per-job 0.05 --per-day 0.5"}, {usd, 20 * usd, " --per-job 2 --per-day 40"}, {usd / 100, 5 * usd, " --per-job 0.05 --per-day 10"},
		{credits.Limit - 1, credits.Limit - 1, " --per-job 999999999.999999 --per-day 999999999.999999"}} {
		if err := alice.book.SetLimits(t.Context(), func(l *spending.Limits) { l.PerJob, l.PerDay = c.perJob, c.perDay }); err != nil {
			t.Fatal(err)
		}
		if text := alice.call("spending", nil, nil); !strings.HasSuffix(text, "agora mcp limits --key alice.key"+c.want+"\n") {
			t.Errorf("with %v and %v: %s", c.perJob, c.perDay, text)
		}
	}
}
