//go:build race

package pe

// checksGoroutine has calls on tasks and pools look whether another goroutine drives
// the engine. They would look at the stack for it each time, so only builds that look
// for races do.
const checksGoroutine = true
