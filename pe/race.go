//go:build race

package pe

// checksGoroutine has calls on tasks and pools look whether another goroutine drives
// the engine. It costs some nanoseconds for each task, so only builds that look for
// races do.
const checksGoroutine = true
