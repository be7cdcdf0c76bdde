package rsocket_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// peerConfig says how a peer speaks.
type peerConfig struct {
	order    binary.ByteOrder // of the target SGL that it reads; nil: little-endian
	flags    byte             // of its private data, beside the byte order
	credits  int              // zero: 64
	half     int              // bytes of each half of its receive buffer; zero: 16 KiB
	largest  int              // bytes of a message; zero: 64 KiB
	empty    bool             // its first buffer has no bytes, so that it announces both halves later
	garbage  bool             // its empty writes have an address and a key that mean nothing
	alive    bool             // it sends a keepalive message before each data message
	hello    func(b []byte)   // changes its private data
	receives int              // zero: as many as the protocol needs; negative: none
	silent   bool             // it sends nothing by itself
}

// The memory of a peer: its target SGL, entries on their way, send memory, and receive memory.
const (
	peerEntries = 32
	peerSend    = 64
	peerSlot    = 64 << 10
	peerSlots   = 16
	peerReceive = peerSend + peerSlots*peerSlot
)

// peer speaks the protocol by itself, on package rdma, as the C library does: its receive buffer has
// two halves, and it writes messages of up to 64 KiB.
type peer struct {
	peerConfig
	tb     testing.TB
	dev    *faultydevice.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	tasks  *rdma.Pool
	memory *mmap.Map
	key    uint32
	ended  chan error

	mu      sync.Mutex
	changed sync.Cond
	conn    *rdma.Connection
	state   rdma.ConnectionState
	err     error

	theirs    binary.ByteOrder // of the target SGL that the other end reads
	remote    entry            // the other end's target SGL
	sgl       *mmap.Map        // the same
	targets   []entry
	next      int // entry of the own target SGL that comes next
	sent      uint16
	reach     uint16
	got       []byte
	filled    int // bytes of the current half
	half2     bool
	halves    int // announced, not full
	entry     int // entry of the remote target SGL that is written next
	arrived   int
	granted   int
	shutdown  bool // the peer's end has come
	gone      bool // the peer has closed
	keepalive int  // messages that have come
}

type entry struct {
	addr uint64
	key  uint32
	len  uint32
}

func (e entry) put(b []byte, order binary.ByteOrder) {
	order.PutUint64(b, e.addr)
	order.PutUint32(b[8:], e.key)
	order.PutUint32(b[12:], e.len)
}

func entryAt(b []byte, order binary.ByteOrder) entry {
	return entry{order.Uint64(b), order.Uint32(b[8:]), order.Uint32(b[12:])}
}

// The operations of messages, as on the wire.
const (
	opData    = 0
	opSGL     = 4 << 29
	opIomap   = 6 << 29
	opControl = 7 << 29

	disconnect = opControl
	keepalive  = opControl | 1
	shutdown   = opControl | 2
)

// newPeer makes a peer on a device of its own.
func newPeer(tb testing.TB, dev soft.Config, cfg peerConfig) *peer {
	tb.Helper()
	p := &peer{peerConfig: cfg, tb: tb, engine: pe.New(pe.Config{}), ended: make(chan error, 1), next: 1, entry: 1}
	p.changed.L = &p.mu
	p.credits, p.half, p.largest = cmp.Or(cfg.credits, 64), cmp.Or(cfg.half, 16<<10), cmp.Or(cfg.largest, 64<<10)
	p.granted = p.credits
	if p.order == nil {
		p.order = binary.LittleEndian
	}
	var err error
	p.dev, err = faultydevice.Open(dev)
	require.NoError(tb, err)
	if p.garbage {
		p.dev.Set(func(h *faultydevice.Hooks) {
			h.PostSend = func(qp verbs.QP, wrs []verbs.SendWR) (int, error) {
				for i := range wrs {
					if len(wrs[i].SGL) == 0 {
						wrs[i].RemoteAddr, wrs[i].RKey = 0xdead_beef_0000_0000, 0x1234_5678
					}
				}
				return qp.PostSend(wrs)
			}
		})
	}
	p.rdma, err = rdma.New(p.dev, rdma.Config{Engine: p.engine, Name: "peer", SendQueueSize: 64})
	require.NoError(tb, err)
	p.tasks, err = p.rdma.Pool(256, pe.FreeTask, func(t *rdma.Task, _ error) { pe.FreeTask(t) })
	require.NoError(tb, err)
	if p.receives >= 0 {
		require.NoError(tb, p.rdma.Receive(p.credits+8, 0, p.received))
	}
	p.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.state = state
		p.err = cmp.Or(p.err, err)
		p.changed.Broadcast()
	})
	p.memory, err = mmap.Alloc(p.dev, peerReceive+2*p.half, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(tb, err)
	require.NoError(tb, p.rdma.Start())
	p.key, err = p.memory.ExportKey(p.rdma.PD())
	require.NoError(tb, err)
	go func() { p.ended <- p.engine.Run(context.Background()) }()
	require.NoError(tb, await.State(context.Background(), p.rdma, pe.Running))
	tb.Cleanup(p.close)
	return p
}

func (p *peer) close() {
	_ = p.do(p.rdma.Stop)
	require.NoError(p.tb, <-p.ended)
	require.NoError(p.tb, p.engine.Close())
	require.NoError(p.tb, p.memory.Close())
	require.NoError(p.tb, p.dev.Close())
}

// do runs f on the engine's goroutine.
func (p *peer) do(f func() error) error { return await.Func(context.Background(), p.engine, f) }

// own is the entry of a part of the peer's memory.
func (p *peer) own(offset, n int) entry {
	return entry{p.memory.Addr() + uint64(offset), p.key, uint32(n)}
}

// privateData is that of the peer.
func (p *peer) privateData() []byte {
	b := make([]byte, 40)
	b[0], b[1] = 1, p.flags
	if p.order == binary.BigEndian {
		b[1] |= 1
	}
	binary.BigEndian.PutUint16(b[2:], uint16(p.credits))
	sgl := p.own(0, 2)
	sgl.put(b[8:], binary.BigEndian)
	first := p.own(peerReceive, p.half)
	if p.empty {
		first = entry{}
	} else {
		p.halves++
	}
	first.put(b[24:], binary.BigEndian)
	if p.hello != nil {
		p.hello(b)
	}
	return b
}

// meet takes the private data of the other end.
func (p *peer) meet(b []byte) {
	require.GreaterOrEqual(p.tb, len(b), 40)
	require.Equal(p.tb, byte(1), b[0])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reach = binary.BigEndian.Uint16(b[2:])
	p.theirs = binary.ByteOrder(binary.LittleEndian)
	if b[1]&1 != 0 {
		p.theirs = binary.BigEndian
	}
	p.remote = entryAt(b[8:], binary.BigEndian)
	require.Equal(p.tb, uint32(2), p.remote.len)
	if e := entryAt(b[24:], binary.BigEndian); e.len > 0 {
		p.targets = append(p.targets, e)
	}
	var err error
	p.sgl, err = mmap.FromKey(p.dev, p.remote.addr, 32, p.remote.key, mmap.RemoteWrite)
	require.NoError(p.tb, err)
}

// dial connects to a listener.
func (p *peer) dial(addr string) error {
	conn, err := await.Dial(context.Background(), p.rdma, addr, rdma.DialConfig{
		PrivateData: p.privateData(), Once: true,
		OnResponse: func(conn *rdma.Connection) {
			p.meet(conn.AcceptData())
			p.conn = conn
			require.NoError(p.tb, conn.Established())
		},
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn, p.state = conn, rdma.Ready
	return p.begin()
}

// listen accepts one connection. accepted waits for it.
func (p *peer) listen() (addr string, accepted func() error) {
	done := make(chan error, 1)
	require.NoError(p.tb, p.do(func() error {
		l, err := p.rdma.Listen("127.0.0.1:0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
			p.meet(q.PrivateData())
			conn, err := q.Accept(rdma.AcceptConfig{PrivateData: p.privateData()})
			p.conn = conn
			done <- err
		}})
		if err == nil {
			addr = netip.AddrPortFrom(l.Addr().Addr(), l.Addr().Port()).String()
		}
		return err
	}))
	return addr, func() error {
		if err := <-done; err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for p.state == rdma.Connecting || p.state == rdma.Exported {
			p.changed.Wait()
		}
		if p.err != nil {
			return p.err
		}
		return p.begin()
	}
}

// begin announces the second half, or both. p.mu is held.
func (p *peer) begin() error {
	if p.silent {
		return nil
	}
	p.mu.Unlock()
	defer p.mu.Lock()
	return p.do(func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.grant()
		return nil
	})
}

// received handles a message of the other end.
func (p *peer) received(m *rdma.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.changed.Broadcast()
	imm, _ := m.Imm()
	value := int(imm & (1<<29 - 1))
	if m.Opcode() != rdma.ReceivedWriteImm {
		p.tb.Errorf("a %v came", m.Opcode())
		return
	}
	switch imm &^ (1<<29 - 1) {
	case opData:
		if p.silent {
			p.arrived++
			return
		}
		if value != m.Length() || p.shutdown || value > p.half-p.filled || p.halves == 0 || uint16(p.arrived) == uint16(p.granted) {
			p.tb.Errorf("a data message of %d bytes came with %d bytes; %d halves, %d of %d bytes filled, %d arrived, %d granted", value, m.Length(), p.halves, p.filled, p.half, p.arrived, p.granted)
			return
		}
		at := peerReceive + p.filled
		if p.half2 {
			at += p.half
		}
		p.got = append(p.got, p.memory.Bytes()[at:at+value]...)
		p.arrived++
		if p.filled += value; p.filled == p.half {
			p.filled, p.half2 = 0, !p.half2
			p.halves--
		}
		p.grant()
	case opSGL:
		p.reach = uint16(imm)
		if m.Length() == 16 {
			p.targets = append(p.targets, entryAt(p.memory.Bytes()[16*p.next:], p.order))
			p.next = 1 - p.next
		}
		if len(p.targets) > 2 || m.Length() != 0 && m.Length() != 16 {
			p.tb.Errorf("an SGL message of %d bytes came; the targets are %v", m.Length(), p.targets)
		}
	case opControl:
		switch value {
		case 0:
			p.shutdown, p.gone = true, true
		case 1:
			p.keepalive++
		case 2:
			p.shutdown = true
		default:
			p.tb.Errorf("a control message %d came", value)
		}
	default:
		p.tb.Errorf("immediate %#x came", imm)
	}
}

// grant sends SGL messages that are due, on the engine's goroutine. p.mu is held.
func (p *peer) grant() {
	for p.halves < 2 {
		at := peerReceive
		if (p.halves == 1) != p.half2 { // the half that is not announced
			at += p.half
		}
		p.halves++
		e := p.own(at, p.half)
		e.put(p.memory.Bytes()[peerEntries+16*p.entry:], p.theirs)
		p.granted = p.arrived + p.credits
		p.start(p.sgl, peerEntries+16*p.entry, 16*p.entry, 16, opSGL|uint32(uint16(p.arrived))+uint32(p.credits))
		p.entry = 1 - p.entry
	}
	if p.granted-p.arrived <= p.credits/2 {
		p.granted = p.arrived + p.credits
		p.start(nil, 0, 0, 0, opSGL|uint32(uint16(p.arrived))+uint32(p.credits)) // as in C, with a carry
	}
}

// start begins a write of n bytes from the peer's memory to an offset of remote memory, on the
// engine's goroutine.
func (p *peer) start(to *mmap.Map, offset, at, n int, imm uint32) {
	var src, dst *bufinv.Buf
	if to != nil {
		dst = bufinv.Target(to, at, n)
	}
	if n > 0 {
		src = bufinv.Source(p.memory, offset, n)
	}
	t, err := p.tasks.WriteImm(p.conn, src, dst, imm)
	if err = pe.SubmitOrFree(t, err); err != nil {
		p.tb.Logf("write %#x: %v", imm, err)
	}
}

// write writes data with an immediate, and waits for the outcome.
func (p *peer) write(data []byte, addr uint64, key, imm uint32) error {
	if len(data) == 0 {
		return await.WriteImm(context.Background(), p.conn, nil, nil, imm)
	}
	to, err := mmap.FromKey(p.dev, addr, len(data), key, mmap.RemoteWrite)
	if err != nil {
		return err
	}
	defer to.Close()
	copy(p.memory.Bytes()[peerSend:peerReceive], data)
	return await.WriteImm(context.Background(), p.conn, bufinv.Source(p.memory, peerSend, len(data)), bufinv.Target(to, 0, len(data)), imm)
}

// message sends a message without data, and waits for the outcome.
func (p *peer) message(imm uint32) error { return p.write(nil, 0, 0, imm) }

// target takes up to n bytes of the other end's buffer, and credit for a message. If there is none, it
// waits, or returns no bytes.
func (p *peer) target(n int, wait bool) (e entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for (p.sent == p.reach || len(p.targets) == 0) && p.state == rdma.Ready && wait {
		p.changed.Wait()
	}
	if p.sent == p.reach || len(p.targets) == 0 || p.state != rdma.Ready {
		return e
	}
	front := &p.targets[0]
	e = *front
	e.len = min(uint32(n), front.len)
	front.addr += uint64(e.len)
	if front.len -= e.len; front.len == 0 {
		p.targets = slices.Delete(p.targets, 0, 1)
	}
	p.sent++
	return e
}

// send sends data in messages of up to largest bytes.
func (p *peer) send(data []byte) error {
	for len(data) > 0 {
		var list []entry
		n := 0
		for slot := range peerSlots {
			e := p.target(min(len(data)-n, p.largest), slot == 0)
			if e.len == 0 {
				break
			}
			copy(p.memory.Bytes()[peerSend+slot*peerSlot:], data[n:n+int(e.len)])
			list = append(list, e)
			if n += int(e.len); n == len(data) {
				break
			}
		}
		if n == 0 {
			return fmt.Errorf("the connection is %v: %w", p.state, p.err)
		}
		data = data[n:]
		if err := p.sendAll(list); err != nil {
			return err
		}
	}
	return nil
}

// sendAll sends a message to each target, and waits for the last one.
func (p *peer) sendAll(list []entry) error {
	maps := make([]*mmap.Map, len(list))
	for i, e := range list {
		var err error
		if maps[i], err = mmap.FromKey(p.dev, e.addr, int(e.len), e.key, mmap.RemoteWrite); err != nil {
			return err
		}
		defer maps[i].Close()
	}
	last := len(list) - 1
	err := p.do(func() error {
		for i, e := range list {
			if p.alive {
				p.start(nil, 0, 0, 0, keepalive)
			}
			if i < last {
				p.start(maps[i], peerSend+i*peerSlot, 0, int(e.len), e.len)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	n := int(list[last].len)
	return await.WriteImm(context.Background(), p.conn, bufinv.Source(p.memory, peerSend+last*peerSlot, n), bufinv.Target(maps[last], 0, n), uint32(n))
}

// receive waits for n bytes, and returns them.
func (p *peer) receive(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.got) < n && p.state == rdma.Ready {
		p.changed.Wait()
	}
	n = min(n, len(p.got))
	data := bytes.Clone(p.got[:n])
	p.got = append(p.got[:0], p.got[n:]...)
	return data
}

// until waits until f holds.
func (p *peer) until(f func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !f() {
		p.changed.Wait()
	}
}
