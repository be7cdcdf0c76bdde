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
	// dial begins to connect. What becomes of it goes to path.changed.
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
	AcceptData() []byte
	DialError() error
	SetUserData(v any)
	// Close ends it. Later, path.changed or incoming.down is called.
	Close() error
	String() string
}

// call is the request of another agent for a link.
type call interface {
	PrivateData() []byte
	RemoteAddr() netip.AddrPort
	accept(acc acceptance) (link, error)
	Reject(data []byte) error
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
	listener, err := t.Listen(addr, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { t.dev.requested(rcCall{q}) }})
	if err != nil {
		return Addr{}, err
	}
	at := listener.Addr()
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(t.GID().GID.Addr(), at.Port())
	}
	return Addr{AddrPort: at}, nil
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
	if path, ok := conn.UserData().(*path); ok {
		path.changed(conn, state, err)
		return
	}
	in, ok := conn.UserData().(*incoming)
	switch {
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
	local, localAt, at := it.local.maps[pc.path.dev.index], it.localAt+pc.offset, it.offset+pc.offset
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

// rcCall is a request for a connection.
type rcCall struct{ *rdma.ConnectRequest }

func (q rcCall) accept(acc acceptance) (link, error) {
	conn, err := q.Accept(rdma.AcceptConfig{PrivateData: encode(acc)[:rcAcceptanceLen]})
	if err != nil {
		return nil, err
	}
	return conn, nil
}
