package gateway_test

import (
	"net/http"
	"testing"

	"github.com/agora-relay/agora/gateway"
)

func TestBearer(t *testing.T) {
	for _, test := range []struct {
		headers []string
		key     string
		given   bool
	}{
		{nil, "", false},
		{[]string{"Bearer ca_1"}, "ca_1", true},
		{[]string{"bEARER  ca_1"}, "ca_1", true},
		{[]string{""}, "", true},
		{[]string{"Bearer"}, "", true},
		{[]string{"Bearer "}, "", true},
		{[]string{"Bearer ca_1 ca_2"}, "", true},
		{[]string{"Bearer ca_1, Bearer ca_2"}, "", true},
		{[]string{"Bearerca_1"}, "", true},
		{[]string{"Basic ca_1"}, "", true},
		{[]string{"ca_1"}, "", true},
		{[]string{"Bearer ca_1", "Bearer ca_1"}, "", true},
	} {
		key, given := gateway.Bearer(&http.Request{Header: http.Header{"Authorization": test.headers}})
		if key != test.key || given != test.given {
			t.Errorf("%q: %q, %t", test.headers, key, given)
		}
	}
}
