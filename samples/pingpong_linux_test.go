package samples

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exchanges waits until a ping-pong program exchanges messages: only then does it use the processor
// once it knows the peer's address.
func (p *process) exchanges() {
	p.t.Helper()
	used := func() (sum time.Duration) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
		require.NoError(p.t, err)
		for _, path := range threads {
			if text, err := os.ReadFile(path); err == nil { // else the thread has ended
				var running time.Duration
				_, err := fmt.Sscan(string(text), &running)
				require.NoError(p.t, err)
				sum += running
			}
		}
		return sum
	}
	before := used()
	require.Eventually(p.t, func() bool { return used() > before+50*time.Millisecond }, 5*time.Minute, time.Millisecond)
}

// Ctrl-C ends a program wherever it is: waiting for a client, or exchanging messages. Its peer
// ends, too.
func TestPingPongInterrupted(t *testing.T) {
	for _, service := range []string{"rc", "uc", "ud"} {
		for _, mode := range []string{"-e", "-c"} {
			args := []string{"-d", "soft-lo", "-p", freePort(t), "-n", "1000000000", "-s", "1024", mode}
			server := startServer(t, service, args...)
			server.interrupted(syscall.SIGINT, 130)

			server = startServer(t, service, args...)
			client := startPingPong(t, service, append(args, "localhost")...)
			client.await("remote address")
			server.await("remote address")
			client.exchanges()
			server.exchanges()
			server.interrupted(syscall.SIGTERM, 143)
			assert.Equal(t, 1, client.code(), client.said())
		}
	}
}

// Whichever of the two programs is killed, the other ends, with an error, whether it sleeps or
// polls.
func TestPingPongKilled(t *testing.T) {
	for _, service := range []string{"rc", "uc", "ud"} {
		for _, device := range []string{"soft-lo", "soft-lo?local=off"} {
			for i, mode := range []string{"-e", "-c"} {
				args := []string{"-d", device, "-p", freePort(t), "-n", "1000000000", "-s", "1024", mode}
				victim := startServer(t, service, args...)
				other := startPingPong(t, service, append(args, "localhost")...)
				other.await("remote address")
				victim.await("remote address")
				if i == 1 {
					victim, other = other, victim
				}
				other.exchanges()
				victim.exchanges()
				victim.signal(syscall.SIGKILL)
				assert.Equal(t, -1, victim.code())
				assert.Equal(t, 1, other.code(), other.said())
			}
		}
	}
}
