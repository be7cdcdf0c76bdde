//go:build unix

package samples

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/lab3"
)

// The file arrives, and the sender gets the secret key that belongs to its ID.
func TestLab3(t *testing.T) {
	dir, address := t.TempDir(), "127.0.0.1:"+freeRDMAPort()
	sent, received := filepath.Join(dir, "sent"), filepath.Join(dir, "received")
	data := make([]byte, 3<<20+17)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	require.NoError(t, os.WriteFile(sent, data, 0o600))
	sender := start(t, "lab3_sender", "-s", address, "-f", sent, "-id", "Ada", "-timeout", patience)
	receiver := start(t, "lab3_receiver", "-p", address, "-o", received, "-k", "key", "-timeout", patience)
	succeed(t, sender, receiver)
	got, err := os.ReadFile(received)
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256(data), sha256.Sum256(got))
	mac, id := hmac.New(sha256.New, []byte("key")), [32]byte{'A', 'd', 'a'}
	mac.Write(id[:])
	assert.Contains(t, sender.stdout.String(), fmt.Sprintf("%d bytes sent; the secret key of Ada: %x", len(data), mac.Sum(nil)))
}

// A receiver fails if the hash of the file is wrong, or if the sender leaves early.
func TestLab3Fails(t *testing.T) {
	address := "127.0.0.1:" + freeRDMAPort()
	receiver := start(t, "lab3_receiver", "-p", address, "-timeout", patience)
	receiver.await("waiting for lab3_sender")
	var good bool
	lab3Peer(t, address, func(ctx context.Context, conn *rdma.Connection, messages *lab3.Messenger) error {
		var memory lab3.Memory
		if err := messages.Exchange(ctx, conn, lab3.FileInfo, lab3.File{Length: 8}, lab3.MemoryInfo, &memory); err != nil {
			return err
		}
		good = true
		return messages.Exchange(ctx, conn, lab3.Done, struct{}{}, lab3.Verdict, &good)
	})
	assert.False(t, good)
	assert.Equal(t, 1, receiver.code())
	assert.Contains(t, receiver.lastLine(), "the hash of the received data differs from the hash of the file")

	receiver = start(t, "lab3_receiver", "-p", address, "-timeout", patience)
	receiver.await("waiting for lab3_sender")
	lab3Peer(t, address, func(ctx context.Context, conn *rdma.Connection, messages *lab3.Messenger) error {
		return messages.Exchange(ctx, conn, lab3.FileInfo, lab3.File{Length: 8}, lab3.MemoryInfo, &lab3.Memory{})
	})
	assert.Equal(t, 1, receiver.code())

	for _, length := range []uint64{0, 1 << 40} {
		receiver = start(t, "lab3_receiver", "-p", address, "-timeout", patience)
		receiver.await("waiting for lab3_sender")
		lab3Peer(t, address, func(ctx context.Context, conn *rdma.Connection, messages *lab3.Messenger) error {
			return messages.Send(ctx, conn, lab3.FileInfo, lab3.File{Length: length})
		})
		assert.Equal(t, 1, receiver.code())
		assert.Contains(t, receiver.lastLine(), fmt.Sprintf("the sender announced a file of %d bytes", length))
	}

	// A sender whose receiver has ended prints no secret key.
	receiver = start(t, "lab3_receiver", "-p", address)
	receiver.await("waiting for lab3_sender")
	receiver.interrupted(syscall.SIGINT, 130)
	sender := start(t, "lab3_sender", "-s", address, "-timeout", "100ms")
	assert.Equal(t, 1, sender.code())
	assert.Empty(t, sender.stdout.String())
}

// lab3Peer connects to a receiver, carries out the steps, and closes the connection.
func lab3Peer(t *testing.T, address string, steps func(context.Context, *rdma.Connection, *lab3.Messenger) error) {
	t.Helper()
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine})
	require.NoError(t, err)
	messages, err := lab3.New(dev, r)
	require.NoError(t, err)
	require.NoError(t, r.Start())
	ctx, stop := context.WithCancel(t.Context())
	driven := make(chan error)
	go func() { driven <- await.Run(ctx, engine) }()
	conn, err := await.Dial(ctx, r, address, rdma.DialConfig{})
	if assert.NoError(t, err) {
		assert.NoError(t, steps(ctx, conn, messages))
		assert.NoError(t, await.Func(ctx, engine, conn.Close))
	}
	assert.NoError(t, await.Stop(ctx, r))
	stop()
	<-driven
	require.NoError(t, messages.Close())
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Close())
}
