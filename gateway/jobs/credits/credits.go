// Package credits has the amounts of money of the jobs gateway (docs/JOBS.md, "Amounts").
package credits

import (
	"errors"
	"math/big"
	"strconv"
	"strings"
)

// Amount is an amount of credits, in millionths. So sums are exact.
type Amount int64

// One is one credit.
const One Amount = 1_000_000

// Limit is the smallest amount that Parse refuses: 10⁹ credits.
const Limit = 1_000_000_000 * One

// errAmount is the error of Parse.
var errAmount = errors.New("must be a number from 0 to 999999999.999999 with at most 6 digits after the point")

const places = 6 // digits after the point

// Parse reads a JSON number (RFC 8259 §6). Programs that add amounts as floating-point numbers send 0.30000000000000004
// for 0.3. So the number is taken to the nearest millionth if that is at most 10⁻⁹ away.
func Parse(text string) (Amount, error) {
	text, negative := strings.CutPrefix(text, "-")
	digits, point, ok := decimal(text)
	if !ok {
		return 0, errAmount
	}
	if digits == "" {
		return 0, nil
	}
	whole := point + places // how many digits the number of millionths has
	if negative || whole > len("999999999")+places {
		return 0, errAmount
	}
	if whole < 0 {
		digits = strings.Repeat("0", min(-whole, places)) + digits // more zeros change nothing below
		whole = 0
	}
	if missing := whole - len(digits); missing > 0 {
		digits += strings.Repeat("0", missing)
	}
	millionths, err := strconv.ParseInt("0"+digits[:whole], 10, 64)
	if err != nil {
		return 0, errAmount
	}
	// The rest is a fraction of a millionth. It must be at most 0.001 or at least 0.999.
	switch rest := digits[whole:]; {
	case strings.Trim(rest, "0") == "", strings.HasPrefix(rest, "000"),
		strings.HasPrefix(rest, "001") && strings.Trim(rest[3:], "0") == "":
	case strings.HasPrefix(rest, "999"):
		millionths++
	default:
		return 0, errAmount
	}
	if Amount(millionths) >= Limit {
		return 0, errAmount
	}
	return Amount(millionths), nil
}

// decimal splits a number ≥ 0 into its digits, without zeros in front, and the place of the decimal point: the value is
// 0.DIGITS × 10^point. No digits: the value is 0. ok is false if text is not a JSON number.
func decimal(text string) (digits string, point int, ok bool) {
	number, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		n, err := strconv.Atoi(text[i+1:])
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return "", 0, false
		}
		const far = 1 << 30 // no number that fits into a request has that many digits
		number, exponent = text[:i], max(-far, min(n, far))
	}
	whole, fraction, hasPoint := strings.Cut(number, ".")
	if !isDigits(whole) || len(whole) > 1 && whole[0] == '0' || hasPoint && !isDigits(fraction) {
		return "", 0, false
	}
	all := whole + fraction
	digits = strings.TrimLeft(all, "0")
	return digits, len(whole) - (len(all) - len(digits)) + exponent, true
}

func isDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// String returns the shortest decimal form, such as 0.1, 12 or -0.000001.
func (a Amount) String() string { return Format(big.NewInt(int64(a))) }

// Format returns the shortest decimal form of a number of millionths that may be too large for an Amount, such as the sum
// of all payments that were ever made.
func Format(millionths *big.Int) string {
	text := new(big.Int).Abs(millionths).String()
	text = strings.Repeat("0", max(0, places+1-len(text))) + text
	point := len(text) - places
	text = strings.TrimSuffix(strings.TrimRight(text[:point]+"."+text[point:], "0"), ".")
	if millionths.Sign() < 0 {
		return "-" + text
	}
	return text
}

// MarshalJSON implements json.Marshaler. The result is a number.
func (a Amount) MarshalJSON() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalJSON implements json.Unmarshaler with Parse.
func (a *Amount) UnmarshalJSON(text []byte) error {
	n, err := Parse(string(text))
	if err == nil {
		*a = n
	}
	return err
}
