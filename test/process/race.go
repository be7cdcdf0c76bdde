//go:build race

package process

const raceDetector = true
