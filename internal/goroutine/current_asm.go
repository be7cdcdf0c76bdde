//go:build gc && (amd64 || arm64) && !purego

package goroutine

// Current returns the ID of the calling goroutine. It takes about as long as a function call:
// the ID is the address of the runtime's record of the goroutine (g), which Go's assembler can
// name.
func Current() ID
