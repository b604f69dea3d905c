//go:build race

package racing

// Detector reports whether the program was built with race detection.
const Detector = true
