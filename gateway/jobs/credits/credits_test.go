package credits_test

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/gateway/jobs/credits"
)

// TestParse checks which texts are amounts, and which amounts they are (J-11, J-12).
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "0.0": "0", "0e5": "0", "0.1": "0.1", "0.10": "0.1", "1": "1", "12.5": "12.5",
		"0.000001": "0.000001", "1e-6": "0.000001", "1E-06": "0.000001", "1.5e3": "1500", "15e+2": "1500",
		"0.30000000000000004": "0.3", "0.29999999999999999": "0.3", "0.1000000001": "0.1", "0.000000001": "0",
		"0.000000999": "0.000001", "0.0000009990": "0.000001", "0.00000000100": "0", "1e-400": "0",
		"0.9999999999": "1", "999999999.999999": "999999999.999999", "9.99999999999999e8": "999999999.999999",
		"0.001": "0.001", "0.0010000000": "0.001", "1e-999999999999999999999": "0",
		"0." + strings.Repeat("0", 70_000) + "1": "0", "0.3" + strings.Repeat("0", 70_000): "0.3",
	} {
		if got, err := credits.Parse(text); err != nil || got.String() != want {
			t.Errorf("Parse(%.40s) = %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "-0.1", "-1e-6", "0.0000001", "0.0000005", "0.000000002", "0.0000000011",
		"0.00000000101", "0.000000998", "0.0000009989", "1.0000005", "1000000000", "1e9", "999999999.9999999", "999999999.9999995",
		"1e400", "1e999999999999999999999", "01", ".5", "5.", "1e", "1e+", "1e1.5", "+1", " 1", "0x10", "1_000", "NaN", "Infinity",
		`"1"`, "null", "1,5", "--1", "1e9999999999999999999x"} {
		if got, err := credits.Parse(text); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", text, got)
		}
	}
}

// TestParseAgrees compares Parse with exact arithmetic.
func TestParseAgrees(t *testing.T) {
	million, near := big.NewRat(1_000_000, 1), big.NewRat(1, 1000)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`(0|[1-9][0-9]{0,9})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "text")
		exact, _ := new(big.Rat).SetString(text)
		exact.Mul(exact, million)
		floor := new(big.Int).Quo(exact.Num(), exact.Denom())
		want, valid := floor.Int64(), true
		switch rest := new(big.Rat).Sub(exact, new(big.Rat).SetInt(floor)); {
		case rest.Cmp(near) <= 0:
		case new(big.Rat).Sub(big.NewRat(1, 1), rest).Cmp(near) <= 0:
			want++
		default:
			valid = false
		}
		valid = valid && floor.IsInt64() && want < int64(credits.Limit)
		got, err := credits.Parse(text)
		if (err == nil) != valid || valid && int64(got) != want {
			t.Fatalf("Parse(%s) = %d, %v, want %d, %v", text, int64(got), err, want, valid)
		}
	})
}

// TestFloats checks that sums of floating-point numbers are the amounts that their programs mean (J-12).
func TestFloats(t *testing.T) {
	tenth, fifth := 0.1, 0.2
	sum := 0.0
	for range 10 {
		sum += tenth
	}
	for want, f := range map[string]float64{"0.3": tenth + fifth, "1": sum} {
		text := strconv.FormatFloat(f, 'g', -1, 64)
		if got, err := credits.Parse(text); err != nil || got.String() != want {
			t.Errorf("Parse(%s) = %v, %v, want %s", text, got, err, want)
		}
	}
}

// TestJSON checks that an amount survives JSON, and that its form is the shortest.
func TestJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := credits.Amount(rapid.Int64Range(0, int64(credits.Limit)-1).Draw(t, "amount"))
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got credits.Amount
		if err := json.Unmarshal(text, &got); err != nil || got != want {
			t.Fatalf("%d becomes %s and then %d, %v", int64(want), text, int64(got), err)
		}
		if strings.Contains(string(text), ".") && strings.HasSuffix(string(text), "0") {
			t.Fatalf("%s is not the shortest form", text)
		}
	})
	for a, want := range map[credits.Amount]string{-1: "-0.000001", math.MinInt64: "-9223372036854.775808", credits.One: "1"} {
		if a.String() != want {
			t.Errorf("got %v, want %s", a, want)
		}
	}
}
