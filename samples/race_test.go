//go:build race

package samples

const raceDetector = true
