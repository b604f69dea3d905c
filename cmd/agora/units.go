package main

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

const day = 24 * time.Hour

// parseDuration reads what time.ParseDuration does, and days and weeks: 30d, 1w, 1d12h. A number without a unit is
// refused, but for 0.
func parseDuration(text string) (time.Duration, error) {
	total, rest := 0.0, text
	for _, unit := range []struct {
		letter string
		length time.Duration
	}{{"w", 7 * day}, {"d", day}} {
		number, behind, found := strings.Cut(rest, unit.letter)
		if !found {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || !(n >= 0) {
			return 0, errDuration(text)
		}
		total, rest = total+n*float64(unit.length), behind
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
	return fmt.Errorf("%q is no duration; want a number with a unit (ms, s, m, h, d or w), such as 30s, 5m, 24h or 30d",
		text)
}

// byteUnits are powers of ten without an i and of two with it.
var byteUnits = map[string]int64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
}

// parseBytes reads a number of bytes, with a unit or without: 131072, 128KiB, 1GB, 1.5 TB. A single letter is binary,
// as for head.
func parseBytes(text string) (int64, error) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit, known := byteUnits[strings.ToLower(text[len(digits):])]
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if size := n * float64(unit); known && err == nil && size >= 0 && size < 1<<62 && size == math.Trunc(size) {
		return int64(size), nil
	}
	return 0, fmt.Errorf("%q is no size; want a number of bytes, or one with a unit, such as 128KiB, 64MiB or 1GB", text)
}

func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	return decode(ctx, "duration", func(text string) error {
		d, err := parseDuration(text)
		target.SetInt(int64(d))
		return err
	})
}

// decodeBytes is for flags with the tag type:"bytes".
func decodeBytes(ctx *kong.DecodeContext, target reflect.Value) error {
	return decode(ctx, "bytes", func(text string) error {
		n, err := parseBytes(text)
		if err == nil && target.OverflowInt(n) {
			return fmt.Errorf("%q is too large", text)
		}
		target.SetInt(n)
		return err
	})
}

func decode(ctx *kong.DecodeContext, what string, set func(text string) error) error {
	var text string
	if err := ctx.Scan.PopValueInto(what, &text); err != nil {
		return err
	}
	return set(text)
}
