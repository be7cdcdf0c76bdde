package proxy

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A client that has ended its requests still gets the answer, and the other way round.
func TestHalfClose(t *testing.T) {
	for _, name := range []string{"client first", "target first"} {
		t.Run(name, func(t *testing.T) {
			j := join(t, 0)
			defer j.stop(nil)
			first, second := j.client, j.target
			if name == "target first" {
				first, second = j.target, j.client
			}
			go func() {
				_, _ = first.Write([]byte("question"))
				_ = first.CloseWrite()
			}()
			got, err := io.ReadAll(second)
			require.NoError(t, err)
			assert.Equal(t, "question", string(got))
			go func() {
				_, _ = second.Write([]byte("a longer answer"))
				_ = second.CloseWrite()
			}()
			got, err = io.ReadAll(first)
			require.NoError(t, err)
			assert.Equal(t, "a longer answer", string(got))
			require.NoError(t, <-j.result)
			j.wantReset(t, false)
			assert.Equal(t, int64(23), j.pair.up.Load()+j.pair.down.Load())
		})
	}
}

// A reset of one side resets the other, and its peer does not see the end of the data.
func TestReset(t *testing.T) {
	for _, name := range []string{"client", "target"} {
		t.Run(name, func(t *testing.T) {
			j := join(t, 0)
			defer j.stop(nil)
			resets, other := j.client, j.target
			if name == "target" {
				resets, other = j.target, j.client
			}
			go func() {
				_, _ = resets.Write([]byte("part"))
				resets.reset()
			}()
			got, err := io.ReadAll(other)
			require.ErrorIs(t, err, errReset)
			assert.Equal(t, "part", string(got))
			err = <-j.result
			require.ErrorIs(t, err, errReset)
			require.ErrorContains(t, err, "read from the "+name)
			j.wantReset(t, true)
		})
	}
}

// A side that does not read stops the other side, and the pair holds no more than its buffers.
func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := join(t, 0)
		taken := 0
		chunk := make([]byte, 1000)
		go func() {
			for {
				n, err := j.client.Write(chunk)
				taken += n
				if err != nil {
					return
				}
			}
		}()
		synctest.Wait() // everything stands still
		assert.Positive(t, taken)
		assert.LessOrEqual(t, taken, largeBuffer)

		_, err := io.ReadFull(j.target, make([]byte, 10<<20))
		require.NoError(t, err)
		synctest.Wait()
		assert.LessOrEqual(t, taken, 10<<20+largeBuffer)
		j.stop(errors.New("the test has ended"))
		<-j.result
		synctest.Wait()
	})
}

// The idle limit counts from the last data of either direction.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := join(t, time.Minute)
		start := time.Now()
		for range 3 {
			time.Sleep(50 * time.Second)
			_, err := j.target.Write([]byte("x"))
			require.NoError(t, err)
			_, err = io.ReadFull(j.client, make([]byte, 1))
			require.NoError(t, err)
		}
		err := <-j.result
		require.ErrorContains(t, err, "no data in either direction for 1m0s")
		assert.Equal(t, 210*time.Second, time.Since(start))
		j.wantReset(t, true)
	})
	synctest.Test(t, func(t *testing.T) { // a side that does not read
		j := join(t, time.Minute)
		go func() { _, _ = j.client.Write([]byte("x")) }()
		require.ErrorContains(t, <-j.result, "no data")
		j.wantReset(t, true)
	})
	synctest.Test(t, func(t *testing.T) { // one direction has ended: the limit is still there
		j := join(t, time.Minute)
		require.NoError(t, j.client.CloseWrite())
		require.ErrorContains(t, <-j.result, "no data")
		j.wantReset(t, true)
	})
	synctest.Test(t, func(t *testing.T) { // no limit
		j := join(t, 0)
		time.Sleep(1000 * time.Hour)
		select {
		case err := <-j.result:
			t.Fatal(err)
		default:
		}
		j.stop(io.ErrNoProgress)
		require.ErrorIs(t, <-j.result, io.ErrNoProgress)
		j.wantReset(t, true)
	})
}

// A side that has ended its data and then closes its connection ends the pair: nobody waits for the
// answer. If the target does so, the client is reset. One that only ended its data gets the answer, however late.
func TestGone(t *testing.T) {
	for _, name := range []string{"client", "target"} {
		synctest.Test(t, func(t *testing.T) {
			j := join(t, 0)
			side, other := j.client, j.target
			if name == "target" {
				side, other = j.target, j.client
			}
			require.NoError(t, side.CloseWrite())
			_, err := other.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			time.Sleep(10 * time.Hour)
			_, err = other.Write([]byte("x"))
			require.NoError(t, err)
			_, err = io.ReadFull(side, make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, side.Close())
			if name == "target" { // the client must not take what it has sent for delivered
				require.ErrorIs(t, <-j.result, errTargetGone)
				j.wantReset(t, true)
				return
			}
			require.NoError(t, <-j.result)
			j.wantReset(t, false) // what it had sent is still being delivered
		})
	}
}

// Clients that give up on a silent target leave their places to others.
func TestGoneClientsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const max = 3
		s := serve(t, limits{max: max, connect: time.Second, grace: time.Second}, nil)
		for range max {
			s.connect()
		}
		var silent []*double
		for range max {
			client, target := s.meet(t)
			silent = append(silent, target)
			require.NoError(t, client.Close())
		}
		s.connect()
		client, target := s.meet(t)
		end(t, client, target)
		s.stop()
		require.NoError(t, <-s.result)
		assert.EqualValues(t, max+1, s.server.accepted)
		for _, target := range silent {
			_, err := io.ReadAll(target)
			require.NoError(t, err)
		}
	})
}

// A server that refuses a request sends the reason, and closes without reading the rest: the
// client gets the reason, and then a reset.
func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := join(t, 0)
		defer j.stop(nil)
		go func() {
			for {
				if _, err := j.client.Write(make([]byte, 1000)); err != nil {
					return
				}
			}
		}()
		_, err := io.ReadFull(j.target, make([]byte, 500))
		require.NoError(t, err)
		_ = j.target.r.Close() // the target reads no more: a write to it fails
		synctest.Wait()
		_, err = j.target.Write([]byte("too large"))
		require.NoError(t, err)
		require.NoError(t, j.target.Close())
		got, _ := io.ReadAll(j.client)
		assert.Equal(t, "too large", string(got))
		err = <-j.result
		require.ErrorContains(t, err, "write to the target")
		j.wantReset(t, true)
	})
}

// What a side that has failed had sent is delivered for a limited time only.
func TestLingering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := join(t, 0)
		defer j.stop(nil)
		start := time.Now()
		go func() { _, _ = j.target.Write([]byte("the client never reads this")) }()
		_ = j.target.r.Close()
		_, err := j.client.Write([]byte("x"))
		require.NoError(t, err)
		require.ErrorContains(t, <-j.result, "write to the target")
		assert.Equal(t, lingering, time.Since(start))
		j.wantReset(t, true)
	})
}

func TestCloseFails(t *testing.T) {
	errClose := errors.New("the data is lost")
	run := func(set func(*joined)) (*joined, error) {
		j := &joined{result: make(chan error, 1)}
		j.client, j.nearClient = connected()
		j.nearTarget, j.target = connected()
		set(j)
		j.pair = newPair(j.nearClient, j.nearTarget, 0)
		j.run(t.Context())
		_ = j.client.CloseWrite()
		_ = j.target.CloseWrite()
		return j, <-j.result
	}
	j, err := run(func(j *joined) { j.nearTarget.closeWrite = errClose })
	require.ErrorIs(t, err, errClose)
	require.ErrorContains(t, err, "end the data to the target")
	j.wantReset(t, true)

	_, err = run(func(j *joined) { j.nearClient.close = errClose })
	require.ErrorIs(t, err, errClose)
	require.ErrorContains(t, err, "close the connection of the client")
}

// tcpPair is a connection of the system.
func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	d, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = c.Close(), d.Close() })
	return c.(*net.TCPConn), d.(*net.TCPConn)
}

// A reset reaches the other side of real connections as such.
func TestResetOverTCP(t *testing.T) {
	for _, of := range []string{"client", "target"} {
		client, nearClient := tcpPair(t)
		nearTarget, target := tcpPair(t)
		resets, other := client, target
		if of == "target" {
			resets, other = target, client
		}
		result := make(chan error)
		go func() { result <- newPair(nearClient, nearTarget, 0).run(t.Context()) }()
		_, err := resets.Write([]byte("part"))
		require.NoError(t, err)
		_, err = io.ReadFull(other, make([]byte, 4))
		require.NoError(t, err)
		reset(resets)
		_, err = other.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.ErrorIs(t, <-result, syscall.ECONNRESET)
	}
}

// Much data both ways at once, in pieces of all sizes.
func TestData(t *testing.T) {
	client, nearClient := tcpPair(t)
	nearTarget, target := tcpPair(t)
	exchange(t, newPair(nearClient, nearTarget, 0), client, target)
}

// exchange runs a pair between two far ends, which send much data to each other at once, in pieces of
// all sizes.
func exchange(t *testing.T, p *pair, client, target stream) {
	t.Helper()
	result := make(chan error)
	go func() { result <- p.run(t.Context()) }()
	up, down := make([]byte, 5<<20+1), make([]byte, 3<<20+7)
	_, _ = rand.Read(up)
	_, _ = rand.Read(down)
	var work sync.WaitGroup
	send := func(c stream, data []byte) {
		for size := 1; len(data) > 0; size = size*5%200_003 + 1 {
			n, err := c.Write(data[:min(size, len(data))])
			if !assert.NoError(t, err) {
				return
			}
			data = data[n:]
		}
		assert.NoError(t, c.CloseWrite())
	}
	take := func(c io.Reader, want []byte) {
		got, err := io.ReadAll(c)
		assert.NoError(t, err)
		assert.True(t, bytes.Equal(want, got))
	}
	work.Go(func() { send(client, up) })
	work.Go(func() { send(target, down) })
	work.Go(func() { take(target, up) })
	work.Go(func() { take(client, down) })
	work.Wait()
	require.NoError(t, <-result)
	assert.EqualValues(t, len(up), p.up.Load())
	assert.EqualValues(t, len(down), p.down.Load())
}
