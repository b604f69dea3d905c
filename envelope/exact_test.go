package envelope

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

type extended struct {
	Request
	More int `json:"more"`
}

func TestDecodePayloadKnowsExactNamesOnly(t *testing.T) {
	deadline := time.Date(2026, 2, 2, 15, 36, 0, 0, time.UTC)
	cost := 1.0
	for name, c := range map[string]struct {
		payload   string
		into, out any
	}{
		"exact": {`{"constraints":{"deadline":"2026-02-02T15:36:00Z","max_cost_usd":1},"intent":"echo","params":{"A":1,"a":2},"request_id":"r"}`,
			new(Request), &Request{RequestID: "r", Intent: "echo", Params: json.RawMessage(`{"A":1,"a":2}`),
				Constraints: &Constraints{MaxCostUSD: &cost, Deadline: &deadline}}},
		"folded beside exact": {`{"constraints":{"max_cost_usd":1,"max_co\u017ft_usd":99},"Intent":"evil","intent":"echo","reque\u017ft_id":"b","request_id":"a"}`,
			new(Request), &Request{RequestID: "a", Intent: "echo", Constraints: &Constraints{MaxCostUSD: &cost}}},
		"folded alone": {`{"PRICE":{"amount":1},"Request_id":"b"}`, new(Offer), &Offer{}},
		"in a list": {`{"id":"m","intents":[{"ID":"evil","id":"echo"},{"Id":"evil"}],"unknown":[{}]}`,
			new(Manifest), &Manifest{ID: "m", Intents: []Intent{{ID: "echo"}, {}}}},
		"embedded":        {`{"constraints":{},"intent":"echo","more":1}`, new(extended), &extended{Request: Request{Intent: "echo", Constraints: &Constraints{}}, More: 1}},
		"decodes itself":  {`{"A":1}`, new(json.RawMessage), (*json.RawMessage)(new([]byte(`{"A":1}`)))},
		"a map takes all": {`{"A":1,"a":2}`, new(map[string]int), &map[string]int{"A": 1, "a": 2}},
	} {
		canonical, err := Canonicalize([]byte(c.payload))
		if err != nil {
			t.Fatal(err)
		}
		e := Envelope{Payload: canonical}
		if err := e.DecodePayload(c.into); err != nil || !reflect.DeepEqual(c.into, c.out) {
			t.Errorf("%s: got %+v, %v", name, c.into, err)
		}
	}
	e := Envelope{Payload: []byte(`{"constraints":"none","intents":{}}`)}
	if e.DecodePayload(new(Request)) == nil || e.DecodePayload(new(Manifest)) == nil {
		t.Error("a member with a value of the wrong type was accepted")
	}
}
