package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asProgram is set in the environment of this test binary where it is to be the program.
const asProgram = "VERBENA_TEST_AS_PROGRAM"

// patience is for what has to happen, on a machine that stands still now and then.
const patience = 5 * time.Minute

// process is a program that runs beside the test.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	out screen // standard output and standard error
}

type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *screen) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *screen) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// verbena is a command of the program, behind words such as those that enter a network
// namespace.
func verbena(before []string, args ...string) []string {
	return append(append(before[:len(before):len(before)], os.Args[0]), args...)
}

func start(t *testing.T, command ...string) *process {
	t.Helper()
	return startOn(t, nil, command...)
}

// startOn starts a program whose standard output goes to a file, unless that is nil.
func startOn(t *testing.T, stdout *os.File, command ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(command[0], command[1:]...)}
	p.cmd.Env = append(os.Environ(), asProgram+"=1", "VERBENA_SECRET=a secret of these tests")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// await waits until the program prints a text.
func (p *process) await(text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return strings.Contains(p.out.String(), text) }, patience, time.Millisecond,
		"%v has not printed %q: %s", p.cmd.Args, text, &p.out)
}

// code waits for the end of the program; it is -1 if a signal has killed it.
func (p *process) code() int {
	p.t.Helper()
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// succeed waits for the end of a program that has to succeed.
func (p *process) succeed() {
	p.t.Helper()
	assert.Zero(p.t, p.code(), "%v\n%s", p.cmd.Args, &p.out)
}

// interrupted ends a server. Behind ip netns exec it is the same process.
func (p *process) interrupted() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(os.Interrupt))
	p.code()
}
