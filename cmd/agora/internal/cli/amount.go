package cli

import (
	"regexp"

	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/alecthomas/kong"
)

// CreditAmount is a number of credits, such as 100 or 0.5.
type CreditAmount credits.Amount

// Decode implements kong.MapperValue. kong takes -3 for a flag, so Decode looks at it first, to say what is wrong.
func (a *CreditAmount) Decode(ctx *kong.DecodeContext) error {
	if next := ctx.Scan.Peek().String(); negativeNumber.MatchString(next) {
		_, err := credits.Parse(next)
		return err
	}
	return Decode(ctx, "amount", func(text string) error {
		n, err := credits.Parse(text)
		*a = CreditAmount(n)
		return err
	})
}

// negativeNumber matches the beginning of a negative number.
var negativeNumber = regexp.MustCompile(`^-[0-9.]`)

// String returns the amount as the flag takes it.
func (a CreditAmount) String() string { return credits.Amount(a).String() }
