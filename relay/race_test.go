//go:build race

package relay_test

const raceDetector = true

const usualHistories = 1 // each takes half a minute with race detection
