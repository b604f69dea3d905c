package envelope_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// The REQUEST and its continuation of RELAYS §2.
const (
	homeRequest  = `{"id":"msg_1","meta":{"home":{"did":"did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX","url":"https://a.example"},"ttl":86400},"payload":{"intent":"translation.en_zh","request_id":"req_1"},"recipient":{"id":"did:key:z6MkvRXNYcE7MMduynWTgeKbDaT1iijDSC8pZqXZc8rHPrf2"},"sender":{"id":"did:key:z6Mko9hTggMwjSTEaJaPUfE6tqcy2xvU6BnNq3e3o8qVBiyH"},"sig":"j6Q10dZdnDhrSu_Vg1HY5wtBmK9DoutvHGXCwqrjIsCRUtt1F2ntcQJA4bkxVTy8aYPoZMkwze9rCIZYeBRpDA","thread":{"id":"thread_1"},"ts":"2026-02-02T12:00:00Z","type":"REQUEST","version":"1.0"}`
	continuation = `{"id":"msg_5","meta":{"continues":"8015c4647588a381068f794c28a3fd0a70a4cdbdd0890df82b8389281a2f0071","home":{"did":"did:key:z6MkmtWtY63GQVBrpMyRJWEzsnxfsGkemu6CtMDwGTv4RYj2","url":"https://b.example"},"ttl":86400},"payload":{"intent":"translation.en_zh","request_id":"req_2"},"recipient":{"id":"did:key:z6MkvRXNYcE7MMduynWTgeKbDaT1iijDSC8pZqXZc8rHPrf2"},"sender":{"id":"did:key:z6Mko9hTggMwjSTEaJaPUfE6tqcy2xvU6BnNq3e3o8qVBiyH"},"sig":"fiw9v-fNW80FbrGF3jDIh9URMxUHDocSUelL43H5N-mlua54UsWweq8qmrU0Pe_9UAX7AO8d7aKLakl-mUW1AA","thread":{"id":"thread_2"},"ts":"2026-02-02T12:01:00Z","type":"REQUEST","version":"1.0"}`
)

func fromSeed(t *testing.T, n byte) didkey.Key {
	t.Helper()
	k, err := didkey.FromSeed(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestHome checks the example of RELAYS §2: what a REQUEST and its continuation say, and their hashes. Drafts with the
// same content have the same bytes.
func TestHome(t *testing.T) {
	root, ok := envelope.ParseHash("8015c4647588a381068f794c28a3fd0a70a4cdbdd0890df82b8389281a2f0071")
	if !ok {
		t.Fatal("the hash is not read")
	}
	for _, test := range []struct {
		text, hash string
		home       didkey.Key
		url        string
		continues  envelope.Hash
	}{
		{homeRequest, root.String(), fromSeed(t, 1), "https://a.example", envelope.Hash{}},
		{continuation, "b7eba2a35ad581540cacad963cba727171f5f3ac03d9a76edee36f77582d3af1", fromSeed(t, 5), "https://b.example", root},
	} {
		e, err := envelope.Parse([]byte(test.text), 0)
		if err == nil {
			err = e.Verify()
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Home == nil || e.Home.DID != test.home.DID() || e.Home.URL != test.url || e.Continues != test.continues || e.Re != (envelope.Hash{}) ||
			envelope.Hash(e.Hash()).String() != test.hash {
			t.Errorf("%s: home %+v, re %s, continues %s, hash %x", e.ID, e.Home, e.Re, e.Continues, e.Hash())
		}
	}
	e, err := envelope.Draft{ID: "msg_9", TS: time.Date(2026, 2, 2, 12, 0, 1, 0, time.UTC), Thread: "thread_1", Recipient: fromSeed(t, 2).DID(),
		Home: &envelope.Home{DID: fromSeed(t, 1).DID(), URL: "https://a.example"}, Re: root,
		Payload: envelope.Offer{RequestID: "req_1"}}.Sign(fromSeed(t, 3), time.Now())
	if err != nil || e.Re != root || e.Home == nil || e.Continues != (envelope.Hash{}) {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err = (envelope.Draft{Payload: envelope.Request{Intent: "x"}, Continues: root}).Sign(fromSeed(t, 2), time.Now()); err != nil ||
		e.Continues != root || e.Home != nil {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestWrongHome checks that nothing but the forms of RELAYS is accepted.
func TestWrongHome(t *testing.T) {
	did := fromSeed(t, 1).DID()
	meta := func(text string) string {
		return strings.Replace(homeRequest, homeRequest[strings.Index(homeRequest, `"meta":`):strings.Index(homeRequest, `,"payload"`)],
			`"meta":`+text, 1)
	}
	hash := strings.Repeat("0a", 32)
	for _, text := range []string{
		`{"home":"` + string(did) + `"}`, `{"home":[]}`, `{"home":null}`, `{"home":{}}`, `{"home":{"did":"` + string(did) + `"}}`,
		`{"home":{"url":"https://a.example"}}`, `{"home":{"did":"did:web:a.example","url":"https://a.example"}}`,
		`{"home":{"did":"` + string(did) + `","url":"https://a.example/"}}`, `{"home":{"did":"` + string(did) + `","url":"https://a.example/x"}}`,
		`{"home":{"did":"` + string(did) + `","url":"https://u@a.example"}}`, `{"home":{"did":"` + string(did) + `","url":"ftp://a.example"}}`,
		`{"home":{"did":"` + string(did) + `","url":"a.example"}}`, `{"home":{"did":"` + string(did) + `","url":"https://"}}`,
		`{"home":{"did":"` + string(did) + `","url":"https://a.example","x":1}}`, `{"home":{"did":1,"url":"https://a.example"}}`,
		`{"home":{"did":"` + string(did) + `","url":"https://a.example?q"}}`,
		`{"re":1}`, `{"re":""}`, `{"re":"` + hash[1:] + `"}`, `{"re":"` + hash + `0"}`, `{"re":"` + strings.ToUpper(hash) + `"}`,
		`{"re":"` + strings.Replace(hash, "0a", "0g", 1) + `"}`, `{"re":null}`, `{"continues":"x"}`, `{"continues":["` + hash + `"]}`,
	} {
		if _, err := envelope.Parse([]byte(meta(text)), 0); envelope.CodeOf(err) != envelope.CodeInvalidRequest {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{`{"re":"` + hash + `","continues":"` + hash + `"}`,
		`{"home":{"url":"http://localhost:8789","did":"` + string(did) + `"}}`} {
		if _, err := envelope.Parse([]byte(meta(text)), 0); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	other := strings.Replace(strings.Replace(meta(`{"continues":"`+hash+`"}`), "REQUEST", "OFFER", 1), `"intent":"translation.en_zh",`, "", 1)
	if _, err := envelope.Parse([]byte(other), 0); envelope.CodeOf(err) != envelope.CodeInvalidRequest {
		t.Errorf("an OFFER continues a job: %v", err)
	}
}
