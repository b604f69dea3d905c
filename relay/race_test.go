//go:build race

package relay_test

const raceDetector = true

const usualHistories = 1 // of which each takes half a minute here
