package conformance_test

import (
	"encoding/json"
	"math/big"
	"net/http"
	"regexp"
	"strings"
)

// The fields of requests and answers of a double of a registry.

// credit writes an amount.
func (d *jobsDouble) credit(n int64) json.Number {
	text := big.NewRat(n, 1_000_000).FloatString(6)
	if !d.has("writes six decimal places") {
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	return json.Number(text)
}

// score writes a score.
func (d *jobsDouble) score(n int64) json.Number {
	text := strings.TrimRight(big.NewRat(n, 1_000_000).FloatString(2), "0")
	if strings.HasSuffix(text, ".") {
		text += "0"
	}
	if d.has("shows whole scores") {
		text = strings.TrimSuffix(text, ".0")
	}
	return json.Number(text)
}

// amountOf returns the millionths of a decimal text.
func (d *jobsDouble) amountOf(text string) (int64, bool) {
	exact, ok := new(big.Rat).SetString(text)
	if !ok || len(text) > 40 {
		return 0, false
	}
	exact.Mul(exact, big.NewRat(1_000_000, 1))
	n := new(big.Int).Div(new(big.Int).Add(new(big.Int).Mul(exact.Num(), big.NewInt(2)), exact.Denom()),
		new(big.Int).Mul(exact.Denom(), big.NewInt(2)))
	noise := new(big.Rat).Sub(exact, new(big.Rat).SetInt(n))
	limit := big.NewRat(1, 1000)
	if d.has("takes seven decimal places") {
		limit = big.NewRat(1, 1)
	}
	if d.has("refuses float noise") {
		limit = new(big.Rat)
	}
	valid := exact.Sign() >= 0 && noise.Abs(noise).Cmp(limit) <= 0 && n.IsInt64() && n.Int64() < 1_000_000_000_000_000
	return n.Int64(), valid
}

// amount returns a member of an object that is an amount. given is false if it is not there.
func (d *jobsDouble) amount(body object, name string, loc ...any) (n int64, given bool) {
	value, given := body[name]
	if !given {
		return 0, false
	}
	text, ok := value.(json.Number)
	if ok {
		n, ok = d.amountOf(text.String())
	}
	if !ok {
		invalid(append(loc, name)...)
	}
	return n, true
}

func (d *jobsDouble) mustAmount(body object, name string, loc ...any) int64 {
	n, given := d.amount(body, name, loc...)
	if !given {
		invalid(append(loc, name)...)
	}
	return n
}

// text returns a member that is a text of least to most bytes.
func (d *jobsDouble) text(body object, name string, least, most int, loc ...any) (text string, given bool) {
	value, given := body[name]
	if !given {
		return "", false
	}
	text, ok := value.(string)
	n := len(text)
	if d.has("counts characters") {
		n = len([]rune(text))
	}
	if !ok || n < least || n > most {
		invalid(append(loc, name)...)
	}
	return text, true
}

func (d *jobsDouble) mustText(body object, name string, least, most int, loc ...any) string {
	text, given := d.text(body, name, least, most, loc...)
	if !given {
		invalid(append(loc, name)...)
	}
	return text
}

var (
	doubleUUID  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	doubleOwner = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$`)
	doubleSkill = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
)

// uuid returns a member that is a UUID, or a new one if it is not there.
func (d *jobsDouble) uuid(body object, name string) string {
	text, given := d.text(body, name, 36, 36, "body")
	if !given {
		return newUUID()
	}
	if !doubleUUID.MatchString(strings.ToLower(text)) {
		invalid("body", name)
	}
	if d.has("keeps upper case") && (name == "agent_id" || name == "job_id") {
		return text
	}
	return strings.ToLower(text)
}

// owner returns a member that is the id of an account.
func (d *jobsDouble) owner(c *jobsCall, name string) string {
	id := d.mustText(c.body, name, 1, 128, "body")
	if !doubleOwner.MatchString(id) && !d.has("takes every owner_id") {
		invalid("body", name)
	}
	if strings.HasPrefix(id, "did:") && (c.from == nil || c.from.did != id) && !d.has("takes the DIDs of others") {
		refuse(http.StatusForbidden)
	}
	return id
}
