package ledger_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

// threads returns a thread after each of its steps. Together the steps use every field and list of a record.
func threads(t testing.TB) (all []*ledger.Thread) {
	t.Helper()
	client, agent, other := keys[0], keys[1], keys[2]
	var candidates []thread.Thread
	now := noon
	for _, step := range []struct {
		by didkey.Key
		envelope.Payload
		to didkey.DID
	}{
		{client, envelope.Request{RequestID: "r", Intent: "echo"}, ""},
		{other, envelope.Offer{RequestID: "r"}, client.DID()},
		{agent, envelope.Offer{RequestID: "r"}, client.DID()},
		{agent, envelope.Offer{RequestID: "r"}, client.DID()},
		{other, envelope.Failure{RequestID: "r", Code: "NO", Message: "no"}, client.DID()},
		{client, envelope.Accept{RequestID: "r"}, agent.DID()},
	} {
		m, err := envelope.Draft{Thread: "t", Recipient: step.to, Payload: step.Payload}.Sign(step.by, now)
		if err != nil {
			t.Fatal(err)
		}
		next, _, err := thread.Rules{}.Apply(candidates, m, now)
		if err != nil {
			t.Fatal(err)
		}
		candidates = []thread.Thread{next}
		all = append(all, &ledger.Thread{Thread: next, Number: 7, RequestExpires: noon.Add(time.Hour),
			Keep: now.Add(time.Hour)})
		now = now.Add(time.Second)
	}
	ended := *all[len(all)-1]
	ended.Terms = thread.Terms{PendingTimeout: time.Hour, ActiveTimeout: time.Minute, Quiet: true}
	ended.Thread = thread.Rules{}.At(ended.Thread, now.AddDate(0, 1, 0))
	return append(all, &ended)
}

func rowOf(t *ledger.Thread) ledger.Row {
	return ledger.Row{Number: t.Number, Key: t.Key(), Record: t.Encode()}
}

// TestRecord checks that Decode returns the thread that was encoded, and rejects records that are cut off.
func TestRecord(t *testing.T) {
	for _, want := range threads(t) {
		row := rowOf(want)
		got, err := row.Decode()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v\n got %+v\nwant %+v", err, got, want)
		}
		for n := range row.Record {
			short := row
			short.Record = row.Record[:n]
			if _, err := short.Decode(); err == nil {
				t.Errorf("the first %d of %d bytes of a record are decoded without an error", n, len(row.Record))
			}
		}
	}
}

// FuzzDecode checks that Decode either rejects a record or returns a thread that survives encoding and decoding.
func FuzzDecode(f *testing.F) {
	all := threads(f)
	for _, t := range all {
		f.Add(t.Encode())
	}
	row := rowOf(all[0])
	f.Fuzz(func(t *testing.T, record []byte) {
		row := row
		row.Record = slices.Clone(record)
		first, err := row.Decode()
		if err != nil {
			return
		}
		again := rowOf(first)
		second, err := again.Decode()
		if err != nil || !reflect.DeepEqual(first, second) {
			t.Fatalf("%v\n%+v\n%+v", err, first, second)
		}
	})
}

// TestStateNumbers checks that the number of a state stays the same, because databases store it.
func TestStateNumbers(t *testing.T) {
	want := []thread.State{thread.Open, thread.Pending, thread.Active, thread.Completed, thread.Failed}
	if got := ledger.States(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for number, state := range want {
		if got, of := ledger.StateNumber(state), ledger.StateOf(int64(number)); got != number || of != state {
			t.Errorf("%s has the number %d, and %d is the number of %q; want %d", state, got, number, of, number)
		}
	}
	for _, number := range []int64{-1, int64(len(want))} {
		if of := ledger.StateOf(number); of != "" {
			t.Errorf("%d is the number of %q, want no state", number, of)
		}
	}
}
