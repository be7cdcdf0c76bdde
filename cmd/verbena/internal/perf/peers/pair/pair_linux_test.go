package pair

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// patience is for what has to happen, on a machine that stands still now and then.
const patience = 5 * time.Minute

// program is what the pairs of these tests do.
func program(what string, args []string) error {
	switch what {
	case "serve": // PORT: one client
		l, err := net.Listen("tcp", "127.0.0.1:"+args[0])
		if err != nil {
			return err
		}
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_, err = c.Write([]byte("hello"))
		return errors.Join(err, c.Close(), l.Close())
	case "serve and stay": // PORT FILE: with a process in its group, whose number is in the file
		child := exec.Command("sleep", "infinity")
		if err := child.Start(); err != nil {
			return err
		}
		if err := os.WriteFile(args[1], []byte(strconv.Itoa(child.Process.Pid)), 0o600); err != nil {
			return err
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+args[0])
		if err != nil {
			return err
		}
		defer l.Close()
		time.Sleep(time.Hour)
	case "ask": // PORT
		c, err := net.Dial("tcp", "127.0.0.1:"+args[0])
		if err != nil {
			return err
		}
		b := make([]byte, 5)
		if _, err = c.Read(b); err != nil {
			return err
		}
		fmt.Printf("%s from %s\n", b, os.Getenv("FROM"))
		return c.Close()
	case "stay":
		time.Sleep(time.Hour)
	case "fail":
		return errors.New("something is wrong")
	case "talk":
		line := strings.Repeat("x", 1<<16)
		for range 2 * maxOutput >> 16 {
			fmt.Println(line)
		}
	}
	return nil
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// run runs a pair on a thread of its own.
func run(t *testing.T, ctx context.Context, p *Pair) (o Outcome, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		o, err = Run(ctx, p)
	}()
	<-done
	return o, err
}

func command(args ...string) Command {
	return Command{Args: append([]string{os.Args[0]}, args...), Env: []string{asProgram + "=1", "FROM=a test"}}
}

func TestRun(t *testing.T) {
	port := freePort(t)
	at := strconv.Itoa(port)
	o, err := run(t, t.Context(), &Pair{Server: command("serve", at), Client: command("ask", at), Port: port, Proc: "/proc/self", Limit: patience})
	require.NoError(t, err)
	assert.Equal(t, "hello from a test\n", o.Output)
	assert.Positive(t, o.CPU)
}

func TestFailures(t *testing.T) {
	at := func(f func(port string) (server, client Command)) *Pair {
		port := freePort(t)
		server, client := f(strconv.Itoa(port))
		return &Pair{Server: server, Client: client, Port: port, Proc: "/proc/self", Limit: patience}
	}
	for name, test := range map[string]struct {
		pair *Pair
		says []string
	}{
		"no program": {at(func(p string) (Command, Command) {
			return Command{Args: []string{"/no/such/program"}}, command("ask", p)
		}), []string{"start /no/such/program"}},
		"the server fails": {at(func(p string) (Command, Command) { return command("fail"), command("ask", p) }),
			[]string{"does not listen", "it exited", "something is wrong"}},
		"the client fails": {at(func(p string) (Command, Command) { return command("serve", p), command("fail") }),
			[]string{"the client", "exit status 1", "something is wrong"}},
		"no client program": {at(func(p string) (Command, Command) {
			return command("serve", p), Command{Args: []string{"/no/such/program"}}
		}), []string{"start /no/such/program"}},
		"too much": {at(func(p string) (Command, Command) { return command("serve", p), command("talk") }),
			[]string{"printed more than"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, t.Context(), test.pair)
			require.Error(t, err)
			for _, text := range test.says {
				assert.ErrorContains(t, err, text)
			}
		})
	}
}

// What hangs is killed, with what it has started.
func TestLimit(t *testing.T) {
	for _, how := range []string{"limit", "interrupted"} {
		t.Run(how, func(t *testing.T) {
			port, file := freePort(t), filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			p := &Pair{Server: command("serve and stay", strconv.Itoa(port), file), Client: command("stay"), Port: port, Proc: "/proc/self", Limit: patience}
			why := errors.New("enough")
			if how == "limit" {
				p.Limit, why = time.Second, errLimit // until then the child may not have begun
			} else {
				go func() {
					for range time.Tick(time.Millisecond) {
						if b, _ := os.ReadFile(file); len(b) > 0 {
							cancel(why)
							return
						}
					}
				}()
			}
			_, err := run(t, ctx, p)
			require.ErrorIs(t, err, why)
			b, err := os.ReadFile(file)
			if how == "limit" && errors.Is(err, os.ErrNotExist) {
				return
			}
			require.NoError(t, err)
			child, err := strconv.Atoi(string(b))
			require.NoError(t, err)
			require.Eventually(t, func() bool { return gone(child) }, patience, time.Millisecond)
		})
	}
}

// It was too late before anything began.
func TestLate(t *testing.T) {
	p := &Pair{Server: command("stay"), Client: command("stay"), Port: freePort(t), Proc: "/proc/self"}
	_, err := run(t, t.Context(), p)
	assert.ErrorIs(t, err, errLimit)
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

func TestListens(t *testing.T) {
	const table = "  sl  local_address rem_address   st tx_queue\n" +
		"   0: 0100007F:3720 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 354466 1\n" +
		"   1: 0100007F:3721 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 354467 1\n"
	assert.True(t, listens(table, 0x3720))
	assert.False(t, listens(table, 0x3721), "it is connected, and does not listen")
	assert.False(t, listens(table, 0x720))
	assert.False(t, listens("", 1))
}
