package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/process"
)

// Outcome is the result of a server and its client.
type Outcome struct {
	Output  string        // standard output of the client
	Elapsed time.Duration // from the start of the client to its end
	CPU     time.Duration // processor time of both programs
}

// Pair runs a server that listens on a TCP port, and then a client, to their end. Both must succeed
// within the limit. With stays, the server serves for ever, and is ended after the client. When it
// returns, neither runs any more.
func Pair(ctx context.Context, server, client process.Program, port int, limit time.Duration, stays bool) (o Outcome, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, process.ErrLimit)
	defer cancel()
	s, err := process.Start(ctx, server)
	if err != nil {
		return o, err
	}
	defer func() {
		s.Kill()
		o.CPU += s.CPU()
	}()
	if err := awaitListener(ctx, s, port); err != nil {
		return o, fmt.Errorf("the server does not listen on port %d: %w", port, s.Explain(err))
	}
	began := time.Now()
	c, err := process.Start(ctx, client)
	if err != nil {
		return o, err
	}
	err = c.Wait()
	o.Output, o.Elapsed, o.CPU = c.Stdout.String(), time.Since(began), c.CPU()
	switch {
	case err != nil:
		s.Kill()
		return o, errors.Join(fmt.Errorf("the client: %w", c.Explain(err)), s.Explain(errors.New("the server")))
	case c.Stdout.Cut():
		return o, fmt.Errorf("%v printed more than %d bytes", c, process.MaxOutput)
	case stays:
		_ = s.SignalGroup(syscall.SIGTERM)
		_ = s.Wait()
	default:
		err = s.Wait()
	}
	if err != nil {
		return o, fmt.Errorf("the server: %w", s.Explain(err))
	}
	return o, nil
}

// awaitListener waits until a server listens on a TCP port. It does not connect, because the server
// would serve that connection. The table of sockets is that of the server's network namespace.
func awaitListener(ctx context.Context, server *process.Process, port int) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, table := range []string{"tcp", "tcp6"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", server.PID(), table))
			if err == nil && listens(b, port) {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-server.Ended():
			if ctx.Err() == nil {
				return process.ErrEnded
			}
			return context.Cause(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listens reports whether a table of sockets, in the format of proc_pid_net(5), has one that
// listens on a port.
func listens(table []byte, port int) bool {
	suffix := fmt.Appendf(nil, ":%04X", port)
	for l := range bytes.Lines(table) {
		words := bytes.Fields(l) // number, local address, remote address, state, ...
		if len(words) > 3 && string(words[3]) == "0A" && bytes.HasSuffix(words[1], suffix) {
			return true
		}
	}
	return false
}

// FreePort returns a TCP port on which nobody listens now.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// textOf returns a command in the syntax of a shell.
func textOf(p process.Program) string {
	words := append(p.Env[:len(p.Env):len(p.Env)], p.Args...)
	for i, w := range words {
		if strings.ContainsAny(w, " ?*&;'\"") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
