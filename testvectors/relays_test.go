package testvectors_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/testvectors"
)

// TestRelays checks what chains of messages prove (RELAYS ), and evidence against clients.
func TestRelays(t *testing.T) {
	for _, v := range testvectors.Relays() {
		t.Run(v.Name, func(t *testing.T) {
			run := checkChain
			if v.Evidence != nil {
				run = checkAccepts
			}
			err := run(t, v)
			if (err == nil) != (v.Expect == testvectors.Accept) {
				t.Errorf("%v; want %s (%s)", err, v.Expect, v.Reason)
			}
		})
	}
}

// checkChain returns the error of the chain of v, and compares the results if there is none.
func checkChain(t *testing.T, v testvectors.RelaysVector) error {
	var texts []json.RawMessage
	if err := json.Unmarshal(v.Chain, &texts); err != nil {
		return err
	}
	messages, err := proof.ParseMessages(texts)
	if err != nil {
		return err
	}
	d, err := proof.VerifyChain(messages)
	if err != nil {
		return err
	}
	found := testvectors.RelaysVector{Name: v.Name, Chain: v.Chain, Expect: testvectors.Accept,
		Client: string(d.Request.Sender.ID), Agent: string(d.Offer.Sender.ID), Home: string(d.Request.Home.DID),
		Intent: d.Request.PayloadString("intent"), Accepted: d.Accept != nil}
	for _, m := range messages {
		found.Hashes = append(found.Hashes, envelope.Hash(m.Hash()).String())
	}
	if p := d.Price(); p != nil {
		found.Price = &testvectors.Price{Amount: p.Amount, Currency: p.Currency}
	}
	if d.Result != nil {
		found.Status = d.Result.PayloadString("status")
	}
	if v.Expect == testvectors.Accept && !reflect.DeepEqual(found, v) {
		t.Errorf("found %+v\nwant %+v", found, v)
	}
	return nil
}

// checkAccepts returns the error of the evidence of v, and compares the results if there is none.
func checkAccepts(t *testing.T, v testvectors.RelaysVector) error {
	e, err := proof.ParseEvidence(v.Evidence)
	if err != nil {
		return err
	}
	found, err := e.Verify()
	if err == nil && v.Expect == testvectors.Accept &&
		(string(found.Client) != v.Client || found.Relay != "" || found.Kind != proof.KindAccepts || found.Text == "") {
		t.Errorf("found %+v", found)
	}
	return err
}

// TestExampleOfRelays checks that the first vectors are the messages of the example in RELAYS §2, with their hashes.
func TestExampleOfRelays(t *testing.T) {
	all := testvectors.Relays()
	for i, want := range []string{"8015c4647588a381068f794c28a3fd0a70a4cdbdd0890df82b8389281a2f0071",
		"b7eba2a35ad581540cacad963cba727171f5f3ac03d9a76edee36f77582d3af1"} {
		if len(all[i].Hashes) != 3+i || all[i].Hashes[0] != want {
			t.Errorf("%s: the hashes are %v, want %d, the first %s", all[i].Name, all[i].Hashes, 3+i, want)
		}
	}
}
