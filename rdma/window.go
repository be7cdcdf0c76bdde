package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
	"github.com/verbena-rdma/verbena/verbs"
)

// WindowPool is a pool of memory windows.
type WindowPool struct {
	ctx   *Connections
	tasks *pe.Pool[Window]
}

// WindowPool makes a pool of n memory windows. It is legal in Idle. Its errors are those of
// backend.NewPool, and ErrNotSupported where the device lacks windows of type 2, or
// invalidation (Capabilities.Windows).
func (c *Connections) WindowPool(n int) (*WindowPool, error) {
	const op = "make a pool of memory windows"
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	if !c.set.caps.Windows {
		return nil, fmt.Errorf("rdma: %s: %w by %s", op, ErrNotSupported, c.dev.Name())
	}
	tasks, err := backend.NewPool(c.control, "memory window", n,
		func(w *Window) *pe.Task { return &w.task },
		func(w *Window) {
			w.ctx, w.place.Value = c, w
			c.lanes.Add(&w.send, (*windowCompleter)(w))
		},
		func(w *Window) { _ = w.end() })
	if err != nil {
		return nil, err
	}
	c.lanes.tasks += n
	return &WindowPool{c, tasks}, nil
}

// Cap is the number of windows that the pool was made with.
func (p *WindowPool) Cap() int { return p.tasks.Cap() }

// Available is the number of windows that can be allocated now.
func (p *WindowPool) Available() int { return p.tasks.Available() }

// Alloc takes a window out of the pool, for the peer of a connection. It is not bound yet.
// Alloc makes the device's window, which takes as long as registering memory: programs that
// lend often should bind the same windows again and again. Errors match those of
// pe.Pool.Alloc, ErrNotReady on a connection that has ended, ErrInvalid and ErrDevice.
func (p *WindowPool) Alloc(conn *Connection) (*Window, error) {
	w, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	if err := w.allocate(conn); err != nil {
		_ = p.tasks.Free(w) // it was taken just now
		return nil, fmt.Errorf("rdma: allocate a memory window: %w", err)
	}
	w.pool = p
	return w, nil
}

// Window is a memory window of type 2 (IBTA 10.6.7, ibv_alloc_mw(3)). It lends part of a
// memory map to the peer of one connection, with its own permissions, and can take it back at
// once. Nobody else can use it, even with its key. The peer imports what Export returns with
// mmap.Import, and uses it as any memory map. The map that is lent needs mmap.BindWindows, and need not
// grant anything to peers. Bind and Invalidate run in order with the tasks of the connection.
//
// After a window was taken back, requests of the peer that use it fail, and so does the
// connection. So a trusted peer should report that it is done, or invalidate the window itself
// (Task.SetInvalidate); take the window back without asking only from a peer that is not
// trusted.
//
// A Window belongs to the goroutine that drives the engine.
type Window struct {
	task  pe.Task
	pool  *WindowPool
	ctx   *Connections
	conn  *Connection
	mw    verbs.MW // nil: the connection has ended
	place fifo.Node[*Window]
	send  lane.Request
	bind  verbs.MWBind
	done  func(error)

	lent *mmap.Map // held; nil: the window is neither bound nor about to be
	off  int
	n    int
	perm mmap.Permission
}

func (w *Window) allocate(conn *Connection) error {
	c := w.ctx
	if err := conn.belongsTo(&c.parts); err != nil {
		return err
	}
	if !conn.life.Phase().Usable() {
		return conn.notUsable()
	}
	able, ok := c.set.PD.(verbs.WindowPD)
	if !ok {
		return fmt.Errorf("%w by the protection domain of %s", ErrNotSupported, c.dev.Name())
	}
	mw, err := able.AllocMW(verbs.MWType2)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDevice, err)
	}
	w.conn, w.mw = conn, mw
	conn.windows.Push(&w.place)
	if c.windows == nil {
		c.windows = make(map[uint32]*Window)
	}
	c.windows[windowTag(mw.RKey())] = w
	return nil
}

// windowTag is the part of the key of a window that its binds do not change.
func windowTag(rkey uint32) uint32 { return rkey >> 8 }

// Bind lends n bytes of m, from the offset off, with the permissions perm: RemoteRead,
// RemoteWrite, RemoteAtomic. The map needs mmap.BindWindows, and LocalReadWrite if the peer is
// to change it; reads and atomics also need the context's Config.Permissions. What the map
// itself grants to peers does not matter: a map that grants nothing is accessible through
// windows only.
//
// The bind runs in order with the tasks of the connection, and waits with them until it is
// Ready. Tasks that are submitted later begin after it, such as the send of what Export
// returns. done runs on the engine's goroutine, inside Progress. An error matches
// ErrTaskFailed or ErrFlushed, and means that the connection has failed. The map cannot be
// closed until done has run, nor while the window is bound. Bind allocates nothing.
//
// Errors match pe.ErrInUse while another bind or invalidation is under way, or the window
// is bound, pe.ErrBadState, pe.ErrFreed, ErrNotReady, and those of mmap.Map.Lend.
func (w *Window) Bind(m *mmap.Map, off, n int, perm mmap.Permission, done func(error)) error {
	const op = "bind a memory window"
	if err := w.beginRequest(op, done != nil && m != nil); err != nil {
		return err
	}
	if w.lent != nil {
		return w.abortRequest(op, fmt.Errorf("%w: the window is bound; invalidate it first", pe.ErrInUse))
	}
	mr, err := m.Friends(friend.Package{}).WindowMR(w.ctx.set.PD, off, n, perm)
	if err == nil {
		err = m.Friends(friend.Package{}).HoldFor(friend.MemoryWindow)
	}
	if err != nil {
		return w.abortRequest(op, err)
	}
	w.lent, w.off, w.n, w.perm = m, off, n, perm
	w.bind = verbs.MWBind{
		MW: w.mw, RKey: verbs.NextRKey(w.mw.RKey()), MR: mr,
		Addr: m.Addr() + uint64(off), Length: uint64(n), Access: accessOf(perm),
	}
	w.send.WR.Op, w.send.WR.Bind = verbs.OpBindMW, &w.bind
	w.push(done)
	return nil
}

// Invalidate takes the memory back, in order after the tasks submitted before. Once done is
// called without an error, the peer can neither read nor write another byte through this
// window. The window can then be bound again, with another key.
//
// If the peer has invalidated the window already, Invalidate fails, and the connection with
// it: only one end may invalidate a window. Free takes the memory back at once, in any case.
// done and the errors are as with Bind.
func (w *Window) Invalidate(done func(error)) error {
	const op = "invalidate a memory window"
	if err := w.beginRequest(op, done != nil); err != nil {
		return err
	}
	if w.lent == nil {
		return w.abortRequest(op, fmt.Errorf("%w: the window is not bound", ErrInvalid))
	}
	w.send.WR.Op, w.send.WR.InvalidateRKey = verbs.OpLocalInvalidate, w.bind.RKey
	w.push(done)
	return nil
}

// beginRequest checks that a request can begin, and begins it.
func (w *Window) beginRequest(op string, complete bool) error {
	if err := w.ctx.control.Begin(&w.task, op); err != nil {
		return err
	}
	switch {
	case !complete:
		return w.abortRequest(op, fmt.Errorf("%w: a function or a memory map is missing", ErrInvalid))
	case w.mw == nil || !w.conn.life.Phase().Usable():
		return w.abortRequest(op, w.conn.notUsable())
	}
	return nil
}

// abortRequest ends a request that was not posted.
func (w *Window) abortRequest(op string, err error) error {
	w.ctx.control.End(&w.task)
	return fmt.Errorf("rdma: %s: %w", op, err)
}

func (w *Window) push(done func(error)) {
	w.done = done
	w.conn.push(&w.send)
	w.ctx.lanes.postAll()
}

// Export returns a descriptor of what the window lends, for mmap.Import of the peer. It may be
// called as soon as Bind has returned. It fails with ErrInvalid if the window is not bound.
func (w *Window) Export() ([]byte, error) {
	if w.lent == nil {
		return nil, fmt.Errorf("rdma: export a memory window: %w: the window is not bound", ErrInvalid)
	}
	return w.lent.Friends(friend.Package{}).ExportWindow(w.off, w.n, w.bind.RKey, w.perm)
}

// Bound reports whether the window lends memory, or is about to.
func (w *Window) Bound() bool { return w.lent != nil }

// Connection is the connection whose peer the window is for.
func (w *Window) Connection() *Connection { return w.conn }

// Free takes the memory back at once, and puts the window back into its pool. When Free has
// returned, the peer can neither read nor write through the window. It fails with pe.ErrInUse
// while Bind or Invalidate is under way, and otherwise as pe.Pool.Free.
func (w *Window) Free() error {
	if err := w.pool.tasks.Free(w); err != nil {
		return err
	}
	return w.end()
}

// end gives the device's window back, and the memory map.
func (w *Window) end() error {
	if w.mw == nil {
		return nil
	}
	delete(w.ctx.windows, windowTag(w.mw.RKey()))
	w.conn.windows.Remove(&w.place)
	err := w.mw.Close()
	w.mw = nil
	w.unbound()
	if err != nil {
		return fmt.Errorf("rdma: close a memory window of %s: %w: %w", w.ctx.dev.Name(), ErrDevice, err)
	}
	return nil
}

// unbound releases the memory map.
func (w *Window) unbound() {
	if w.lent != nil {
		_ = w.lent.Friends(friend.Package{}).ReleaseFor(friend.MemoryWindow) // it is held
		w.lent = nil
	}
}

// endWindows takes back the windows lent to the peer of a connection that ends.
func (conn *Connection) endWindows() {
	for e := conn.windows.Front(); e != nil; e = conn.windows.Front() {
		if err := e.Value.end(); err != nil {
			conn.ctx.control.Log().Warn().Err(err).Stringer("connection", conn).Msg("failed to close a memory window")
		}
	}
}

// windowCompleter is a Window as the lane.Completer of its request.
type windowCompleter Window

// Completed implements lane.Completer.
func (c *windowCompleter) Completed(status verbs.Status, vendor uint32) {
	w := (*Window)(c)
	done, op := w.done, w.send.WR.Op
	w.done, w.send.WR.Bind = nil, nil
	var err error
	if status != verbs.StatusSuccess {
		err = fmt.Errorf("rdma: %v on %v: %v: %w", op, w.conn, status, statusOf(status).err)
		w.conn.failedTask(status, err)
	}
	w.ctx.control.End(&w.task)
	if err == nil && op == verbs.OpLocalInvalidate {
		w.unbound()
	}
	done(err)
}

// invalidated notes that a message has invalidated a window, and returns the window.
func (c *Connections) invalidated(rkey uint32) *Window {
	w := c.windows[windowTag(rkey)]
	if w != nil && w.lent != nil && w.bind.RKey == rkey {
		w.unbound()
	}
	return w
}

// SetInvalidate makes the next messages of a send invalidate the peer's window that remote was
// imported from, until it is called again or the task is freed; nil ends this. Reads through
// the window that were submitted before are done first. The message tells the peer of it
// (ReceiveTask.Invalidated). If the window is not the peer's, or is invalid already, the peer
// refuses the message, and the connection fails.
//
// Errors match pe.ErrInUse in flight, ErrInvalid for a map that was not imported and for other
// operations, and ErrNotSupported where the device lacks it (Capabilities.Windows).
func (t *Task) SetInvalidate(remote *mmap.Map) error {
	const op = "set the window that a send invalidates"
	if err := t.mayChange("window to invalidate", t.op == OpSend); err != nil {
		return err
	}
	t.localVersion = 0 // the flags differ
	switch {
	case remote == nil:
		t.send.WR.Op, t.send.WR.InvalidateRKey = verbs.OpSend, 0
		return nil
	case !t.ctx.set.caps.Windows:
		return fmt.Errorf("rdma: %s: %w by %s", op, ErrNotSupported, t.ctx.dev.Name())
	case !remote.Remote():
		return fmt.Errorf("rdma: %s: %w: the map is of local memory; give the map that was imported from the peer", op, ErrInvalid)
	}
	t.send.WR.Op, t.send.WR.InvalidateRKey = verbs.OpSendInvalidate, remote.RKey()
	return nil
}

// accessOf returns the access flags of a peer's permissions.
func accessOf(perm mmap.Permission) (a verbs.Access) {
	if perm.Has(mmap.RemoteRead) {
		a |= verbs.AccessRemoteRead
	}
	if perm.Has(mmap.RemoteWrite) {
		a |= verbs.AccessRemoteWrite
	}
	if perm.Has(mmap.RemoteAtomic) {
		a |= verbs.AccessRemoteAtomic
	}
	return a
}
