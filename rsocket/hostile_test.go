package rsocket_test

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
)

// A peer whose private data is wrong gets no connection, and others do.
func TestHostilePrivateData(t *testing.T) {
	for name, row := range map[string]struct {
		change func(b []byte)
		says   string
	}{
		"another version":                 {func(b []byte) { b[0] = 2 }, "version 2"},
		"no program of rsockets":          {func(b []byte) { clear(b) }, "version 0"},
		"no credits":                      {func(b []byte) { b[2], b[3] = 0, 0 }, "no credits"},
		"an SGL of one entry":             {func(b []byte) { b[23] = 1 }, "SGL of 1 entries"},
		"an SGL of three entries":         {func(b []byte) { b[23] = 3 }, "SGL of 3 entries"},
		"an SGL of 4,294,967,295 entries": {func(b []byte) { copy(b[20:], "\xff\xff\xff\xff") }, "SGL of 4294967295 entries"},
		"an SGL at the end of memory":     {func(b []byte) { binary.BigEndian.PutUint64(b[8:], ^uint64(0)-20) }, "SGL at address 0xffffffffffffffeb"},
		"a buffer at the end of memory":   {func(b []byte) { binary.BigEndian.PutUint64(b[24:], ^uint64(0)-20) }, "at address 0xffffffffffffffeb"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, soft.Config{}, rsocket.Config{})
			before := beside(t, s)
			l := listen(t, s)
			require.ErrorContains(t, newPeer(t, soft.Config{}, peerConfig{hello: row.change}).dial(l.Addr().String()), "reject")
			require.Equal(t, uint64(1), s.Counters().Refused)

			p := newPeer(t, soft.Config{}, peerConfig{hello: row.change})
			addr, _ := p.listen()
			_, err := s.Dial(context.Background(), addr)
			require.ErrorIs(t, err, rsocket.ErrProtocol)
			require.ErrorContains(t, err, row.says)

			before.check()
			good := newPeer(t, soft.Config{}, peerConfig{})
			exchange(t, meet(t, s, good, true), good, 1000, 100)
		})
	}
}

// neighbour is a connection that behaves well, while another one does not.
type neighbour struct {
	t         testing.TB
	near, far *rsocket.Conn
}

// beside connects a stack to another one.
func beside(t testing.TB, s *rsocket.Stack) neighbour {
	t.Helper()
	l := listen(t, s)
	near, err := open(t, soft.Config{}, rsocket.Config{}).Dial(context.Background(), l.Addr().String())
	require.NoError(t, err)
	far, err := l.Accept()
	require.NoError(t, err)
	n := neighbour{t, near, far.(*rsocket.Conn)}
	n.check()
	return n
}

// check sends data both ways.
func (n neighbour) check() {
	n.t.Helper()
	data, buf := make([]byte, 20_000), make([]byte, 20_000)
	for i := range data {
		data[i] = byte(i >> 3)
	}
	for _, c := range [][2]*rsocket.Conn{{n.near, n.far}, {n.far, n.near}} {
		_, err := c[0].Write(data)
		require.NoError(n.t, err)
		_, err = io.ReadFull(c[1], buf)
		require.NoError(n.t, err)
		require.Equal(n.t, data, buf)
	}
}

// first is the first receive buffer of the other end.
func (p *peer) first() entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.targets[0]
}

// announce writes an entry to the other end's target SGL.
func (p *peer) announce(index int, e entry, sequence uint16) error {
	b := make([]byte, 16)
	e.put(b, p.theirs)
	return p.write(b, p.remote.addr+uint64(16*index), p.remote.key, opSGL|uint32(sequence))
}

// Messages that the protocol does not allow end their connection, with an error that names what was
// wrong, and no other.
func TestHostileMessages(t *testing.T) {
	refused := func(error) {} // the device refuses the peer's request
	for name, row := range map[string]struct {
		peer   peerConfig
		attack func(t *testing.T, p *peer)
		device bool   // the device refuses it, not the protocol
		says   string // the error of the connection
	}{
		"an answer to no withdraw message": {peer: peerConfig{hello: func(b []byte) { b[4] = 1 }}, attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(opControl|0x5601))
		}, says: "a withdrawn message came, which this end has not asked for"},
		"a withdraw message without the extension": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(opControl|0x5600))
		}, says: "a withdraw message came, which has no meaning"},
		// It has no receives, so that the answer to its first message stays under way.
		"a buffer before the answer to a withdraw message": {peer: peerConfig{receives: -1, credits: 1, hello: func(b []byte) { b[4] = 1 }}, attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(opControl|0x5600))
			require.NoError(t, p.message(opControl|0x5600))
			require.NoError(t, p.announce(1, p.own(peerReceive, 100), 1))
		}, says: "a receive buffer was announced before the withdraw message was answered"},
		"the immediate says more than was written": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.write(make([]byte, 3), p.first().addr, p.first().key, 5))
		}, says: "data message of 5 bytes"},
		"the immediate says less than was written": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.write(make([]byte, 3), p.first().addr, p.first().key, 2))
		}, says: "data message of 2 bytes"},
		"data without bytes": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(7))
		}, says: "data message of 7 bytes"},
		"data that does not fit into the buffer": {attack: func(t *testing.T, p *peer) {
			n := int(p.first().len) + 1
			require.NoError(t, p.write(make([]byte, n), p.first().addr-1, p.first().key, uint32(n)))
		}, says: "room for"},
		"a write behind the end of the buffer": {attack: func(t *testing.T, p *peer) {
			n := int(p.first().len)
			refused(p.write(make([]byte, n), p.first().addr+1, p.first().key, uint32(n)))
		}, device: true},
		"a write with another key": {attack: func(_ *testing.T, p *peer) {
			refused(p.write(make([]byte, 8), p.first().addr, p.first().key^0x100, 8))
		}, device: true},
		"a read": {attack: func(t *testing.T, p *peer) {
			to, err := mmap.FromKey(p.dev, p.first().addr, 8, p.first().key, mmap.RemoteRead)
			require.NoError(t, err)
			defer to.Close()
			refused(await.Read(context.Background(), p.conn, bufinv.Source(to, 0, 8), bufinv.Target(p.memory, peerSend, 8)))
		}, device: true},
		"more data than credits": {peer: peerConfig{receives: -1}, attack: func(t *testing.T, p *peer) {
			e, sent := p.first(), uint64(0)
			for p.write([]byte{1}, e.addr+sent, e.key, 1) == nil {
				sent++
			}
		}, says: "data message of 1 bytes"},
		"data after a shutdown": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(shutdown))
			require.NoError(t, p.write(make([]byte, 4), p.first().addr, p.first().key, 4))
		}, says: "after the end of the data"},
		"data after a disconnect": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(disconnect))
			refused(p.write(make([]byte, 4), p.first().addr, p.first().key, 4))
		}, says: "after the end of the data"},
		"too many credits": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(opSGL|200))
		}, says: "200"},
		"credits in the past": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(opSGL|65535))
		}, says: "65535"},
		"a third buffer": {peer: peerConfig{credits: 1, half: 128 << 10}, attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.announce(1, p.own(peerReceive, 100), 1))
			require.NoError(t, p.announce(0, p.own(peerReceive, 100), 1))
		}, says: "third receive buffer"},
		"a buffer of no bytes": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.announce(1, p.own(peerReceive, 0), 64))
		}, says: "of no bytes"},
		"a buffer at the end of memory": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.announce(1, entry{^uint64(0) - 20, 1, 100}, 64))
		}, says: "0xffffffffffffffeb"},
		"half an entry": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.write(make([]byte, 8), p.remote.addr+16, p.remote.key, opSGL|64))
		}, says: "8 bytes"},
		"a shutdown with data": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.write(make([]byte, 8), p.first().addr, p.first().key, shutdown))
		}, says: "shutdown message"},
		"operation 1": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(1<<29))
		}, says: "reserved operation 1"},
		"operation 2": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(2<<29|5))
		}, says: "reserved operation 2"},
		"operation 3": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(3<<29))
		}, says: "reserved operation 3"},
		"operation 5": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(5<<29|1<<28))
		}, says: "reserved operation 5"},
		"control message 3": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(opControl|3))
		}, says: "control message 3"},
		"an I/O mapping": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.message(opIomap|1))
		}, says: "I/O mapping 1"},
		"a send of no bytes": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, await.Send(context.Background(), p.conn, nil))
		}, says: "only writes with immediate"},
		"a send with an immediate": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, await.SendImm(context.Background(), p.conn, nil, keepalive))
		}, says: "only writes with immediate"},
		"a send with data": {attack: func(t *testing.T, p *peer) {
			refused(await.Send(context.Background(), p.conn, bufinv.Source(p.memory, peerSend, 8)))
		}, device: true},
		"a buffer that is not there": {attack: func(t *testing.T, p *peer) {
			require.NoError(t, p.announce(1, entry{p.memory.Addr(), p.key ^ 0x100, 100}, 64))
		}, device: true},
		"another one while it has data to send": {attack: func(t *testing.T, p *peer) {
			p.until(func() bool { return p.arrived > 0 })
			require.NoError(t, p.message(opControl|9))
		}, says: "control message 9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, soft.Config{}, rsocket.Config{})
			before := beside(t, s)
			row.peer.silent = true
			p := newPeer(t, soft.Config{}, row.peer)
			c := meet(t, s, p, true)
			wrote := make(chan error, 1)
			go func() { // more than the peer takes
				_, err := c.Write(make([]byte, 2<<20))
				wrote <- err
			}()
			row.attack(t, p)
			p.until(func() bool { return p.err != nil })
			_, err := io.Copy(io.Discard, c)
			if err == nil { // the end of the peer's data came first
				_, err = c.Write(make([]byte, 1))
			}
			require.Error(t, <-wrote)
			require.ErrorIs(t, err, map[bool]error{true: syscall.ECONNRESET, false: rsocket.ErrProtocol}[row.device], "%v", err)
			require.ErrorContains(t, err, row.says)
			require.Equal(t, map[bool]uint64{true: 0, false: 1}[row.device], s.Counters().ProtocolErrors)
			require.NoError(t, c.Close())
			before.check()
		})
	}
}

// Peers that do what the protocol allows, but are of no use, hold up nobody else, and closing their
// connections gives everything back.
func TestUselessPeers(t *testing.T) {
	for name, row := range map[string]struct {
		peer   peerConfig
		attack func(t *testing.T, p *peer)
	}{
		"grants nothing":  {attack: func(*testing.T, *peer) {}},
		"has no receives": {peer: peerConfig{receives: -1}, attack: func(*testing.T, *peer) {}},
		"takes credits back": {attack: func(t *testing.T, p *peer) {
			p.until(func() bool { return p.arrived > 0 })
			require.NoError(t, p.message(opSGL|uint32(p.arrived)))
		}},
		"half-closes for ever": {attack: func(t *testing.T, p *peer) {
			for range 1000 {
				require.NoError(t, p.message(shutdown))
			}
		}},
		"sends keepalives": {attack: func(t *testing.T, p *peer) {
			for range 3000 {
				require.NoError(t, p.message(keepalive))
			}
		}},
		"sends grants": {attack: func(t *testing.T, p *peer) {
			for range 3000 {
				require.NoError(t, p.message(opSGL|64))
			}
		}},
		"sends data of no bytes": {attack: func(t *testing.T, p *peer) {
			for range 3000 {
				require.NoError(t, p.message(0))
			}
		}},
		"writes over its own buffers and over the target SGL": {attack: func(t *testing.T, p *peer) {
			e := p.first()
			for range 100 {
				to, err := mmap.FromKey(p.dev, p.remote.addr, 4096, e.key, mmap.RemoteWrite)
				require.NoError(t, err)
				require.NoError(t, await.Write(context.Background(), p.conn, bufinv.Source(p.memory, peerSend, 4096), bufinv.Target(to, 0, 4096)))
				require.NoError(t, to.Close())
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, soft.Config{}, rsocket.Config{Linger: 100 * time.Millisecond})
			before := beside(t, s)
			row.peer.silent = true
			p := newPeer(t, soft.Config{}, row.peer)
			c := meet(t, s, p, true)
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
			wrote := make(chan error, 1)
			go func() { // more than the peer takes
				_, err := c.Write(make([]byte, 2<<20))
				wrote <- err
			}()
			row.attack(t, p)
			before.check()
			require.ErrorIs(t, <-wrote, os.ErrDeadlineExceeded)
			require.NoError(t, c.Close())
			before.check()
		})
	}
}
