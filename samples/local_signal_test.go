//go:build unix

package samples

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A program whose packets are all lost waits for its connection until it is stopped.
func TestLocalInterrupt(t *testing.T) {
	for _, program := range []string{"pe_task_error", "pe_task_try_submit"} {
		for signal, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
			p := start(t, program, "-d", "soft-lo?loss=1")
			p.await("the context is Starting")
			p.signal(signal)
			assert.Equal(t, code, p.code())
			assert.Equal(t, program+": interrupted by signal: "+signal.String(), p.lastLine())
			assert.NotContains(t, p.stderr.String(), "goroutine")
			assert.NotContains(t, p.stdout.String(), "Running")
		}
	}
}
