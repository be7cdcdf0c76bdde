package rsocket_test

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
)

// Calls of Read at the same time get each byte once, while others read no bytes.
func TestReadNothingMeanwhile(t *testing.T) {
	const total = 64 << 20
	client, server := open(t, soft.Config{}, rsocket.Config{}), open(t, soft.Config{}, rsocket.Config{})
	l := listen(t, server)
	near, err := client.Dial(context.Background(), l.Addr().String())
	require.NoError(t, err)
	far, err := l.AcceptConn()
	require.NoError(t, err)
	var got atomic.Int64
	var over atomic.Bool
	var calls, others sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{far}, make([]byte, 1<<20))
			got.Add(n)
			if err != nil {
				t.Error(err)
			}
		})
	}
	others.Go(func() {
		for !over.Load() {
			if n, err := far.Read(nil); n != 0 || err != nil {
				t.Error(n, err)
				return
			}
		}
	})
	data := make([]byte, 1<<20)
	for range total / len(data) {
		_, err := near.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, near.CloseWrite())
	calls.Wait()
	over.Store(true)
	others.Wait()
	require.EqualValues(t, total, got.Load())
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
}
