package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// asProgram is set in the environment of this test binary where it is to be a program.
const asProgram = "VERBENA_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		if err := program(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// patience ends a test that hangs.
const patience = 5 * time.Minute

// program is what the programs of these tests do.
func program(what string, args []string) error {
	switch what {
	case "copy": // its input to its output, and a word to file 3
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return err
		}
		_, err := os.NewFile(3, "third").WriteString(args[0])
		return err
	case "fail":
		return errors.New("something is wrong")
	case "talk":
		line := strings.Repeat("x", 1<<16)
		for range 3 * MaxOutput >> 16 {
			fmt.Println(line)
		}
		fmt.Println("the end")
	case "work":
		for used := (syscall.Rusage{}); used.Utime.Usec == 0; {
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
				return err
			}
		}
	case "leave", "stay": // with a child, whose number is printed
		child := exec.Command("sleep", "infinity")
		if err := child.Start(); err != nil {
			return err
		}
		fmt.Println("child", child.Process.Pid)
		if what == "stay" {
			time.Sleep(time.Hour)
		}
	}
	return nil
}

func self(args ...string) Program {
	return Program{Args: append([]string{os.Args[0]}, args...), Env: []string{asProgram + "=1", "GORACE=atexit_sleep_ms=0"}}
}

// A program has its pipes and its files.
func TestPipes(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	program := self("copy", "word")
	program.In, program.Out, program.Files = true, true, []*os.File{w}
	p, err := Start(t.Context(), program)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = io.WriteString(p.In, "input\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(p.Out).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "input\n", line)
	require.NoError(t, p.Close())
	third, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, "word", string(third))
	require.NoError(t, r.Close())
}

func TestRun(t *testing.T) {
	out, err := Run(t.Context(), Program{Args: []string{"sh", "-c", "echo $A in $PWD; echo aside >&2"}, Env: []string{"A=word"}, Dir: "/"})
	require.NoError(t, err)
	assert.Equal(t, "word in /\n", out)

	_, err = Run(t.Context(), self("fail"))
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.ErrorContains(t, err, "fail: exit status 1; it printed: something is wrong")

	_, err = Run(t.Context(), Program{Args: []string{"/no/such/program"}, Out: true, In: true})
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "start /no/such/program")
}

func TestProcessorTime(t *testing.T) {
	p, err := Start(t.Context(), self("work"))
	require.NoError(t, err)
	require.NoError(t, p.Wait())
	assert.Positive(t, p.CPU())
	assert.Zero(t, p.Code())
}

// The end of a long output is kept.
func TestLongOutput(t *testing.T) {
	both := new(Output)
	program := self("talk")
	program.Stdout, program.Stderr = both, both
	p, err := Start(t.Context(), program)
	require.NoError(t, err)
	require.NoError(t, p.Wait())
	assert.True(t, both.Cut())
	assert.LessOrEqual(t, len(both.String()), 2*MaxOutput)
	assert.True(t, strings.HasSuffix(both.String(), "\nthe end\n"))
}

// A program that hangs is killed with what it has started, and so is what it leaves.
func TestGroup(t *testing.T) {
	enough := errors.New("enough")
	for _, how := range []string{"limit", "context", "kill", "leave"} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			program := self("stay")
			switch how {
			case "limit":
				program.Limit = time.Second // the child may not have begun
			case "leave":
				program = self("leave")
			}
			p, err := Start(ctx, program)
			require.NoError(t, err)
			if how == "context" || how == "kill" {
				wait, done := context.WithTimeout(t.Context(), patience)
				defer done()
				require.NoError(t, p.Await(wait, "child"))
			}
			switch how {
			case "context":
				cancel(enough)
				require.ErrorIs(t, p.Wait(), enough)
			case "kill":
				p.Kill()
				assert.Equal(t, -1, p.Code())
			case "limit":
				require.ErrorIs(t, p.Wait(), ErrLimit)
			case "leave":
				require.NoError(t, p.Wait())
			}
			if words := strings.Fields(p.Stdout.String()); len(words) == 2 {
				child, err := strconv.Atoi(words[1])
				require.NoError(t, err)
				require.Eventually(t, func() bool { return gone(child) }, patience, time.Millisecond)
			}
			require.ErrorIs(t, p.SignalGroup(nil), os.ErrProcessDone)
		})
	}
}

// gone reports whether a process has ended. Nobody may have waited for it yet.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return err != nil || strings.HasPrefix(rest, "Z")
}

// A program that is asked to stop can say something.
func TestStopSignal(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Start(ctx, Program{
		Args: []string{"sh", "-c", "trap 'echo goodbye; exit 3' TERM; echo ready; while true; do sleep 0.01; done"},
		Stop: syscall.SIGTERM, Grace: patience,
	})
	require.NoError(t, err)
	require.NoError(t, p.Await(t.Context(), "ready"))
	cancel()
	require.ErrorIs(t, p.Wait(), context.Canceled)
	assert.Equal(t, 3, p.Code())
	assert.Equal(t, "ready\ngoodbye\n", p.Stdout.String())
}

func TestAwait(t *testing.T) {
	p, err := Start(t.Context(), self("fail"))
	require.NoError(t, err)
	err = p.Await(t.Context(), "success")
	require.ErrorIs(t, err, ErrEnded)
	require.ErrorContains(t, err, "something is wrong")
	require.NoError(t, p.Await(t.Context(), "wrong"))

	p, err = Start(t.Context(), self("stay"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Await(ctx, "success"), context.DeadlineExceeded)
	p.Kill()
}

// It was too late before anything began.
func TestLate(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("late")
	cancel(late)
	_, err := Start(ctx, self("stay"))
	require.ErrorIs(t, err, late)
}
