package main

import (
	"os"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/test/process"
)

// asProgram is set in the environment of this test binary where it is to be the program.
const asProgram = "VERBENA_TEST_AS_PROGRAM"

// patience is for what has to happen, on a machine that stands still now and then.
const patience = 5 * time.Minute

// tool is verbena for most tests. One row of a test is os.Args[0], which has the race detector.
var tool = process.Tool{Package: "."}

// verbena is a command of the program, behind words such as those that enter a network
// namespace.
func verbena(t *testing.T, before []string, args ...string) []string {
	return append(append(before[:len(before):len(before)], tool.Path(t)), args...)
}

func start(t *testing.T, command ...string) *process.Process {
	t.Helper()
	return startOn(t, nil, command...)
}

// startOn starts a program whose standard output goes to a file, unless that is nil. All else that it
// prints is in Stderr.
func startOn(t *testing.T, stdout *os.File, command ...string) *process.Process {
	t.Helper()
	out := &process.Output{}
	program := process.Program{Args: command, Env: []string{asProgram + "=1", "VERBENA_SECRET=a secret of these tests"}, Stdout: out, Stderr: out}
	if stdout != nil {
		program.Stdout = stdout
	}
	return process.Start(t, program)
}

// interrupted ends a server. Behind ip netns exec it is the same process.
func interrupted(p *process.Process) {
	p.Send(os.Interrupt)
	p.Code()
}
