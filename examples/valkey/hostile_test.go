package valkey

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
)

// peer speaks the protocol by itself, message by message.
type peer struct {
	t      *testing.T
	rdma   *rdma.Connections
	ready  chan *rdma.Connection
	conn   *rdma.Connection
	memory *mmap.Map // half to write from, half for the other end to write to
	key    uint32
	// What came of the other end: commands by opcode, immediate data of writes, and its end.
	commands [opcodes]chan command
	written  chan int
	ended    chan error
}

const half = 256 << 10 // of a peer's memory

func newPeer(t *testing.T) *peer {
	t.Helper()
	dev, err := soft.Open(soft.Config{DisableLocal: true})
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	p := &peer{t: t, ready: make(chan *rdma.Connection, 1), written: make(chan int, 100), ended: make(chan error, 10)}
	for i := range p.commands {
		p.commands[i] = make(chan command, 100)
	}
	p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine})
	require.NoError(t, err)
	p.memory, err = mmap.Alloc(dev, 2*half, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(t, err)
	p.key, err = p.memory.ExportKey(p.rdma.PD())
	require.NoError(t, err)
	require.NoError(t, p.rdma.Receive(64, 64, func(m *rdma.Message) {
		if imm, ok := m.Imm(); ok {
			p.written <- int(imm)
		} else if c, err := decode(m.Bytes()); err == nil {
			p.commands[c.opcode] <- c
		}
	}))
	p.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Ready:
			p.ready <- conn
		case rdma.Failed, rdma.Closed:
			p.ended <- err
			_ = conn.Close()
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = await.Run(ctx, engine)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		require.NoError(t, engine.Close())
		require.NoError(t, p.memory.Close())
		require.NoError(t, dev.Close())
	})
	require.NoError(t, await.Start(ctx, p.rdma))
	return p
}

// meet connects the peer to a stack, of which it is the client or the server.
func (p *peer) meet(s *Stack, client bool) net.Conn {
	p.t.Helper()
	if client {
		l := listen(p.t, s)
		_, err := await.Dial(p.t.Context(), p.rdma, l.Addr().String(), rdma.DialConfig{})
		require.NoError(p.t, err)
		c, err := l.Accept()
		require.NoError(p.t, err)
		p.conn = <-p.ready
		return c
	}
	var addr string
	require.NoError(p.t, await.Func(p.t.Context(), p.rdma.Engine(), func() error {
		l, err := p.rdma.Listen("127.0.0.1:0", rdma.ListenConfig{})
		if err == nil {
			addr = l.Addr().String()
		}
		return err
	}))
	c, err := s.DialContext(p.t.Context(), "tcp", addr)
	require.NoError(p.t, err)
	p.conn = <-p.ready
	return c
}

// next is the next command of the opcode.
func (p *peer) next(opcode uint16) command { return <-p.commands[opcode] }

// take waits until n bytes have been written to the peer's memory.
func (p *peer) take(n int) {
	for n > 0 {
		n -= <-p.written
	}
}

// send sends a message. The other end may have closed the connection already.
func (p *peer) send(b []byte) {
	copy(p.memory.Bytes(), b)
	_ = await.Send(p.t.Context(), p.conn, bufinv.Source(p.memory, 0, len(b)))
}

func (p *peer) command(m command) {
	b := make([]byte, commandSize)
	m.encode(b)
	p.send(b)
}

// own is the command that registers the peer's memory.
func (p *peer) own() command {
	return command{opcode: opRegisterXferMemory, addr: p.memory.Addr() + half, length: half, key: p.key}
}

// write writes n bytes at an offset of the memory that the other end has registered.
func (p *peer) write(to command, off, n int, imm uint32) {
	m, err := mmap.FromKey(p.rdma.Device(), to.addr, off+n+1, to.key, mmap.RemoteWrite)
	require.NoError(p.t, err)
	src, dst := bufinv.Source(p.memory, 0, n), bufinv.Target(m, off, n)
	if n == 0 {
		src, dst = nil, nil
	}
	_ = await.WriteImm(p.t.Context(), p.conn, src, dst, imm)
	_ = m.Close()
}

// A peer that speaks the protocol message by message is understood: writes without immediate data count
// in the next one, features are answered, and full memory is registered again.
func TestPeer(t *testing.T) {
	for name, client := range map[string]bool{"client": true, "server": false} {
		t.Run(name, func(t *testing.T) {
			s := open(t, soft.Config{}, Config{ReceiveBuffer: 10})
			p := newPeer(t)
			c := p.meet(s, client)
			if client {
				for range 3 {
					p.command(command{opcode: opGetServerFeature, selector: 7, features: 9})
					require.Equal(t, command{opcode: opGetServerFeature, selector: 7}, p.next(opGetServerFeature))
				}
				p.command(command{opcode: opSetClientFeature, selector: 7})
			} else {
				p.command(command{opcode: opGetServerFeature, features: 0xff})
				require.Equal(t, command{opcode: opSetClientFeature}, p.next(opSetClientFeature))
			}
			p.command(command{opcode: opKeepalive})
			p.command(p.own())
			for i := range 3 {
				at := p.next(opRegisterXferMemory)
				copy(p.memory.Bytes(), "abcdefghij")
				m, err := mmap.FromKey(p.rdma.Device(), at.addr, int(at.length), at.key, mmap.RemoteWrite)
				require.NoError(t, err)
				require.NoError(t, await.Write(t.Context(), p.conn, bufinv.Source(p.memory, 0, 4), bufinv.Target(m, 0, 4)))
				require.NoError(t, await.WriteImm(t.Context(), p.conn, bufinv.Source(p.memory, 4, 6), bufinv.Target(m, 4, 6), 10))
				require.NoError(t, m.Close())
				got := make([]byte, 10)
				_, err = io.ReadFull(c, got)
				require.NoError(t, err)
				require.Equal(t, "abcdefghij", string(got))

				_, err = c.Write(make([]byte, half))
				require.NoError(t, err)
				p.take(half)
				if i < 2 {
					p.command(p.own())
				}
			}
			require.Empty(t, s.Counters().Violations)
		})
	}
}

// Each rule that a peer breaks ends its connection, with an error that names the rule, and is counted. Other
// connections go on.
func TestHostile(t *testing.T) {
	type attack struct {
		name   string
		rule   Rule
		server bool // the peer is the server
		do     func(p *peer, at command, c net.Conn)
	}
	raw := func(size int) func(*peer, command, net.Conn) {
		return func(p *peer, _ command, _ net.Conn) { p.send(make([]byte, size)) }
	}
	say := func(m command) func(*peer, command, net.Conn) {
		return func(p *peer, _ command, _ net.Conn) { p.command(m) }
	}
	register := func(change func(m *command)) func(*peer, command, net.Conn) {
		return func(p *peer, _ command, c net.Conn) {
			m := p.own()
			change(&m)
			p.command(m)
			_, _ = c.Write([]byte("hello"))
		}
	}
	write := func(off, n int, imm uint32) func(*peer, command, net.Conn) {
		return func(p *peer, at command, _ net.Conn) { p.write(at, off, n, imm) }
	}
	for _, a := range []attack{
		{"a short command", RuleCommandSize, false, raw(31)},
		{"an empty command", RuleCommandSize, false, func(p *peer, _ command, _ net.Conn) { _ = await.Send(p.t.Context(), p.conn, nil) }},
		{"a long command", RuleCommandSize, false, raw(33)},
		{"a command with immediate data", RuleMessage, false, func(p *peer, _ command, _ net.Conn) {
			_ = await.SendImm(p.t.Context(), p.conn, bufinv.Source(p.memory, 0, commandSize), 1)
		}},
		{"an unknown opcode", RuleOpcode, false, say(command{opcode: 4})},
		{"an answer without a question", RuleRole, true, func(p *peer, _ command, _ net.Conn) {
			p.command(command{opcode: opGetServerFeature})
			p.command(command{opcode: opGetServerFeature})
		}},
		{"a server that sets features", RuleRole, true, say(command{opcode: opSetClientFeature})},
		{"a feature that was not offered", RuleFeatures, false, say(command{opcode: opSetClientFeature, features: 1 << 63})},
		{"memory of no bytes", RuleMemory, false, register(func(m *command) { m.length = 0 })},
		{"memory without an address", RuleMemory, false, register(func(m *command) { m.addr = 0 })},
		{"memory beyond all addresses", RuleMemory, true, register(func(m *command) { m.addr = ^uint64(half) + 2 })},
		{"memory registered again before it is full", RuleRegister, false, func(p *peer, _ command, _ net.Conn) {
			p.command(p.own())
			p.command(p.own())
		}},
		{"memory registered again when a byte of it is free", RuleRegister, true, func(p *peer, _ command, c net.Conn) {
			p.command(p.own())
			_, err := c.Write(make([]byte, half-1))
			require.NoError(p.t, err)
			p.take(half - 1)
			p.command(p.own())
		}},
		{"a wrong key", RuleKey, false, register(func(m *command) { m.key ^= 0x100 })},
		{"memory that is not the peer's", RuleKey, true, register(func(m *command) { m.addr += 2 * half })},
		{"memory that the peer has taken back", RuleKey, false, func(p *peer, _ command, c net.Conn) {
			m, err := mmap.Alloc(p.rdma.Device(), half, mmap.LocalReadWrite|mmap.RemoteWrite)
			require.NoError(p.t, err)
			key, err := m.ExportKey(p.rdma.PD())
			require.NoError(p.t, err)
			p.command(command{opcode: opRegisterXferMemory, addr: m.Addr(), length: half, key: key})
			_, err = c.Write([]byte("hello"))
			require.NoError(p.t, err)
			p.take(5)
			require.NoError(p.t, m.Close())
			_, _ = c.Write([]byte("hello"))
		}},
		{"no data", RuleLength, false, write(0, 0, 0)},
		{"more data than is written", RuleLength, false, write(0, 5, 4)},
		{"more data than there is room for", RuleLength, false, write(0, 100, 1001)},
		{"data of 4 GiB", RuleLength, true, write(0, 100, 0xffffffff)},
		{"more data before it was read", RuleLength, false, func(p *peer, at command, _ net.Conn) {
			p.write(at, 0, 999, 999)
			p.write(at, 0, 2, 2)
		}},
		{"data beyond the memory", RuleAccess, false, write(950, 51, 51)},
		{"data with a wrong key", RuleAccess, true, func(p *peer, at command, _ net.Conn) {
			at.key ^= 0x100
			p.write(at, 0, 5, 5)
		}},
		{"a read", RuleAccess, false, func(p *peer, at command, _ net.Conn) {
			m, err := mmap.FromKey(p.rdma.Device(), at.addr, int(at.length), at.key, mmap.RemoteRead)
			require.NoError(p.t, err)
			_ = await.Read(p.t.Context(), p.conn, bufinv.Source(m, 0, 10), bufinv.Target(p.memory, 0, 10))
			_ = m.Close()
		}},
		{"an atomic", RuleAccess, true, func(p *peer, at command, _ net.Conn) {
			m, err := mmap.FromKey(p.rdma.Device(), at.addr, int(at.length), at.key, mmap.RemoteAtomic)
			require.NoError(p.t, err)
			_, _ = await.FetchAdd(p.t.Context(), p.conn, bufinv.Target(m, 0, 8), 1)
			_ = m.Close()
		}},
		{"data beyond the memory that is not announced", RuleAccess, true, func(p *peer, at command, _ net.Conn) {
			m, err := mmap.FromKey(p.rdma.Device(), at.addr, int(at.length)+1, at.key, mmap.RemoteWrite)
			require.NoError(p.t, err)
			_ = await.Write(p.t.Context(), p.conn, bufinv.Source(p.memory, 0, 1), bufinv.Target(m, int(at.length), 1))
			_ = m.Close()
		}},
	} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, soft.Config{}, Config{ReceiveBuffer: 1000})
			near, far := connect(t, open(t, soft.Config{}, Config{}), s)
			p := newPeer(t)
			c := p.meet(s, !a.server)
			a.do(p, p.next(opRegisterXferMemory), c)

			_, err := io.Copy(io.Discard, c)
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.ErrorIs(t, err, a.rule)
			require.ErrorContains(t, err, string(a.rule))
			_, err = c.Write([]byte("x"))
			require.ErrorIs(t, err, ErrProtocol)
			require.Equal(t, map[Rule]uint64{a.rule: 1}, s.Counters().Violations)
			<-p.ended
			_, err = near.Write([]byte("hello"))
			require.NoError(t, err)
			_, err = io.ReadFull(far, make([]byte, 5))
			require.NoError(t, err)
		})
	}
}

// Decode takes what encode makes, and nothing else panics.
func FuzzDecode(f *testing.F) {
	for opcode := range uint16(opcodes + 1) {
		b := make([]byte, commandSize)
		command{opcode: opcode, selector: 1, features: 2, addr: 3, length: 4, key: 5}.encode(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		again := make([]byte, commandSize)
		m.encode(again)
		same, err := decode(again)
		require.NoError(t, err)
		require.Equal(t, m, same)
	})
}
