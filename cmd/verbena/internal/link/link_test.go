package link

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair makes two links that are each other's peers.
func pair(t *testing.T) (a, b *Link) {
	t.Helper()
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 2})
	require.NoError(t, err)
	h, err := NewHub(r, 2, true)
	require.NoError(t, err)
	require.NoError(t, r.Start())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.ErrorIs(t, <-ended, context.Canceled)
		assert.NoError(t, engine.Close())
		assert.NoError(t, dev.Close())
	})
	require.NoError(t, await.Func(t.Context(), engine, func() error {
		x, y, err := rdmatest.Connect(r, r)
		if err == nil {
			a, err = h.Open(x)
		}
		if err == nil {
			b, err = h.Open(y)
		}
		return err
	}))
	require.NoError(t, a.Ready(t.Context()))
	require.NoError(t, b.Ready(t.Context()))
	return a, b
}

func TestWriteSend(t *testing.T) {
	a, b := pair(t)
	window, err := mmap.Alloc(b.Device(), 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(t, err)
	remote, err := window.AsRemote(a.Device())
	require.NoError(t, err)
	local, err := mmap.Alloc(a.Device(), 4096, mmap.LocalReadOnly)
	require.NoError(t, err)
	for i := range byte(100) { // more than may be at the device
		copy(local.Bytes(), []byte{i, i})
		posted, err := a.WriteSend(t.Context(), Write{local, 0, remote, 100, 2}, &proto.End{Entries: uint32(i)})
		require.NoError(t, err)
		m, err := b.Receive(t.Context())
		require.NoError(t, err)
		end, err := proto.Decode(m)
		require.NoError(t, err)
		assert.Equal(t, &proto.End{Entries: uint32(i)}, end)
		assert.Equal(t, []byte{i, i}, window.Bytes()[100:102], "what was written is there when the message is")
		require.NoError(t, a.Wait(t.Context(), posted))
	}
	require.ErrorIs(t, a.Send(t.Context(), &proto.Results{}), proto.ErrTooBig)

	// Pings are for Heard alone; what was sent before the end comes before it.
	before := b.LastReceived()
	require.NoError(t, a.Send(t.Context(), &proto.Ping{}))
	require.NoError(t, a.Send(t.Context(), &proto.ID{Text: "last"}))
	require.NoError(t, a.Close(t.Context()))
	m, err := b.Receive(t.Context())
	require.NoError(t, err)
	assert.False(t, proto.IsPing(m))
	assert.False(t, b.LastReceived().Before(before))
	_, err = b.Receive(t.Context())
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorIs(t, err, rdma.ErrPeerClosed)
	require.ErrorIs(t, a.Send(t.Context(), &proto.Ping{}), ErrBroken)
	b.WaitClosed(t.Context())
	require.NoError(t, b.Close(t.Context()))
}

// TestFlood: a peer that sends more than may wait loses its connection.
func TestFlood(t *testing.T) {
	a, b := pair(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var err error
	for n := 0; err == nil; n++ {
		require.Less(t, n, 10*maxQueued)
		err = a.Send(ctx, &proto.End{})
	}
	require.ErrorIs(t, err, ErrBroken)
	for err = nil; err == nil; {
		_, err = b.Receive(ctx)
	}
	require.ErrorIs(t, err, ErrFlood)
	require.NoError(t, a.Close(ctx))
	require.NoError(t, b.Close(ctx))
}

// TestGivingUp: a wait ends with its context.
func TestGivingUp(t *testing.T) {
	a, b := pair(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := a.Receive(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, a.Close(t.Context()))
	require.NoError(t, b.Close(t.Context()))
}
