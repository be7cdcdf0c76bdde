//go:build gc && (amd64 || arm64) && !purego

package goroutine

// Current returns the ID of the calling goroutine. It takes about as long as a call of a
// function: the ID is the address of the runtime's record of the goroutine, which Go's
// assembly language offers under a name of its own.
func Current() ID
