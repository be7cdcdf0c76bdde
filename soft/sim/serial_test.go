package sim_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// In CheckSerial, too, programs recover from panics, and collect garbage.
func TestSerialPanicAndGarbage(t *testing.T) {
	sim.CheckSerial(t, 3, func(s *sim.Sim) {
		recovered := false
		s.Host("a").Run(func(context.Context, verbs.Device) error {
			defer func() { recovered = recover() != nil }()
			runtime.GC()
			debug.FreeOSMemory()
			panic("out of my mind")
		})
		s.Run(time.Second)
		require.True(s, recovered)
	})
}

// In CheckSerial, too, a failure names its seed, and the other tests of the binary go on.
func TestSerialFailures(t *testing.T) {
	out, err := inChild(t, func() {
		for name, program := range map[string]func(s *sim.Sim) error{
			"leak":    func(*sim.Sim) error { go waitForEver(); return nil },
			"require": func(s *sim.Sim) error { require.Equal(s, 1, 2); return nil },
		} {
			t.Run(name, func(t *testing.T) {
				sim.CheckSerial(t, 2, func(s *sim.Sim) {
					s.Host("a").Run(func(context.Context, verbs.Device) error { return program(s) })
					s.Run(time.Second)
				})
			})
		}
		t.Run("next", func(t *testing.T) { sim.CheckSerial(t, 2, func(s *sim.Sim) { newServer(s); s.Run(time.Second) }) })
	})
	require.Error(t, err)
	assert.Contains(t, out, "sim: seed 1: 1 goroutines of the test still wait when it has ended")
	assert.Contains(t, out, "go test -run '^TestSerialFailures$/^leak$' -sim.seed=1")
	assert.Contains(t, out, "go test -run '^TestSerialFailures$/^require$' -sim.seed=1")
	assert.Contains(t, out, "--- PASS: TestSerialFailures/next")
	assert.NotContains(t, out, "fatal error: ")
}
