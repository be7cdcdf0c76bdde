package rsocket

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// socketPair returns the ends of a connection of package net.
func socketPair(t *testing.T, network string) (near, far net.Conn) {
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "socket")
	}
	l, err := net.Listen(network, addr)
	require.NoError(t, err)
	defer l.Close()
	near, err = net.Dial(network, l.Addr().String())
	require.NoError(t, err)
	far, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// io.Copy moves all bytes between connections and what else programs read and write.
func TestCopy(t *testing.T) {
	for path, dev := range paths {
		server, client := open(t, dev, Config{}), open(t, dev, Config{})
		data := make([]byte, 5<<20+17)
		_, _ = rand.NewChaCha8([32]byte{}).Read(data)
		feed := func(c io.WriteCloser) {
			go func() {
				_, _ = io.Copy(c, struct{ io.Reader }{bytes.NewReader(data)})
				_ = c.Close()
			}()
		}
		name := filepath.Join(t.TempDir(), "data")
		require.NoError(t, os.WriteFile(name, data, 0o600))
		sources := map[string]func() io.Reader{
			"memory": func() io.Reader { return bytes.NewBuffer(data) },
			"file": func() io.Reader {
				f, err := os.Open(name)
				require.NoError(t, err)
				t.Cleanup(func() { _ = f.Close() })
				return f
			},
			"TCP":  func() io.Reader { near, far := socketPair(t, "tcp"); feed(far); return near },
			"Unix": func() io.Reader { near, far := socketPair(t, "unix"); feed(far); return near },
			"rsocket": func() io.Reader {
				near, far := connect(t, client, server)
				feed(far)
				return near
			},
		}
		for source, from := range sources {
			for _, limit := range []int64{0, 1, 100_000, 6 << 20} {
				t.Run(path+"/from "+source, func(t *testing.T) {
					near, far := connect(t, client, server)
					got := make(chan []byte, 1)
					go func() { b, _ := io.ReadAll(struct{ io.Reader }{far}); got <- b }()
					r, want := from(), data
					if limit > 0 {
						r, want = io.LimitReader(r, limit), data[:min(limit, int64(len(data)))]
					}
					n, err := io.Copy(near, r)
					require.NoError(t, err)
					require.EqualValues(t, len(want), n)
					require.NoError(t, near.CloseWrite())
					require.True(t, bytes.Equal(want, <-got))
					if limit > 0 {
						require.EqualValues(t, limit-n, r.(*io.LimitedReader).N)
					}
					require.NoError(t, errors.Join(near.Close(), far.Close()))
				})
			}
		}
		for _, network := range []string{"tcp", "unix"} {
			t.Run(path+"/to "+network, func(t *testing.T) {
				near, far := connect(t, client, server)
				to, end := socketPair(t, network)
				got := make(chan []byte, 1)
				go func() { b, _ := io.ReadAll(end); got <- b }()
				feed(far)
				n, err := io.Copy(to, near)
				require.NoError(t, err)
				require.EqualValues(t, len(data), n)
				require.NoError(t, to.Close())
				require.True(t, bytes.Equal(data, <-got))
				require.NoError(t, near.Close())
			})
		}
	}
}

// A reader that has nothing to say holds no send memory, keeps no Write waiting, and no Close.
func TestCopyFromSilence(t *testing.T) {
	server, client := open(t, paths["UDP"], Config{}), open(t, paths["UDP"], Config{})
	near, far := connect(t, client, server)
	source, feeder := socketPair(t, "tcp")
	done := make(chan error, 1)
	go func() { _, err := near.ReadFrom(source); done <- err }()
	got := make([]byte, 2)
	for _, w := range []io.Writer{feeder, near, feeder, near} {
		_, err := w.Write([]byte("ab"))
		require.NoError(t, err)
		_, err = io.ReadFull(far, got)
		require.NoError(t, err)
		require.Equal(t, "ab", string(got))
	}
	require.NoError(t, near.Close())
	near.Wait()
	_, err := feeder.Write([]byte("c"))
	require.NoError(t, err)
	require.ErrorIs(t, <-done, net.ErrClosed)
	require.NoError(t, far.Close())
}

// That a peer has gone is an error once there is something to write, and not before, as for connections of
// package net.
func TestCopyToGonePeer(t *testing.T) {
	server, client := open(t, paths["UDP"], Config{}), open(t, paths["UDP"], Config{})
	for _, row := range []struct {
		left string
		err  error
	}{{"", nil}, {"c", syscall.EPIPE}} {
		near, far := connect(t, client, server)
		source, feeder := socketPair(t, "tcp")
		require.NoError(t, far.Close())
		for err := error(nil); err == nil; time.Sleep(time.Millisecond) {
			_, err = near.Write(nil)
		}
		_, err := io.WriteString(feeder, row.left)
		require.NoError(t, err)
		require.NoError(t, feeder.Close())
		n, err := near.ReadFrom(source)
		require.ErrorIs(t, err, row.err)
		require.Zero(t, n)
		require.NoError(t, near.Close())
	}
}

// A file in blocking mode, as programs inherit them, keeps no Write waiting either, while it has nothing
// to say.
func TestCopyFromBlockingFile(t *testing.T) {
	server, client := open(t, paths["UDP"], Config{}), open(t, paths["UDP"], Config{})
	near, far := connect(t, client, server)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	r.Fd() // blocking mode
	started, done := make(chan struct{}), make(chan error, 1)
	go func() {
		close(started)
		_, err := near.ReadFrom(io.LimitReader(r, 4))
		done <- err
	}()
	<-started
	got := make([]byte, 2)
	for i, to := range []io.Writer{w, near, w} {
		if i == 1 {
			time.Sleep(100 * time.Millisecond) // ReadFrom has probably called read(2) again
		}
		written := make(chan error, 1)
		go func() { _, err := to.Write([]byte("ab")); written <- err }()
		select {
		case err := <-written:
			require.NoError(t, err)
		case <-time.After(10 * time.Minute):
			require.FailNow(t, "Write waits for the file")
		}
		_, err = io.ReadFull(far, got)
		require.NoError(t, err)
		require.Equal(t, "ab", string(got))
	}
	require.NoError(t, <-done)
	require.NoError(t, errors.Join(r.Close(), w.Close(), near.Close(), far.Close()))
}

// A writer that takes nothing keeps no Close waiting, and the error of one that fails is its own.
func TestCopyToSilence(t *testing.T) {
	server, client := open(t, paths["UDP"], Config{}), open(t, paths["UDP"], Config{})
	near, far := connect(t, client, server)
	target, end := socketPair(t, "tcp")
	done := make(chan error, 1)
	go func() { _, err := near.WriteTo(target); done <- err }()
	go func() { _, _ = far.Write(make([]byte, 64<<20)) }()
	_, err := io.ReadFull(end, make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, near.Close())
	near.Wait() // nothing uses its memory any more
	require.NoError(t, end.Close())
	require.ErrorIs(t, <-done, net.ErrClosed)
	_ = far.Close()

	near, far = connect(t, client, server)
	target, end = socketPair(t, "tcp")
	require.NoError(t, end.(*net.TCPConn).SetLinger(0))
	require.NoError(t, end.Close())
	go func() { _, _ = io.Copy(far, zeros{}) }()
	_, err = near.WriteTo(target)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	require.Equal(t, "write", op.Op)
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), err)
	require.NoError(t, near.Close())
	_ = far.Close()
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Types that embed a socket may read and write otherwise: their methods are called.
func TestCopyFromEmbedded(t *testing.T) {
	near, far := connect(t, open(t, paths["UDP"], Config{}), open(t, paths["UDP"], Config{}))
	source, _ := socketPair(t, "tcp")
	n, err := near.ReadFrom(wrapped{source.(*net.TCPConn)})
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, errors.Join(near.Close(), far.Close()))
}

// wrapped is a socket at its end.
type wrapped struct{ *net.TCPConn }

func (wrapped) Read([]byte) (int, error) { return 0, io.EOF }
