package cli

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Day is 24 hours, the unit d of durations.
const Day = 24 * time.Hour

// ParseDuration is time.ParseDuration with days and weeks: 30d, 1w, 1d12h. Except for 0, a number needs a unit.
func ParseDuration(text string) (time.Duration, error) {
	total, rest := 0.0, text
	for _, unit := range []struct {
		letter string
		length time.Duration
	}{{"w", 7 * Day}, {"d", Day}} {
		number, after, found := strings.Cut(rest, unit.letter)
		if !found {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || !(n >= 0) {
			return 0, errDuration(text)
		}
		total, rest = total+n*float64(unit.length), after
	}
	if total > math.MaxInt64/2 {
		return 0, errDuration(text)
	}
	if rest == "" && text != "" {
		return time.Duration(total), nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || rest != text && d < 0 || d > math.MaxInt64/2 {
		return 0, errDuration(text)
	}
	return time.Duration(total) + d, nil
}

func errDuration(text string) error {
	return fmt.Errorf("%q is not a duration; want a number with a unit (ms, s, m, h, d or w), such as 30s, 5m, 24h or 30d",
		text)
}

// FormatDuration returns the shortest text that ParseDuration reads as d.
func FormatDuration(d time.Duration) string {
	if d >= Day && d%Day == 0 {
		return fmt.Sprintf("%dd", d/Day)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// byteUnits are powers of ten, or powers of two if they contain an i.
var byteUnits = map[string]int64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
}

// ParseBytes reads a number of bytes, with a unit or without: 131072, 128KiB, 1GB, 1.5 TB. A unit of one letter is
// binary, as in head -c 1K.
func ParseBytes(text string) (int64, error) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit, known := byteUnits[strings.ToLower(text[len(digits):])]
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if size := n * float64(unit); known && err == nil && size >= 0 && size < 1<<62 && size == math.Trunc(size) {
		return int64(size), nil
	}
	return 0, fmt.Errorf("%q is not a size; want a number of bytes, or one with a unit, such as 128KiB, 64MiB or 1GB",
		text)
}

// FormatBytes returns the shortest text that ParseBytes reads as n.
func FormatBytes(n int64) string {
	for _, unit := range []struct {
		name string
		size int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= unit.size && n%unit.size == 0 {
			return strconv.FormatInt(n/unit.size, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// DecodeDuration is for flags of type time.Duration.
func DecodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	return Decode(ctx, "duration", func(text string) error {
		d, err := ParseDuration(text)
		target.SetInt(int64(d))
		return err
	})
}

// DecodeBytes is for flags with the tag type:"bytes".
func DecodeBytes(ctx *kong.DecodeContext, target reflect.Value) error {
	return Decode(ctx, "bytes", func(text string) error {
		n, err := ParseBytes(text)
		if err == nil && target.OverflowInt(n) {
			return fmt.Errorf("%q is too large", text)
		}
		target.SetInt(n)
		return err
	})
}

// DecodeNumber returns a decoder that calls set. want describes valid values for the error message.
func DecodeNumber(want string, set func(text string, target reflect.Value) error) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		return Decode(ctx, "number", func(text string) error {
			if err := set(text, target); err != nil {
				return fmt.Errorf("%q is not %s", text, want)
			}
			return nil
		})
	}
}

// SetInt sets target to the whole number in text.
func SetInt(text string, target reflect.Value) error {
	n, err := strconv.ParseInt(text, 10, target.Type().Bits())
	target.SetInt(n)
	return err
}

// SetFloat sets target to the number in text.
func SetFloat(text string, target reflect.Value) error {
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
		err = strconv.ErrRange
	}
	target.SetFloat(n)
	return err
}

// Decode reads the text of a flag and calls set with it. what is the kind of value, for kong's error messages.
func Decode(ctx *kong.DecodeContext, what string, set func(text string) error) error {
	var text string
	if err := ctx.Scan.PopValueInto(what, &text); err != nil {
		return err
	}
	return set(text)
}
