package pair

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// errEnded: a server ended before it listened.
var errEnded = errors.New("it exited")

// awaitListener waits until a server listens on a TCP port, in the network namespace of a
// process. It does not connect, because the server would serve that connection.
func awaitListener(ctx context.Context, proc string, port int, ended <-chan struct{}) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, table := range []string{"tcp", "tcp6"} {
			b, err := os.ReadFile(filepath.Join(proc, "net", table))
			if err != nil && !errors.Is(err, os.ErrNotExist) { // no IPv6
				return err
			}
			if listens(string(b), port) {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listens reports whether a table of sockets, in the format of proc_pid_net(5), has one that
// listens on a port.
func listens(table string, port int) bool {
	suffix := fmt.Sprintf(":%04X", port)
	for l := range strings.Lines(table) {
		words := strings.Fields(l) // number, local address, remote address, state, ...
		if len(words) > 3 && words[3] == "0A" && strings.HasSuffix(words[1], suffix) {
			return true
		}
	}
	return false
}
