//go:build race

package channel_test

const raceDetector = true
