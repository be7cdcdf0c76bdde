package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// Ends of a process: one of an idle connection, one of a busy one. Those of the left process
// come first, and are the active ends.
const (
	idle = iota
	busy
)

// Offsets in the memory of an end.
const (
	block    = 20_000
	blockAt  = 0         // the peer writes here
	guardAt  = 32 << 10  // must not change
	guardLen = 32 << 10  //
	sourceAt = 64 << 10  // data to write
	backAt   = 96 << 10  // data read back
	wordAt   = 128 << 10 // the peer adds to it
	memory   = wordAt + 8
	everyone = mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic
)

// guardByte fills the guarded memory.
const guardByte = 0x5a

// victim is one of the two attacked processes.
type victim struct {
	*pipePeer
	row       *attackCase
	side      int
	ctx       context.Context
	ends      [2]*victimEnd
	targets   []*targetQP
	manyConns *rdma.Connections
	extra     *soft.Device
	closing   atomic.Bool
}

// victimEnd is an end of a connection, on a device of its own.
type victimEnd struct {
	v      *victim
	index  int
	dev    *soft.Device
	engine *pe.Engine
	ctx    rdma.Context
	// rdma or datagrams is the context too, and conn or peer the destination of operations. The
	// others are nil.
	rdma      *rdma.Connections
	datagrams *rdma.Datagrams
	conn      *rdma.Connection
	peer      *rdma.Peer
	mem       *mmap.Map
	remote    *mmap.Map
	recv      *await.Receiver
	tracker   *tracker
	decoy     *net.UDPConn
	secret    []byte
	from      rdma.EndpointAddr // address of the peer's endpoint
	ops       atomic.Int64
	messages  atomic.Int64
}

func runVictim(p *pipePeer) error {
	m, err := p.receive()
	if err != nil {
		return err
	}
	v := &victim{pipePeer: p, row: attackCaseOf(m.Attack), side: m.Side}
	shared, err := openPage(os.NewFile(3, "page"))
	if err != nil {
		return err
	}
	var cancel context.CancelFunc
	v.ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	reply := message{Kind: "begin"}
	for i := range v.ends {
		e := &victimEnd{v: v, index: i, tracker: &tracker{slot: shared.slot(2*m.Side + i)}, secret: m.Data[i]}
		v.ends[i] = e
		var addr netip.AddrPort
		if m.Addresses != nil {
			addr = m.Addresses[i]
		}
		info, err := e.open(addr)
		if err != nil {
			return err
		}
		reply.Ends = append(reply.Ends, info)
	}
	if err := p.send(reply); err != nil {
		return err
	}
	for {
		if m, err = p.receive(); err != nil {
			v.closing.Store(true)
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		answer, err := v.handle(&m)
		if err != nil {
			answer.Text = err.Error()
		}
		answer.Kind = m.Kind
		if err := p.send(answer); err != nil {
			return err
		}
	}
}

// handle handles a request of the test.
func (v *victim) handle(m *message) (answer message, err error) {
	switch m.Kind {
	case "connect":
		for i, e := range v.ends {
			if err := e.connect(&m.Ends[i]); err != nil {
				return answer, err
			}
		}
	case "work":
		for _, e := range v.ends {
			e.startWork()
		}
	case "report":
		for _, t := range v.targets {
			if !t.intact() {
				v.harm(injected, "memory was changed without its key")
			}
		}
		answer.Counters = map[string]uint64{}
		for i, e := range v.ends {
			answer.Ops[i] = e.ops.Load()
			counters, err := e.dev.Counters()
			if err != nil {
				return answer, err
			}
			for _, c := range counters {
				answer.Counters[c.Name] += c.Value
			}
		}
	case "probe": // does the idle connection work?
		ctx, cancel := context.WithTimeout(v.ctx, hangTimeout/4)
		defer cancel()
		err = v.ends[idle].exchange(ctx)
	case "heard":
		answer.Ops[idle] = v.ends[idle].messages.Load()
	case "dial", "newcomer": // are new peers served?
		err = v.dial(m, m.Ends[idle].Addr.Port())
	case "lookup": // the same, if they have to find the device first
		if err := v.dial(m, 0); err != nil {
			v.harm(refused, "a newcomer of this machine is not served: %v", err)
		}
	case "target":
		answer.Target, err = v.openTarget(m)
	case "peers":
		answer.Data, err = v.peers(m.Data)
	case "device": // open another
		if v.extra, err = soft.Open(soft.Config{}); err == nil {
			var gids []verbs.GIDEntry
			gids, err = v.extra.GIDs(1)
			if err == nil {
				answer.Addresses = addrs(netip.AddrPortFrom(gids[0].GID.Addr(), gids[0].UDPPort))
			}
		}
	case "close": // that device
		closed := make(chan error, 1)
		go func() { closed <- v.extra.Close() }()
		select {
		case err = <-closed:
		case <-time.After(hangTimeout / 2):
			v.harm(hung, "a device does not close")
		}
	case "descriptor":
		err = v.take(m.Data[0])
	}
	return answer, err
}

// harm reports a harm to the test.
func (v *victim) harm(h harm, format string, args ...any) {
	if !v.closing.Load() {
		_ = v.send(message{Kind: "harm", Harm: h, Text: fmt.Sprintf(format, args...)})
	}
}

func (e *victimEnd) String() string {
	return [...]string{"left", "right"}[e.v.side] + [...]string{" idle", " busy"}[e.index] + " end"
}

// open makes the objects that do not depend on the peer.
func (e *victimEnd) open(addr netip.AddrPort) (info endInfo, err error) {
	cfg := soft.Config{Address: addr}
	if e.v.row.connectBy != byMemory && !(e.v.row.connectBy == byHalfMemory && e.v.side == 1) {
		cfg.Capture = e.tracker
	}
	if e.dev, err = soft.Open(cfg); err != nil {
		return info, err
	}
	e.engine = pe.New(pe.Config{})
	mtu := verbs.MTU(0)
	if e.v.row.connectBy.datagrams() {
		e.datagrams, err = rdma.NewDatagrams(e.dev, rdma.DatagramsConfig{Engine: e.engine, Transport: e.v.row.connectBy.transport(), Name: e.String()})
		if err != nil {
			return info, err
		}
		e.ctx, mtu = e.datagrams, e.datagrams.Config().Path.MTU
	} else {
		e.rdma, err = rdma.New(e.dev, rdma.Config{Engine: e.engine, Permissions: everyone, Name: e.String(), MaxConnections: 4})
		if err != nil {
			return info, err
		}
		e.ctx, mtu = e.rdma, e.rdma.Config().Path.MTU
		e.rdma.OnConnection(e.onStateChange)
	}
	if e.mem, err = mmap.Alloc(e.dev, memory, everyone); err != nil {
		return info, err
	}
	guard := e.mem.Bytes()[guardAt:][:guardLen]
	copy(guard, bytes.Repeat([]byte{guardByte}, guardLen))
	if e.recv, err = await.NewReceiver(e.ctx, 16, 4096); err != nil {
		return info, err
	}
	go func() { _ = await.Run(e.v.ctx, e.engine) }()
	if err := await.Start(e.v.ctx, e.ctx); err != nil {
		return info, err
	}
	gid := e.ctx.GID()
	info.Addr = netip.AddrPortFrom(gid.GID.Addr(), gid.UDPPort)
	if e.decoy, err = bind(netip.AddrPortFrom(info.Addr.Addr(), 0)); err != nil {
		return info, err
	}
	_ = e.decoy.SetReadBuffer(1) // it fills up at once, and the kernel drops the rest
	info.Decoy = localAddr(e.decoy)
	info.Guard, info.Secret = e.mem.Addr()+guardAt, e.secret
	if info.RKey, err = e.mem.ExportKey(e.ctx.PD()); err != nil {
		return info, err
	}
	own := gid.GID.Addr()
	e.tracker.mtu.Store(uint32(mtu))
	e.tracker.own.Store(&own)
	if info.Map, err = e.mem.Export(e.dev); err != nil {
		return info, err
	}
	err = await.Func(e.v.ctx, e.engine, func() error { return e.export(&info) })
	return info, err
}

// export fills in what the peer needs to connect.
func (e *victimEnd) export(info *endInfo) (err error) {
	switch e.v.row.connectBy {
	case byDescriptor, byMemory, byHalfMemory:
		if e.conn, info.Conn, err = e.rdma.Export(); err == nil {
			info.QPN = e.conn.QPN()
		}
	case byAddress:
		if e.v.side == 1 {
			l, err := e.rdma.Listen(":0", rdma.ListenConfig{})
			if err != nil {
				return err
			}
			info.Listener = l.Addr().Port()
		}
	default:
		info.Conn, err = e.datagrams.ExportEndpoint()
		if at, addrErr := e.datagrams.EndpointAddr(); addrErr == nil {
			info.QPN = at.QPN
		}
	}
	return err
}

// connect connects to the peer, and waits for it.
func (e *victimEnd) connect(info *endInfo) (err error) {
	if e.remote, err = mmap.Import(e.dev, info.Map); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.v.ctx, hangTimeout)
	defer cancel()
	if e.v.row.connectBy == byAddress && e.v.side == 0 {
		e.conn, err = await.Dial(ctx, e.rdma, netip.AddrPortFrom(info.Addr.Addr(), info.Listener).String(), rdma.DialConfig{UDPPort: info.Addr.Port()})
	} else {
		err = await.Func(ctx, e.engine, func() error {
			switch e.v.row.connectBy {
			case byDescriptor, byMemory, byHalfMemory:
				return e.conn.Connect(info.Conn)
			case byAddress:
				return nil
			}
			p, err := e.datagrams.NewPeer(info.Conn)
			if err == nil {
				e.peer, e.from = p, p.Addr()
			}
			return err
		})
	}
	if err != nil || e.v.row.connectBy.datagrams() {
		return err
	}
	for { // until it is Ready
		ready := false
		err := await.Func(ctx, e.engine, func() error {
			if e.conn == nil && len(e.rdma.List()) > 0 {
				e.conn = e.rdma.List()[0]
			}
			ready = e.conn != nil && e.conn.State() == rdma.Ready && (e.v.row.connectBy != byMemory || e.conn.Counters().Path == verbs.PathSharedMemory)
			return nil
		})
		if err != nil {
			return err
		}
		if ready {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if e.v.row.connectBy == byMemory {
		attr, err := e.conn.QP().Query()
		if err != nil {
			return err
		}
		e.tracker.set(slotQPN, attr.DestQPN)
		e.tracker.set(slotPort, uint32(e.conn.LocalAddr().Port()))
		e.tracker.set(slotNext, attr.SQPSN)
	}
	return nil
}

func (e *victimEnd) onStateChange(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	if (state == rdma.Failed || state == rdma.Closed) && conn == e.conn {
		e.v.harm(ended, "the connection of the %v is %v: %v", e, state, err)
	}
}

// startWork starts the end's operations and checks.
func (e *victimEnd) startWork() {
	go e.listen()
	go e.watch()
	if e.v.side == 0 && (e.index == busy || e.v.row.connectBy.datagrams()) {
		go func() {
			for e.v.ctx.Err() == nil {
				if err := e.exchange(e.v.ctx); err != nil {
					e.v.harm(ended, "the %v: %v", e, err)
					return
				}
				if e.index == idle {
					time.Sleep(100 * time.Millisecond)
				}
			}
		}()
	}
}

// exchange writes to the peer's memory, reads it back, adds and sends, and checks the
// results.
func (e *victimEnd) exchange(ctx context.Context) error {
	if e.peer != nil {
		return exchangeWith(ctx, e, e.peer)
	}
	return exchangeWith(ctx, e, e.conn)
}

func exchangeWith[T await.Remote](ctx context.Context, e *victimEnd, to T) error {
	n := uint64(e.ops.Load())
	m := e.mem.Bytes()
	source, back := m[sourceAt:][:block], m[backAt:][:block]
	if e.v.row.connectBy != byUD {
		for i := 0; i < block; i += 8 {
			binary.LittleEndian.PutUint64(source[i:], n*31+uint64(i))
		}
		if err := await.Write(ctx, to, bufinv.Source(e.mem, sourceAt, block), bufinv.Target(e.remote, blockAt, block)); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if err := await.Read(ctx, to, bufinv.Source(e.remote, blockAt, block), bufinv.Target(e.mem, backAt, block)); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if !bytes.Equal(source, back) {
			e.v.harm(injected, "the %v read other data than it wrote", e)
		}
	}
	if !e.v.row.connectBy.datagrams() {
		old, err := await.FetchAdd(ctx, e.conn, bufinv.Target(e.remote, wordAt, 8), 1)
		if err != nil {
			return fmt.Errorf("fetch and add: %w", err)
		}
		if old != n {
			e.v.harm(injected, "the %v found %d in a word to which it has added %d times", e, old, n)
		}
	}
	binary.BigEndian.PutUint64(source, n)
	copy(source[8:], e.secret)
	if err := await.Send(ctx, to, bufinv.Source(e.mem, sourceAt, 8+len(e.secret))); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	e.ops.Add(1)
	return nil
}

// listen checks the messages of the peer.
func (e *victimEnd) listen() {
	for m, err := range e.recv.Messages(e.v.ctx) {
		if err != nil {
			if e.v.ctx.Err() == nil {
				e.v.harm(ended, "the %v receives: %v", e, err)
			}
			if m == nil {
				return
			}
			continue
		}
		if e.v.row.connectBy.datagrams() && (m.Peer() == nil || m.Peer().Addr() != e.from) {
			continue // not the peer, but any host may send datagrams
		}
		b := m.Bytes()
		n := e.messages.Load()
		switch {
		case e.v.side == 0 || len(b) != 8+len(e.secret) || !bytes.Equal(b[8:], e.secret):
			e.v.harm(injected, "the %v got a message that its peer has not sent: %.40q", e, b)
		case !e.v.row.connectBy.datagrams() && binary.BigEndian.Uint64(b) != uint64(n):
			e.v.harm(injected, "the %v got message %d, and not %d", e, binary.BigEndian.Uint64(b), n)
		}
		e.messages.Add(1)
	}
}

// watch checks memory that must not change.
func (e *victimEnd) watch() {
	guard := e.mem.Bytes()[guardAt:][:guardLen]
	for e.v.ctx.Err() == nil {
		for i := 0; i < guardLen; i += 8 {
			if w := atomic.LoadUint64(wordOf(guard[i:])); w != 0x0101010101010101*guardByte {
				e.v.harm(injected, "memory of the %v was changed at %d: %#x", e, i, w)
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}
