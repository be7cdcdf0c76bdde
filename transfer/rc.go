package transfer

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
)

// transport is how a device of the agent reaches those of others. Its methods belong to the engine's goroutine.
type transport interface {
	rdma.Context // of the items
	listen(addr string) (Addr, error)
	// dial begins to connect. What becomes of it goes to path.accepted and path.changed.
	dial(p *path, who request, timeout time.Duration) (link, error)
	// task makes what gives a piece to the device.
	task(pc *piece) (*rdma.Task, error)
	metrics.Source
	// sender says who has sent a note, which RC counts; false if it is no note of a connected agent. The agent's lock
	// is held.
	sender(t *rdma.ReceiveTask, isNote bool) (from Addr, epoch uint64, ok bool)
}

// link is a connection to the device of another agent, as each end has it.
type link interface {
	DialError() error
	// Close ends it. Later, path.changed or incoming.down is called.
	Close() error
	String() string
}

// call is the request of another agent for a link. Its functions are for the engine's goroutine.
type call struct {
	who    request
	from   netip.Addr
	accept func(in *incoming) (link, error)
	reject func(why []byte)
}

// rc reaches devices by reliable connections.
type rc struct {
	*rdma.Connections
	dev   *localDevice
	tasks *rdma.Pool
}

func openRC(d *localDevice) (_ transport, err error) {
	c, t := &d.agent.cfg, &rc{dev: d}
	t.Connections, err = rdma.New(d.device, rdma.Config{
		Name: "transfer", Engine: d.engine, MaxConnections: c.MaxConnections, SendQueueSize: c.Depth + 4,
		Permissions: mmap.RemoteRead | mmap.RemoteAtomic, ConnectTimeout: c.DialTimeout, SilenceTimeout: c.SilenceTimeout,
	})
	if err != nil {
		return nil, err
	}
	t.OnConnection(t.changed)
	t.tasks, err = t.Pool(poolSize, func(t *rdma.Task) { d.ended(t, nil) }, d.ended)
	return t, err
}

func (t *rc) listen(addr string) (Addr, error) {
	listener, err := t.Listen(addr, rdma.ListenConfig{OnRequest: t.requested})
	if err != nil {
		return Addr{}, err
	}
	at := listener.Addr()
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(t.GID().GID.Addr(), at.Port())
	}
	return Addr{AddrPort: at}, nil
}

func (t *rc) requested(q *rdma.ConnectRequest) {
	c := &call{from: q.RemoteAddr().Addr()}
	c.accept = func(in *incoming) (link, error) { return t.accept(q, in) }
	c.reject = func(why []byte) { _ = q.Reject(why) } // fails if the peer has given up
	if err := decode(q.PrivateData(), &c.who); err != nil {
		t.dev.agent.refuse()
		c.reject([]byte(err.Error()))
		return
	}
	t.dev.requested(c)
}

func (t *rc) accept(q *rdma.ConnectRequest, in *incoming) (link, error) {
	acc := t.dev.acceptance()
	if in.known {
		acc.Known, acc.Notes = 1, in.notes
	}
	conn, err := q.Accept(rdma.AcceptConfig{PrivateData: encode(acc.rcAcceptance)})
	if err != nil {
		return nil, err
	}
	conn.SetUserData(in)
	return conn, nil
}

func (t *rc) dial(p *path, who request, timeout time.Duration) (link, error) {
	conn, err := t.Dial(p.target, rdma.DialConfig{PrivateData: encode(who), Timeout: timeout, OnReject: rejected})
	if err != nil {
		return nil, err
	}
	conn.SetUserData(p)
	return conn, nil
}

// changed follows all connections.
func (t *rc) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	path, dialled := conn.UserData().(*path)
	in, ok := conn.UserData().(*incoming)
	switch {
	case dialled && state == rdma.Ready:
		var acc acceptance
		err = decode(conn.AcceptData(), &acc.rcAcceptance)
		path.accepted(conn, acc, err)
	case dialled:
		path.changed(conn, state, err)
	case state == rdma.Ready && ok:
		t.dev.agent.mu.Lock()
		in.known = true
		t.dev.agent.mu.Unlock()
	case state == rdma.Failed:
		_ = conn.Close()
	case state == rdma.Closed && ok:
		t.dev.agent.mu.Lock()
		defer t.dev.agent.mu.Unlock()
		if in.conn == conn {
			in.down()
		}
	}
}

func (t *rc) task(pc *piece) (*rdma.Task, error) {
	it, conn := pc.item, pc.path.conn.(*rdma.Connection)
	switch it.op {
	case rdma.OpFetchAdd:
		return t.tasks.FetchAdd(conn, bufinv.Target(pc.remote, it.offset, 8), it.arg)
	case rdma.OpCompareSwap:
		return t.tasks.CompareSwap(conn, bufinv.Target(pc.remote, it.offset, 8), it.arg, it.swap)
	}
	return taskFor(t.tasks, conn, pc)
}

// taskFor makes what gives a piece that is no atomic to a device.
func taskFor[T any](tasks interface {
	Read(from T, src, dst *bufinv.Buf) (*rdma.Task, error)
	Write(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
	WriteImm(to T, src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error)
}, to T, pc *piece) (*rdma.Task, error) {
	it := pc.item
	if it.op == rdma.OpWriteImm {
		return tasks.WriteImm(to, nil, nil, uint32(it.arg))
	}
	local, localAt, at := it.local.maps[pc.path.dev.index], int(firstByte(it.slice)-it.local.first)+pc.offset, it.offset+pc.offset
	if it.op == rdma.OpRead {
		return tasks.Read(to, bufinv.Source(pc.remote, at, pc.length), bufinv.Target(local, localAt, pc.length))
	}
	return tasks.Write(to, bufinv.Source(local, localAt, pc.length), bufinv.Target(pc.remote, at, pc.length))
}

func (t *rc) sender(r *rdma.ReceiveTask, isNote bool) (from Addr, epoch uint64, ok bool) {
	conn := r.Connection()
	in, ok := conn.UserData().(*incoming)
	if !ok || !isNote {
		_ = conn.Close()
		return from, 0, false
	}
	in.notes++
	return Addr{AddrPort: netip.AddrPortFrom(conn.PeerAddr().Addr(), in.who.Port)}, in.who.Epoch, true
}
