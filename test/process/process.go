// Package process runs programs beside a test, which kills them at its end.
package process

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/process"
)

// Program and Output are described in package internal/process.
type (
	Program = process.Program
	Output  = process.Output
)

// Process is a program that a test has started.
type Process struct {
	*process.Process
	t testing.TB
}

// patience ends a test that hangs.
const patience = 5 * time.Minute

// Start starts a program, which ends with the test at the latest. A test that fails logs what its
// programs have printed. Under the race detector a program does not wait for a second at its end.
func Start(t testing.TB, program Program) *Process {
	t.Helper()
	program.Env = append([]string{"GORACE=atexit_sleep_ms=0"}, program.Env...)
	p, err := process.Start(context.Background(), program)
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Log(p.Explain(errors.New("started by the test that failed")))
		}
	})
	return &Process{p, t}
}

// Await waits until the program prints a text.
func (p *Process) Await(text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	require.NoError(p.t, p.Process.Await(ctx, text))
}

// Succeed waits for the end of a program that has to succeed.
func (p *Process) Succeed() {
	p.t.Helper()
	assert.NoError(p.t, p.Explain(p.Wait()))
}

// Send sends a signal to the program.
func (p *Process) Send(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.Signal(s))
}
