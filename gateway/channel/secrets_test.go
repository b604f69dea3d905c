package channel_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// tour uses all parts of the gateway, and makes rows in all of its tables. It returns a key of each kind, and a part of
// all URLs that are secret.
func tour(t *testing.T, f *fixture) (secrets []string) {
	t.Helper()
	r, o, s := f.channel("ops"), f.owner(t), newService(f)
	alice := r.member("alice")
	a := newAgent(t, nil)
	r.connect("bot", a.url+"/url-secret")
	r.connect("inbox", o.url)
	broken := newAgent(t, status(503))
	r.connect("broken", broken.url+"/url-secret")
	r.say(alice, "hello")
	d := a.last()
	f.want(f.post(d.Callback, object{"type": "status", "status": "here"}), 200, "")
	if got := f.tool(d, "send_message", object{"content": "by tool"}); got.Status != 200 {
		t.Errorf("%v", got)
	}
	s.answerWith(func(string, string) int { return 500 })
	f.want(s.deliver(o.url, s.body("m1", "hello", func(b object) { b["callback"] = s.base + "url-secret" })), 200, "")
	var h handed
	for _, one := range o.requests() {
		if one.Message.ID == "m1" {
			h = one
		}
	}
	f.want(f.post(h.Callback, message("waits")), 200, "")
	f.must(o.send(h, envelope.Offer{RequestID: h.envelope.ID}))
	synctest.Wait()
	for _, path := range []string{"/inbox/" + r.key, "/out/" + r.key, "/channels/" + r.key + "/inbox/" + alice, "/mcp/" + alice,
		"/" + alice, "/channels/x/members/" + alice} {
		f.do(call{"POST", path, "", object{}, nil})
		f.do(call{"DELETE", path, r.key, nil, nil})
	}
	last := func(url string) string { return url[strings.LastIndex(url, "/")+1:] }
	return []string{f.Operator, r.key, alice, last(o.url), last(d.Callback), last(h.Callback), d.token(), "url-secret"}
}

// G-7: no key and no secret URL is in the database in clear. G-8: none is in a log line.
func TestSecrets(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		secrets := tour(t, f)
		f.Stop()
		places := map[string]string{"the log": f.Logged()}
		for _, name := range engine.Files(t, f.Path) {
			b, err := os.ReadFile(name)
			f.must(err)
			places[name] = string(b)
		}
		// Encrypted texts in the database are so long that some have a part with the form of a key.
		if found := regexp.MustCompile(`(ck|cm|sk|tok|mt|op)_[A-Za-z0-9_-]{43}`).FindString(f.Logged()); found != "" {
			t.Errorf("the log has %s", found)
		}
		for _, secret := range secrets {
			if secret != "url-secret" && len(secret) < 43 {
				t.Errorf("%q is no key", secret)
			}
			for place, text := range places {
				if strings.Contains(text, secret) {
					t.Errorf("%s has %s", place, secret)
				}
			}
		}
		if !strings.Contains(f.Logged(), "/channel/inbox/…") {
			t.Error("the log has no path with a key that was replaced")
		}
	})
}

// Answers on paths with keys are not stored by caches, and browsers send no referrer.
func TestHeadersOfAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		r, _, _, d := delivered(t, f)
		o := f.owner(t)
		for _, a := range []answer{f.post(d.Callback, message("x")), f.post(d.Callback, message("")), f.post(o.url, object{}),
			r.do("GET", "", nil)} {
			if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Referrer-Policy") != "no-referrer" ||
				a.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%v has %v", a, a.Header)
			}
		}
	})
}

// stored returns how many rows a table has. clause may end with a condition.
func (f *fixture) stored(clause string) (n int64) {
	f.t.Helper()
	f.must(f.Relay.View(f.t.Context(), relay.Peer{Local: true}, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error { return scan(&n) }, "SELECT COUNT(*) FROM "+clause)
	}))
	return n
}

// G-28: `agora check` finds a changed row in any table of the gateway.
func TestCheckFindsEveryChange(t *testing.T) {
	racing.Skip(t, "nothing runs at the same time as the checks")
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(f *fixture) { f.Bubble = true })
		tour(t, f)
		time.Sleep(time.Second)
		gatetest.Tamper(t, f.Relay, channel.Extension)
	})
}

// G-29, G-30: after the restore of a backup the database answers as before, and no seq is used for something else.
func TestRestoredBackup(t *testing.T) {
	engine.OnlySQLite(t, "it copies a file")
	inBubble(t, func(t *testing.T, f *fixture) {
		r := f.channel("ops")
		alice := r.member("alice")
		r.say(alice, "before")
		backup := filepath.Join(t.TempDir(), "agora.db")
		if _, err := sqlite.Backup(t.Context(), f.Path, backup, nil); err != nil {
			t.Fatal(err)
		}
		r.say(alice, "lost")
		f.Stop()
		f.Path = backup
		f.Run()
		r.say(alice, "after")
		all := r.events()
		if len(all) != 2 || all[0]["content"] != "before" || all[1]["content"] != "after" || all[1]["seq"] != 1_000_002. {
			t.Errorf("the channel has %v", all)
		}
	})
}
