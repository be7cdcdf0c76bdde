//go:build unix

package samples

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/test/soak"
)

// broadcast starts a server, and returns it with the flags of its consumers.
func broadcast(t *testing.T, flags ...string) (server *process, consumer func(name string, flags ...string) *process) {
	t.Helper()
	server = start(t, append([]string{"broadcast_server", "-oob", "tcp:127.0.0.1:0"}, flags...)...)
	server.await("listening on ")
	way := "tcp:" + strings.TrimSpace(strings.TrimPrefix(server.stdout.String(), "listening on "))
	return server, func(name string, flags ...string) *process {
		return start(t, append([]string{"broadcast_consumer", "-oob", way, "-name", name, "-timeout", patience}, flags...)...)
	}
}

// A server broadcasts to a fast consumer, to a slow one, to one that is killed at random
// moments and restarted, and to one that starts when the others are done. Each receives the
// stream, whatever happens to the others, and the server ends with the last consumer.
func TestSoakBroadcast(t *testing.T) {
	server, consumer := broadcast(t, "-n", "32", "-consumers", "4", "-timeout", patience)
	verified := regexp.MustCompile(`^32 chunks, SHA-256 [0-9a-f]{64} verified\n$`)
	var consumers sync.WaitGroup
	whole := func(name string, flags ...string) {
		p := consumer(name, flags...)
		assert.Zero(t, p.code(), "%s: %s", name, p.stderr.String())
		assert.Regexp(t, verified, p.stdout.String(), name)
	}
	consumers.Go(func() { whole("quick") })
	consumers.Go(func() { whole("slow", "-delay", "50") })
	rounds := soak.Rounds(t, 3, 60)
	consumers.Go(func() {
		for range rounds {
			victim := consumer("mortal", "-delay", "20")
			if rand.IntN(4) > 0 {
				victim.await("waiting for the connection")
			}
			time.Sleep(rand.N(120 * time.Millisecond))
			_ = victim.cmd.Process.Kill()
			if code := victim.code(); code == 0 { // it was quicker
				assert.Regexp(t, verified, victim.stdout.String())
			} else {
				assert.Equal(t, -1, code, "%s", victim.stderr.String())
			}
		}
		whole("mortal")
	})
	consumers.Wait()
	assert.Nil(t, server.cmd.ProcessState, "it has ended")
	whole("late")
	assert.Zero(t, server.code(), "%s", server.stderr.String())
}

// A consumer ends when its server ends, and reports why.
func TestBroadcastServerEnds(t *testing.T) {
	t.Parallel()
	server, consumer := broadcast(t, "-n", "16")
	c := consumer("c", "-delay", "3600000")
	server.await("a client has connected")
	server.interrupted(syscall.SIGTERM, 143)
	assert.Equal(t, 1, c.code())
	// The server may end before the consumer has connected. It announces its end after the
	// chunks in flight, for which it waits at most CloseTimeout.
	assert.Regexp(t, "closed by the peer|did not connect|does not answer|retry count exceeded", c.lastLine())
}

// A consumer with an unsuitable address is rejected, and the server keeps running.
func TestBroadcastRejects(t *testing.T) {
	t.Parallel()
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	table, err := dev.GIDs(1)
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	if len(table) < 2 {
		t.Skip("no IPv6 on the loopback interface")
	}
	server, consumer := broadcast(t, "-n", "2", "-consumers", "1", "-timeout", patience)
	wrong := consumer("wrong", "-g", "1")
	assert.Equal(t, 1, wrong.code())
	assert.Contains(t, wrong.stderr.String(), "one is IPv4 and one IPv6")
	right := consumer("right")
	assert.Zero(t, right.code(), "%s", right.stderr.String())
	assert.Zero(t, server.code(), "%s", server.stderr.String())
}
