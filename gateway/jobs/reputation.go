package jobs

import (
	"strconv"
	"strings"
)

// score is the reputation of an agent, in millionths of a point: from 0 to 100 points.
type score int64

const (
	point    score = 1_000_000
	newScore       = 50 * point // of a new agent, and of a hirer that is no agent
	maxScore       = 100 * point

	failurePenalty = 4_500_000 // 3.0 × 1.5 points
)

// succeeded returns the score after a success for a hirer with the score c: 2.0 × c / 100 more, rounded half up.
func (s score) succeeded(c score) score { return min(maxScore, s+(c+25)/50) }

// failed returns the score after a failure.
func (s score) failed() score { return max(0, s-failurePenalty) }

// String returns the score with one or two decimals, rounded half up.
func (s score) String() string {
	hundredths := strconv.FormatInt(int64(s+point/200)/int64(point/100), 10)
	hundredths = strings.Repeat("0", max(0, 3-len(hundredths))) + hundredths
	cut := len(hundredths) - 2
	return strings.TrimSuffix(hundredths[:cut]+"."+hundredths[cut:], "0")
}

// MarshalJSON implements json.Marshaler. The result is a number.
func (s score) MarshalJSON() ([]byte, error) { return []byte(s.String()), nil }
