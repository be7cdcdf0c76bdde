package rsocket_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
)

// paths are the ways of packets between two software devices of one machine.
var paths = map[string]soft.Config{"shared memory": {}, "UDP": {DisableLocal: true}}

// open makes a stack on a device of its own.
func open(t testing.TB, dev soft.Config, cfg rsocket.Config) *rsocket.Stack {
	t.Helper()
	d, err := soft.Open(dev)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	cfg.Device = d
	s, err := rsocket.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func listen(t testing.TB, s *rsocket.Stack) *rsocket.Listener {
	t.Helper()
	l, err := s.Listen("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// meet connects a peer and a stack, in either direction.
func meet(t testing.TB, s *rsocket.Stack, p *peer, dial bool) *rsocket.Conn {
	t.Helper()
	if dial {
		l := listen(t, s)
		require.NoError(t, p.dial(l.Addr().String()))
		c, err := l.Accept()
		require.NoError(t, err)
		return c.(*rsocket.Conn)
	}
	addr, accepted := p.listen()
	c, err := s.Dial(context.Background(), addr)
	require.NoError(t, err)
	require.NoError(t, accepted())
	return c
}

// exchange sends data both ways at once, ends both directions, and checks what has arrived.
func exchange(t *testing.T, c *rsocket.Conn, p *peer, size, largest int) {
	r := rand.New(rand.NewPCG(1, 2))
	to, fro := make([]byte, size), make([]byte, size)
	for i := range to {
		to[i], fro[i] = byte(r.Uint32()), byte(r.Uint32())
	}
	results := make(chan error, 3)
	go func() {
		results <- errors.Join(p.send(fro), p.message(shutdown))
	}()
	go func() {
		r := rand.New(rand.NewPCG(3, 4))
		for rest := to; len(rest) > 0; {
			n := min(1+r.IntN(largest), len(rest))
			if _, err := c.Write(rest[:n]); err != nil {
				results <- err
				return
			}
			rest = rest[n:]
		}
		results <- c.CloseWrite()
	}()
	var read []byte
	go func() {
		var err error
		read, err = io.ReadAll(c)
		results <- err
	}()
	arrived := p.receive(size)
	for range 3 {
		require.NoError(t, <-results)
	}
	require.True(t, bytes.Equal(to, arrived), "%d bytes arrived at the peer", len(arrived))
	require.True(t, bytes.Equal(fro, read), "%d bytes arrived here", len(read))
	p.until(func() bool { return p.shutdown })
	require.NoError(t, c.Close())
}

// Peers that are not of this package.
func TestForeignPeers(t *testing.T) {
	for name, row := range map[string]struct {
		peer          peerConfig
		size, largest int // bytes each way, and of one call of Write
		messages      int // that arrive at the peer, at least
	}{
		"little-endian":                {size: 1 << 20, largest: 100_000},
		"big-endian":                   {peer: peerConfig{order: binary.BigEndian}, size: 1 << 20, largest: 100_000},
		"as librdmacm":                 {peer: peerConfig{credits: 384, half: 64 << 10, flags: 2}, size: 1 << 20, largest: 1 << 20},
		"bytes":                        {peer: peerConfig{largest: 1}, size: 1000, largest: 1},
		"few credits":                  {peer: peerConfig{credits: 1}, size: 20_000, largest: 500},
		"many credits":                 {peer: peerConfig{credits: 4000}, size: 1 << 20, largest: 5000},
		"small buffers":                {peer: peerConfig{half: 1}, size: 2000, largest: 10},
		"large buffers":                {peer: peerConfig{half: 4 << 20}, size: 9 << 20, largest: 1 << 20},
		"the first buffer is empty":    {peer: peerConfig{empty: true}, size: 1 << 20, largest: 100_000},
		"meaningless addresses":        {peer: peerConfig{garbage: true, credits: 8}, size: 200_000, largest: 3000},
		"keepalives":                   {peer: peerConfig{alive: true, largest: 1000}, size: 1 << 20, largest: 1000},
		"unknown flags":                {peer: peerConfig{flags: 0xfe}, size: 1000, largest: 1000},
		"sequence numbers wrap":        {peer: peerConfig{half: 16, largest: 16, credits: 384}, size: 16 * 70_000, largest: 1000, messages: 65_537},
		"sequence numbers wrap, large": {peer: peerConfig{half: 16, largest: 16, credits: 1000, order: binary.BigEndian}, size: 16 * 70_000, largest: 1000, messages: 65_537},
	} {
		for path, dev := range paths {
			for _, dial := range []bool{true, false} {
				if row.messages > 0 && (dial || path == "UDP" || testing.Short()) { // it takes long
					continue
				}
				t.Run(name+", "+path+map[bool]string{true: ", dials", false: ", listens"}[dial], func(t *testing.T) {
					t.Parallel()
					s := open(t, dev, rsocket.Config{})
					p := newPeer(t, dev, row.peer)
					exchange(t, meet(t, s, p, dial), p, row.size, row.largest)
					require.GreaterOrEqual(t, p.arrived, row.messages)
				})
			}
		}
	}
}
