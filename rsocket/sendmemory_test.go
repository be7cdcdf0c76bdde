package rsocket_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
)

// memoryFiles is how many files of memory this process has open.
func memoryFiles(t *testing.T) (n int) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // not Linux
	}
	for _, e := range list {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && strings.HasPrefix(target, "/memfd:") {
			n++
		}
	}
	return n
}

// Clients that read nothing make a server hold no more send memory than Config.SendMemory, and another
// client gets its data meanwhile. When they have gone, the memory is given back, with its files.
func TestSendMemory(t *testing.T) {
	const clients, limit = 40, 8 << 20
	for name, dev := range map[string]soft.Config{"shared memory": {}, "UDP": {DisableLocal: true}} {
		t.Run(name, func(t *testing.T) {
			server := open(t, dev, rsocket.Config{MaxConnections: 64, SendMemory: limit})
			hostile, honest := open(t, dev, rsocket.Config{ReceiveBuffer: 64 << 10}), open(t, dev, rsocket.Config{})
			l := listen(t, server)
			dial := func(s *rsocket.Stack) (near, far *rsocket.Conn) {
				near, err := s.Dial(context.Background(), l.Addr().String())
				require.NoError(t, err)
				far, err = l.AcceptConn()
				require.NoError(t, err)
				return near, far
			}
			before := memoryFiles(t)
			var ends []*rsocket.Conn
			data := make([]byte, 2<<20)
			for range clients {
				near, far := dial(hostile)
				ends = append(ends, near, far)
				require.NoError(t, far.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
				n, err := far.Write(data)
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.Less(t, n, len(data))
				require.LessOrEqual(t, server.Counters().SendMemory, uint64(limit))
			}
			require.NotZero(t, server.Counters().SendMemory)

			near, far := dial(honest)
			wrote := make(chan error, 1)
			go func() {
				_, err := far.Write(data)
				wrote <- err
			}()
			_, err := io.ReadFull(near, make([]byte, len(data)))
			require.NoError(t, err)
			require.NoError(t, <-wrote)
			require.LessOrEqual(t, server.Counters().SendMemory, uint64(limit))

			for _, c := range append(ends, near, far) {
				require.NoError(t, c.SetLinger(0))
				require.NoError(t, c.Close())
			}
			for _, c := range append(ends, near, far) {
				c.Wait()
			}
			for _, s := range []*rsocket.Stack{server, hostile, honest} {
				assert.Eventually(t, func() bool { return s.Counters().SendMemory == 0 }, 5*time.Minute, 10*time.Millisecond)
			}
			require.LessOrEqual(t, memoryFiles(t), before)
		})
	}
}
