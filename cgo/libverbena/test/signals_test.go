//go:build linux

package test

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSignals: a signal that a program blocks waits for the program, whether it blocked it before or
// after its first call of verbs. Threads of the library do not take it.
func TestSignals(t *testing.T) {
	const rtmin = syscall.Signal(34)
	signals := []syscall.Signal{syscall.SIGUSR2, syscall.SIGCHLD, rtmin}
	if !testing.Short() {
		signals = append(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGALRM, syscall.SIGPROF, syscall.SIGURG)
	}
	program := plain.compile(t, "signals")
	env := plain.environment(t, "VERBENA_DEVICES=soft-lo")
	for _, s := range signals {
		for _, when := range []string{"before", "after"} {
			for _, how := range []string{"signalfd", "sigwait", "sigtimedwait", "handler"} {
				t.Run(fmt.Sprintf("%v %s %s", s, when, how), func(t *testing.T) {
					out, err := run(t, env, program, when, how, strconv.Itoa(int(s)))
					require.NoError(t, err, "%s", out)
					assert.Empty(t, out)
				})
			}
		}
	}
}

// TestValgrind: programs run under valgrind as verbena run starts it.
func TestValgrind(t *testing.T) {
	if testing.Short() {
		t.SkipNow()
	}
	needProgram(t, "valgrind", "valgrind")
	needProgram(t, "ibv_devices", packageOf("ibv_devices"))
	out, err := run(t, plain.environment(t, "VERBENA_DEVICES=soft-lo", "GODEBUG=cpu.rdtscp=off"), "valgrind", "--tool=none", "ibv_devices")
	require.NoError(t, err, "%s", out)
	assert.Contains(t, out, "soft_lo")
}
