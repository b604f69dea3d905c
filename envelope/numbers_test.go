package envelope

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gowebpki/jcs"
)

func TestCostlyNumbers(t *testing.T) {
	digits := func(n int) string { return strings.Repeat("123456789", 200)[:n] }
	zeros := func(n int) string { return strings.Repeat("0", n) }
	for text, want := range map[string]bool{
		// Significant digits. Zeros at the start and the end do not count, wherever the decimal point is.
		digits(17): false, digits(18): true, "-" + digits(17): false, "-" + digits(18): true,
		digits(17) + zeros(50): false, digits(17) + "." + zeros(50): false, digits(17) + zeros(50) + "1": true,
		"0." + zeros(100) + digits(17): false, "0." + zeros(100) + digits(18): true,
		digits(10) + "." + digits(7): false, digits(10) + "." + digits(8): true,
		digits(17) + "e300": false, digits(18) + "E-5": true, digits(17) + ".0e5": false,
		"1" + zeros(16) + "1": true, "1" + zeros(15) + "1": false, "1." + zeros(15) + "1": false, "1." + zeros(16) + "1": true,
		"100000000000000000000": false, "1.7976931348623157e308": false, "1.7976931348623157e+308": false,
		// Small numbers. The exponent of the first significant digit decides.
		"1e-307": false, "9e-308": true, "9.999e-308": true, "-1e-307": false, "-9.999e-308": true, "10e-308": false,
		"0.1e-306": false, "0.1e-307": true, "0.0" + zeros(305) + "1": false, "0.0" + zeros(306) + "1": true,
		"1" + zeros(100) + "e-407": false, "1" + zeros(100) + "e-408": true,
		"5e-324": true, "1e-320": true, "2.2250738585072014e-308": true, "1e-400": true, "1e-99999999999999999999": true,
		// Zero is not a small number.
		"0": false, "-0": false, "0.0": false, "0e-400": false, "-0." + zeros(500) + "e-99999999999999999999": false,
		"1e99999999999999999999": false, "3e0000000000000000000000000002": false, "1e-" + zeros(30) + "307": false,
	} {
		n, ok := scanNumber([]byte(text))
		if !ok || n.costly() != want {
			t.Errorf("costly(%.60s) = %v (is a number: %v); want %v", text, n.costly(), ok, want)
		}
	}
	for _, text := range []string{"", "-", "+1", "01", "-01", "1.", ".5", "1.e5", "1e", "1e+", "1E-", "1ee5", "1e5.0", "1.5.5", "--1", "1-", "1+1", "1e5-"} {
		if _, ok := scanNumber([]byte(text)); ok {
			t.Errorf("scanNumber accepted %q", text)
		}
	}
}

// Canonicalize accepts a thousand costly numbers and refuses one more. Digits in strings do not count.
func TestMaxCostlyNumbers(t *testing.T) {
	list := func(n int, text string) string { return strings.Repeat(text+",", n-1) + text }
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"1000 small":                 {`[` + list(1000, "5e-324") + `]`, true},
		"1001 small":                 {`[` + list(1001, "5e-324") + `]`, false},
		"1000 and cheap numbers":     {`[` + list(1000, "-1e-308") + "," + list(5000, "1e-307") + `]`, true},
		"small and long":             {`{"a":[` + list(500, "1e-320") + `],"b":[` + list(501, "123456789012345678") + `]}`, false},
		"members":                    {`{"a":` + strings.Repeat(`[1e-310,{"x":`, 60) + "1" + strings.Repeat("}]", 60) + `}`, true},
		"underflow counts":           {`[` + list(1001, "1e-400") + `]`, false},
		"zeros do not":               {`[` + list(3000, "0e-400") + `]`, true},
		"digits in strings do not":   {`{"\u0061":["` + list(3000, "1e-320") + `","\"` + list(3000, "1e-320") + `"]}`, true},
		"seventeen digits do not":    {`[` + list(3000, "1.2345678901234567e-30") + `]`, true},
		"trailing zeros do not":      {`[` + list(3000, "1.234567890123456700000") + `]`, true},
		"eighteen digits":            {`[` + list(1001, "1.23456789012345678e-30") + `]`, false},
		"long but cheap":             {`[` + list(1100, "1"+strings.Repeat("0", 100)+"e-100") + `]`, true},
		"with whitespace":            {`[ ` + strings.Repeat("1e-320 ,\n", 1001) + ` 1 ]`, false},
		"one after the other, minus": {`[` + list(1001, "-5e-324") + `]`, false},
	} {
		_, err := Canonicalize([]byte(c.text))
		if (err == nil) != c.ok || err != nil && (CodeOf(err) != CodeInvalidRequest || !strings.Contains(err.Error(), "1000 numbers")) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Parse([]byte(`{"payload":`+c.text+`}`), 0); err == nil || strings.Contains(err.Error(), "1000 numbers") == c.ok {
			t.Errorf("%s, in the body of an envelope: %v", name, err)
		}
	}
}

// sameAsJCS checks that Canonicalize and jcs return the same result for text.
func sameAsJCS(t *testing.T, text []byte) {
	t.Helper()
	costly := 0
	for from, to := range numbers(text) {
		if n, ok := scanNumber(text[from:to]); ok && n.costly() {
			costly++
		}
		if to-from > 800 {
			return // jcs uses strconv, which is wrong for some of these
		}
	}
	got, err := Canonicalize(text)
	want, failed := jcs.Transform(text)
	switch {
	case costly > MaxCostlyNumbers && err == nil:
		t.Fatalf("%d costly numbers in %.200s were accepted", costly, text)
	case costly > MaxCostlyNumbers:
		return
	case (err == nil) != (failed == nil) || !bytes.Equal(got, want):
		t.Fatalf("%.300q becomes %.300q, %v; jcs returns %.300q, %v", text, got, err, want, failed)
	}
	after := 0
	for from, to := range numbers(got) {
		if n, ok := scanNumber(got[from:to]); ok && n.costly() {
			after++
		}
	}
	if after > costly {
		t.Fatalf("%.300q has %d costly numbers, but its canonical form %.300q has %d", text, costly, got, after)
	}
}

// FuzzCanonicalize compares Canonicalize with jcs.
func FuzzCanonicalize(f *testing.F) {
	for _, text := range []string{`[5e-324,-5E-324,2.2250738585072011e-308,1e-400]`, `{"4.00001e-308":4.00001e-308,"a":[4.00001e-308,1e-320]}`,
		`{"b":-1e-320,"a":9007199254740993.00000000001}`, `[1e-320"1e-320"]`, `[1e-3200,"\"1e-320",-1e-320x]`, `1e-320`, ` -1e-310 `, `[1e400,1e-320]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 0 {
			sameAsJCS(t, text)
		}
	})
}

// halfway returns the number halfway between x and the next larger double, with this many digits.
func halfway(x float64, digits int) string {
	a, b := new(big.Float).SetPrec(3000).SetFloat64(x), new(big.Float).SetPrec(3000).SetFloat64(math.Nextafter(x, math.Inf(1)))
	return a.Quo(a.Add(a, b), big.NewFloat(2)).Text('e', digits-1)
}

// TestCostlyNumbersAreExact compares number.double with strconv where the two could differ: at the limits of the range,
// at and near the middle between two doubles, and if a digit far to the right decides the rounding.
func TestCostlyNumbersAreExact(t *testing.T) {
	check := func(text string) {
		t.Helper()
		n, ok := scanNumber([]byte(text))
		want, err := strconv.ParseFloat(strings.TrimPrefix(text, "-"), 64)
		if len(text) > 800 { // strconv is wrong for some of these
			var exact *big.Rat
			exact, ok = new(big.Rat).SetString(strings.TrimPrefix(text, "-"))
			want, _ = exact.Float64()
		}
		if got := n.double(); !ok || got != want {
			t.Fatalf("double(%.100s) = %v (is a number: %v); want %v, %v", text, got, ok, want, err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, text := range []string{"5e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "2.2250738585072011e-308", "2.2250738585072012e-308",
		"2.2250738585072013e-308", "2.2250738585072014e-308", "4.9406564584124654e-324", "1.7976931348623157e308", "1.7976931348623158e308",
		"1.7976931348623159e308", "179769313486231580793728971405301e276", "1e309", "1e310", "1e311", "1e-330", "1e-331", "0", "-0", "1e400", "1e-400",
		"0." + strings.Repeat("0", 400) + "1e390", strings.Repeat("9", 900) + "e-900", strings.Repeat("9", 5000) + "e-5000",
		"1" + strings.Repeat("0", 20_000) + "e-20000", "0." + strings.Repeat("0", 20_000) + "1e20000", "1" + strings.Repeat("0", 5000) + "1e-5300",
		"-1" + strings.Repeat("0", 400) + "." + strings.Repeat("0", 400) + "1e-720"} {
		check(text)
	}
	for range 2000 {
		x := math.Float64frombits(random.Uint64() &^ (1 << 63))
		if random.IntN(2) == 0 {
			x = math.Float64frombits(random.Uint64N(1 << 53)) // subnormal numbers, and the smallest normal numbers
		}
		if math.IsNaN(x) || math.IsInf(x, 0) || math.IsInf(math.Nextafter(x, math.Inf(1)), 0) {
			continue
		}
		check(strconv.FormatFloat(x, 'e', random.IntN(30), 64))
		middle := halfway(x, 17+random.IntN(800))
		check(middle)
		mantissa, exponent, _ := strings.Cut(middle, "e")
		check(mantissa + strings.Repeat("0", random.IntN(900)) + "1e" + exponent)
		check(fmt.Sprintf("%d.%de%d", random.Uint64(), random.Uint64(), random.IntN(700)-360))
		sameAsJCS(t, []byte(fmt.Sprintf(`{"b":[-%s,%s1e%s],"a":4.00001e-308}`, middle, mantissa, exponent)))
	}
}

// TestLongNumbers checks that long numbers have the same canonical form as in other languages. strconv alone would
// return 0 or 1e-100 for some of them.
func TestLongNumbers(t *testing.T) {
	for text, want := range map[string]string{
		strings.Repeat("9", 900) + "e-900":                        "1",
		"-" + strings.Repeat("9", 5000) + "e-5000":                "-1",
		"1" + strings.Repeat("0", 20_000) + "e-20000":             "1",
		"0." + strings.Repeat("0", 20_000) + "1e20000":            "0.1",
		"-0." + strings.Repeat("0", 20_000):                       "0",
		"25" + strings.Repeat("0", 2000) + "e-1981":               "250000000000000000000",
		strings.Repeat("7", 300):                                  "7.777777777777778e+299",
		"0." + strings.Repeat("0", 200) + strings.Repeat("3", 20): "3.3333333333333335e-201",
	} {
		if got, err := Canonicalize([]byte(`{"\u00e9":` + text + `}`)); err != nil || string(got) != `{"é":`+want+`}` {
			t.Errorf("%.30s…%s becomes %s, %v; want %s", text, text[len(text)-6:], got, err, want)
		}
	}
	for _, text := range []string{strings.Repeat("9", 900) + "e-500", strings.Repeat("9", 310), "1" + strings.Repeat("0", 20_000)} {
		if got, err := Canonicalize([]byte(text)); err == nil {
			t.Errorf("%.30s… is too large for a double, but becomes %s", text, got)
		}
	}
}

// TestCostlyBodiesAreQuick checks that the costliest allowed bodies take no longer than an ordinary body of full size.
func TestCostlyBodiesAreQuick(t *testing.T) {
	body := func(count int, number func(i int) string) []byte {
		var b bytes.Buffer
		b.WriteString(`{"\u00e9":[`)
		for i := range count {
			b.WriteString(number(i) + ",")
		}
		return append(bytes.TrimSuffix(b.Bytes(), []byte(",")), `]}`...)
	}
	best := func(text []byte) (best time.Duration) {
		for i := range 5 {
			began := time.Now()
			if _, err := Canonicalize(text); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); i == 0 || took < best {
				best = took
			}
		}
		return best
	}
	ordinary := best(body(DefaultMaxBytes/3-10, func(int) string { return "-1" }))
	for name, text := range map[string][]byte{
		"subnormal":         body(MaxCostlyNumbers, func(i int) string { return fmt.Sprintf("%de-323", i+2) }),
		"halves, large":     body(MaxCostlyNumbers, func(i int) string { return halfway(1.7e308-float64(i)*1e300, 100) }),
		"halves, small":     body(MaxCostlyNumbers, func(i int) string { return halfway(1e-300+float64(i)*1e-308, 100) }),
		"halves, subnormal": body(MaxCostlyNumbers, func(i int) string { return halfway(float64(i+1)*1e-320, 100) }),
		"long":              body(DefaultMaxBytes/810, func(i int) string { return halfway(float64(i+1)*1e-320, 800) }),
		"one":               body(1, func(int) string { return "0." + strings.Repeat("7", DefaultMaxBytes-20) }),
	} {
		took := best(text)
		t.Logf("%s: %v, ordinary %v", name, took, ordinary)
		if took > ordinary {
			t.Errorf("%s: a body of %d bytes takes %v, but an ordinary body takes %v", name, len(text), took, ordinary)
		}
	}
}
