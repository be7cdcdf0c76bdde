package rsocket

import (
	"io"
	"math"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// SetLinger(0) makes Close a reset: the peer reads what has arrived, and then an error in place of
// the end of the data.
func TestSetLinger(t *testing.T) {
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			client, server := open(t, dev, Config{}), open(t, dev, Config{})
			for _, sec := range []int{0, -1, 600, math.MaxInt} {
				near, far := connect(t, client, server)
				_, err := near.Write([]byte("part"))
				require.NoError(t, err)
				got := make([]byte, 4)
				_, err = io.ReadFull(far, got)
				require.NoError(t, err)
				require.NoError(t, near.SetLinger(sec))
				require.NoError(t, near.Close())
				require.ErrorIs(t, near.SetLinger(sec), net.ErrClosed)
				_, err = far.Read(got)
				if sec == 0 {
					require.ErrorIs(t, err, syscall.ECONNRESET)
					_, err = far.Write([]byte("x"))
					require.ErrorIs(t, err, syscall.ECONNRESET)
				} else {
					assert.ErrorIs(t, err, io.EOF)
				}
				require.NoError(t, far.Close())
			}
		})
	}
}

// A reset does not wait for a peer that does not read.
func TestResetWhilePeerIsFull(t *testing.T) {
	client, server := open(t, paths["UDP"], Config{}), open(t, paths["UDP"], Config{})
	near, far := connect(t, client, server)
	written := make(chan error)
	go func() {
		for {
			if _, err := near.Write(make([]byte, 1<<20)); err != nil {
				written <- err
				return
			}
		}
	}()
	_, err := io.ReadFull(far, make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, near.SetLinger(0))
	require.NoError(t, near.Close())
	require.ErrorIs(t, <-written, net.ErrClosed)
	_, err = io.Copy(io.Discard, far)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.NoError(t, far.Close())
}

// Wait returns when the peer has the data, or when it does not get it any more.
func TestWait(t *testing.T) {
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			client, server := open(t, dev, Config{}), open(t, dev, Config{ReceiveBuffer: minBuffer})
			for _, reset := range []bool{false, true} {
				near, far := connect(t, client, server)
				const size = 500_000 // more than the peer has room for, and less than Config.SendBuffer
				_, err := near.Write(make([]byte, size))
				require.NoError(t, err)
				require.NoError(t, near.Close())
				ended := make(chan struct{})
				go func() { near.Wait(); close(ended) }()
				_, err = io.ReadFull(far, make([]byte, size/2))
				require.NoError(t, err)
				select {
				case <-ended:
					t.Fatal("it does not wait")
				default:
				}
				if reset {
					require.NoError(t, far.SetLinger(0))
					require.NoError(t, far.Close())
				} else {
					n, err := io.Copy(io.Discard, far)
					require.NoError(t, err)
					require.EqualValues(t, size-size/2, n)
				}
				<-ended
				near.Wait()
				require.ErrorIs(t, near.Close(), net.ErrClosed)
				_ = far.Close()
			}
		})
	}
}
