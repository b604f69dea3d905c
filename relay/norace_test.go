//go:build !race

package relay_test

const raceDetector = false

const usualHistories = 3
