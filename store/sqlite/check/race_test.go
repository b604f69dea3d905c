//go:build race

package check

const raceDetector = true
