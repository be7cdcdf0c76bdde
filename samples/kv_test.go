//go:build unix

package samples

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/test/soak"
)

// Four clients of two kinds load a server with the same few keys. Each is killed at random
// moments and restarted. Whatever happens to them, the server keeps running, and a client
// that is not killed finds every value correct.
func TestSoakKeyValue(t *testing.T) {
	server := start(t, "kv_server", "-oob", "tcp:127.0.0.1:0")
	server.await("listening on ")
	way := "tcp:" + strings.TrimSpace(strings.TrimPrefix(server.stdout.String(), "listening on "))
	const verified = "2000 operations, every value verified\n"
	client := func(name string, n, seed int) *process {
		return start(t, name, "-oob", way, "-n", strconv.Itoa(n), "-keys", "20", "-seed", strconv.Itoa(seed), "-timeout", patience)
	}
	rounds := soak.Rounds(t, 2, 40)
	var clients sync.WaitGroup
	for i, name := range []string{"kv_client", "kv_client_await", "kv_client", "kv_client_await"} {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for round := range rounds {
				victim := client(name, 1<<30, 100*i+round)
				if rng.IntN(4) > 0 {
					victim.await("waiting for the connection")
				}
				time.Sleep(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
				_ = victim.cmd.Process.Kill()
				assert.Equal(t, -1, victim.code(), "%s", victim.stderr.String())

				whole := client(name, 2000, 100*i+round)
				assert.Zero(t, whole.code(), "%s", whole.stderr.String())
				assert.Equal(t, verified, whole.stdout.String())
			}
		})
	}
	clients.Wait()
	assert.Nil(t, server.cmd.ProcessState, "it has ended")
	server.interrupted(syscall.SIGINT, 130)
}

// A client ends when its server ends, and reports why.
func TestKeyValueServerEnds(t *testing.T) {
	for _, name := range []string{"kv_client", "kv_client_await"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, "kv_server", "-oob", "tcp:127.0.0.1:0")
			server.await("listening on ")
			way := "tcp:" + strings.TrimSpace(strings.TrimPrefix(server.stdout.String(), "listening on "))
			client := start(t, name, "-oob", way, "-n", "1000000000", "-timeout", patience)
			server.await("a client has connected")
			server.interrupted(syscall.SIGTERM, 143)
			assert.Equal(t, 1, client.code(), "%s", client.stderr.String())
			// The server may end before the client has connected.
			assert.Regexp(t, "closed by the peer|did not connect", client.lastLine())
		})
	}
}
