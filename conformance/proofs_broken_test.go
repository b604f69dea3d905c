package conformance_test

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
)

// TestLiesAreDetected is TestFaultsAreDetected for relays with a log.
func TestLiesAreDetected(t *testing.T) {
	t.Parallel()
	l := liar{relayKey(t)}
	c := relay.Config{Key: l.key, Transparency: true}
	other := liar{relayKey(t)}
	testRelayFaults(t, c, slices.Concat(relaysWithTwoTrees(l, other), relaysWithLies(l, other), relaysWithWrongLeaves(l),
		relaysWithWrongLogs(other), carelessRelays()))
	c.Reads = relay.ToParties
	testRelayFaults(t, c, []fault{
		{name: "shows proofs to any reader",
			store: func(s relay.Store) relay.Store { return logsForAll{s.(relay.LogStore)} },
			fails: map[string]string{"X-84": "the relay accepted it"}},
		{name: "tells strangers that there is a proof", front: tellsOfProofs,
			fails: map[string]string{"X-84": "not yours"}},
	})
}

// relaysWithTwoTrees returns relays that show others another log. The key of l is the relay's key.
func relaysWithTwoTrees(l, other liar) []fault {
	return []fault{
		{name: "shows readers another tree than it proves to senders", store: forked,
			fails: map[string]string{"X-71": "leaf 0 has the hash", "X-77": "two trees", "X-80": "two trees",
				"X-81": "two trees"}},
		{name: "proves each message in another tree",
			front: provesOtherwise(l.leaves(func(*proof.Leaf) {})),
			fails: map[string]string{"X-77": "two trees", "X-80": "two trees", "X-81": "two trees"}},
		{name: "publishes a stale root", front: showsOtherwise("/checkpoint", l.staleRoot()),
			fails: map[string]string{"X-80": "two trees"}},
		{name: "publishes only once", front: showsOtherwise("/checkpoint", first()),
			fails: map[string]string{"X-80": "still has 1 leaves"}},
		{name: "publishes the first checkpoint now and then", front: showsOtherwise("/checkpoint", everySecond(first())),
			fails: map[string]string{"X-80": "shrinks to 1 leaves"}},
		{name: "publishes a size that no log has", front: showsOtherwise("/checkpoint",
			l.signs(func(c *proof.Checkpoint) { c.Size = math.MaxInt64 })),
			fails: map[string]string{"X-71": "is the size of the log", "X-81": "is the size of the log"}},
		{name: "publishes a size far from its own", front: showsOtherwise("/checkpoint",
			l.signs(func(c *proof.Checkpoint) { c.Size = 1<<53 - 1 })),
			fails: map[string]string{"X-71": "status 404", "X-80": "status 404", "X-81": "status 404"}},
		{name: "publishes with another key",
			front: showsOtherwise("/checkpoint", other.signs(func(*proof.Checkpoint) {})),
			fails: map[string]string{"X-71": "signature of the checkpoint is wrong",
				"X-80": "signature of the checkpoint is wrong"}},
	}
}

// relaysWithLies returns relays whose proofs are for something else than the message.
func relaysWithLies(l, other liar) []fault {
	return []fault{
		{name: "names a wrong index", front: provesOtherwise(shiftsIndex),
			fails: map[string]string{"X-72": "the path does not lead", "X-73": "the path does not lead"}},
		{name: "shows another index than it has proved", front: showsOtherwise("/proofs",
			l.changes(func(_ *proof.Origin, index *int64, _ *proof.Leaf) { *index++ })),
			fails: map[string]string{"X-75": "another leaf, at", "X-76": "another leaf, at"}},
		{name: "gives all messages one index",
			front: provesOtherwise(l.changes(func(_ *proof.Origin, index *int64, _ *proof.Leaf) { *index = 1 })),
			fails: map[string]string{"X-73": "the index does not grow"}},
		{name: "proves the message of another post", front: provesOtherwise(first()),
			fails: map[string]string{"X-72": "that of another message", "X-79": "that of another message"}},
		{name: "signs as another relay", front: provesOtherwise(other.changes(
			func(o *proof.Origin, _ *int64, _ *proof.Leaf) { o.DID = other.key.DID() })),
			fails: map[string]string{"X-72": "the proof is by the relay", "X-76": "the proof is by the relay"}},
		{name: "signs with another key", front: provesOtherwise(signsAs(other)),
			fails: map[string]string{"X-72": "signature of the checkpoint is wrong"}},
		{name: "proves in another log",
			front: provesOtherwise(l.changes(func(o *proof.Origin, _ *int64, _ *proof.Leaf) { o.Epoch++ })),
			fails: map[string]string{"X-72": "the proof is of the log"}},
		{name: "answers before it stores the message", front: storesLate,
			fails: map[string]string{"X-77": "is missing"}},
		{name: "answers before it stores the leaf", front: logsLate,
			fails: map[string]string{"X-77": "status 404", "X-76": "status 404"}},
		{name: "proves a duplicate with a new leaf", front: l.logsAgain(true),
			fails: map[string]string{"X-75": "the answer has a proof"}},
		{name: "gives a duplicate a new leaf", front: l.logsAgain(false),
			fails: map[string]string{"X-75": "another leaf, at"}},
	}
}

// relaysWithWrongLeaves returns relays that prove something wrong about the message.
func relaysWithWrongLeaves(l liar) []fault {
	return []fault{
		{name: "reuses a salt", front: provesOtherwise(l.leaves(func(leaf *proof.Leaf) { leaf.Salt = [16]byte{1} })),
			fails: map[string]string{"X-79": "two leaves have the salt"}},
		{name: "salts with zeros", front: provesOtherwise(l.leaves(func(leaf *proof.Leaf) { leaf.Salt = [16]byte{} })),
			fails: map[string]string{"X-79": "two leaves have the salt"}},
		{name: "takes each message for the REQUEST of its thread",
			front: provesOtherwise(l.leaves(func(leaf *proof.Leaf) { leaf.Request = leaf.Event })),
			fails: map[string]string{"X-74": "another request"}},
		{name: "names no REQUEST",
			front: provesOtherwise(l.leaves(func(leaf *proof.Leaf) { leaf.Request = proof.Hash{} })),
			fails: map[string]string{"X-74": "another request"}},
		{name: "takes a MANIFEST for a REQUEST", front: provesOtherwise(l.leaves(func(leaf *proof.Leaf) {
			if leaf.Request == (proof.Hash{}) {
				leaf.Request = leaf.Event
			}
		})), fails: map[string]string{"X-74": "another request"}},
		{name: "dates a message back", front: provesOtherwise(l.leaves(
			func(leaf *proof.Leaf) { leaf.Received = leaf.Received.Add(-6 * time.Minute) })),
			fails: map[string]string{"X-72": "says that the message arrived at"}},
		{name: "has a wrong clock", front: provesOtherwise(l.leaves(
			func(leaf *proof.Leaf) { leaf.Received = leaf.Received.Add(-50 * time.Second) })),
			fails: map[string]string{"X-72": "received is"}},
	}
}

// relaysWithWrongLogs returns relays with another log in the well-known document.
func relaysWithWrongLogs(other liar) []fault {
	return []fault{
		{name: "names a log of another relay", front: describesLog("origin", string(other.key.DID())+"/00000001"),
			fails: map[string]string{"X-71": "status 200", "X-72": "status 200"}},
		{name: "names another start",
			front: describesLog("start", "agora-log/1\nbegan 2026-02-02T11:59:59.000Z\nprevious -\n"),
			fails: map[string]string{"X-71": "leaf 0 has the hash"}},
		{name: "names a start that is none", front: describesLog("start", "agora-log/1\n"),
			fails: map[string]string{"X-71": "has not the form"}},
	}
}

// carelessRelays returns relays with a right log and wrong answers about it.
func carelessRelays() []fault {
	return []fault{
		{name: "does not say how often it publishes", front: describesLog("publishSeconds", 0),
			fails: map[string]string{"X-71": "status 200"}},
		{name: "answers /proofs as JSON", front: withHeader("/proofs", "Content-Type", "application/json"),
			fails: map[string]string{"X-76": "application/json"}},
		{name: "lets caches keep proofs", front: withHeader("/proofs", "Cache-Control", "max-age=60"),
			fails: map[string]string{"X-76": "max-age=60"}},
		{name: "answers checkpoints as bytes",
			front: withHeader("/checkpoint", "Content-Type", "application/octet-stream"),
			fails: map[string]string{"X-80": "application/octet-stream", "X-81": "application/octet-stream"}},
		{name: "lets caches keep checkpoints", front: withHeader("/checkpoint", "Cache-Control", "max-age=60"),
			fails: map[string]string{"X-80": "max-age=60"}},
		{name: "lets no cache keep tiles", front: withHeader("/tile/", "Cache-Control", "no-store"),
			fails: map[string]string{"X-82": "no-store"}},
		{name: "answers tiles as text", front: withHeader("/tile/", "Content-Type", "text/plain"),
			fails: map[string]string{"X-82": "text/plain"}},
		{name: "answers a part of a tile with a smaller one", front: changesTarget("/tile/", ".p/2", ".p/1"),
			fails: map[string]string{"X-82": "32 bytes"}},
		{name: "changes tiles", front: showsOtherwise(".p/1", func(text string) string { return text[1:] + "x" }),
			fails: map[string]string{"X-82": "another tile"}},
		{name: "has tiles of entries", front: changesTarget("/tile/entries/", "entries", "0"),
			fails: map[string]string{"X-82": "the relay accepted it"}},
		{name: "has a proof of each message", front: provesAnything,
			fails: map[string]string{"X-78": "the relay accepted it"}},
		{name: "takes a bad parameter for a message that is not stored",
			front: changesAnswers("/proofs", func(_ *http.Request, status int, _ http.Header, body string) (int, string) {
				if status == http.StatusBadRequest {
					return http.StatusNotFound, body
				}
				return status, body
			}), fails: map[string]string{"X-78": "another status or error"}},
		{name: "ignores unknown parameters of proofs", front: changesTarget("/proofs", "&x=1", ""),
			fails: map[string]string{"X-78": "the relay accepted it"}},
		{name: "ignores the parameter of another epoch", front: ignoresEpochs,
			fails: map[string]string{"X-80": "the relay accepted it"}},
		{name: "never proves bulk messages", front: changesTarget("/events/bulk", "proofs=true", "proofs=false"),
			fails: map[string]string{"X-83": "the first line of a proof"}},
		{name: "proves bulk messages always", front: changesTarget("/events/bulk", "proofs=false", "proofs=true"),
			fails: map[string]string{"X-83": "the answer has a proof"}},
	}
}

// ignoresEpochs is a middleware that answers for each epoch with the checkpoint that it has shown first.
func ignoresEpochs(h http.Handler) http.Handler {
	keep := first()
	return changesAnswers("/checkpoint", func(_ *http.Request, status int, _ http.Header, body string) (int, string) {
		if status == http.StatusNotFound {
			return http.StatusOK, keep("")
		}
		keep(body)
		return status, body
	})(h)
}

// TestProofsAreOptional tests that a relay without a log passes, and that the report says what was not tested.
func TestProofsAreOptional(t *testing.T) {
	t.Parallel()
	only := []string{"C-1"}
	for _, c := range conformance.Checks() {
		if c.Theme == "Proofs" {
			only = append(only, c.Number)
		}
	}
	report, err := conformance.Run(t.Context(), start(t, nil, nil), conformance.Options{Only: only})
	if err != nil {
		t.Fatal(err)
	}
	if n := report.Count(conformance.NotTested); n != len(only)-1 || !report.Holds() ||
		!strings.Contains(report.Results[1].Got, `"proofs"`) {
		t.Errorf("%+v", report)
	}
}
