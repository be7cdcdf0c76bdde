package cmstream

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) *Endpoint {
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	s, err := Open(dev, 0, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// pair is both ends of a stream.
func pair(t *testing.T) (client, server *Stream) {
	listener, dialer := open(t), open(t)
	accepted := make(chan *Stream, 1)
	at, err := listener.Listen(t.Context(), ":0", func(s *Stream, _ netip.AddrPort) { accepted <- s })
	require.NoError(t, err)
	client, err = dialer.Dial(t.Context(), net.JoinHostPort("127.0.0.1", strconv.Itoa(int(at.Port()))), rdma.DialConfig{Timeout: 5 * time.Minute})
	require.NoError(t, err)
	server = <-accepted
	t.Cleanup(func() {
		assert.NoError(t, client.Close())
		assert.NoError(t, server.Close())
	})
	return client, server
}

// What is written comes, both ways at once, and then the end.
func TestStream(t *testing.T) {
	client, server := pair(t)
	data := make([]byte, 300_001)
	_, _ = rand.Read(data)
	for _, s := range []*Stream{client, server} {
		go func() {
			_ = s.SetWriteDeadline(time.Now().Add(5 * time.Minute))
			n, err := s.Write(data)
			assert.NoError(t, err)
			assert.Equal(t, len(data), n)
		}()
	}
	for _, s := range []*Stream{client, server} {
		got := make([]byte, len(data))
		_, err := io.ReadFull(s, got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	}
	n, err := client.Write([]byte("the last"))
	require.NoError(t, err)
	require.Equal(t, 8, n)
	require.NoError(t, client.Close())
	rest, err := io.ReadAll(server)
	require.NoError(t, err, "the end of a stream is io.EOF")
	assert.Equal(t, "the last", string(rest))
	_, err = server.Write([]byte("x"))
	assert.Error(t, err)
}

// Several calls of Read share the data, and all of them get the end.
func TestConcurrentReads(t *testing.T) {
	client, server := pair(t)
	var readers sync.WaitGroup
	var total atomic.Int64
	for range 4 {
		readers.Go(func() {
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, server, make([]byte, 10))
			assert.NoError(t, err)
			total.Add(n)
		})
	}
	for range 10 {
		_, err := client.Write(make([]byte, 100))
		require.NoError(t, err)
	}
	require.NoError(t, client.Close())
	readers.Wait()
	require.EqualValues(t, 1000, total.Load())
}

// An end that writes more than it may loses its stream; what had come can be read.
func TestFlood(t *testing.T) {
	client, server := pair(t)
	block := make([]byte, 1<<20)
	var err error
	for range 2 * maxQueue / len(block) {
		if _, err = client.Write(block); err != nil {
			break
		}
	}
	require.Error(t, err)
	n, err := io.Copy(io.Discard, server)
	assert.ErrorIs(t, err, errFlood)
	assert.LessOrEqual(t, n, int64(maxQueue))
}

func TestNobodyListens(t *testing.T) {
	_, err := open(t).Dial(t.Context(), "127.0.0.1:9", rdma.DialConfig{Once: true, Timeout: 5 * time.Minute})
	assert.Error(t, err)
}
