package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// accepts implements target.
func (conn *Connection) accepts(t *Task) error {
	if !conn.life.Phase().Usable() {
		return conn.notUsable()
	}
	if t.op.readAtomic() {
		return conn.checkReads()
	}
	return nil
}

// address implements target: the queue pair has the peer's address.
func (conn *Connection) address(*Task) error { return nil }

// submit implements target.
func (conn *Connection) submit(t *Task) {
	conn.readSubmitted = conn.readSubmitted || t.op.readAtomic()
	conn.push(&t.send)
}

// completed implements target.
func (conn *Connection) completed(t *Task, status verbs.Status, vendor uint32) {
	c := conn.ctx
	if status == verbs.StatusSuccess {
		conn.heard()
		t.succeed()
		return
	}
	err := &TaskError{Op: t.op, Status: status, Connection: conn, VendorError: vendor}
	if status != verbs.StatusFlushed {
		err.advice = conn.adviceFor(t.op, status)
		if conn.life.Dead() {
			err.Cause = ErrPeerDead
		}
	}
	conn.failedTask(status, err)
	if errors.Is(conn.err, ErrPeerClosed) {
		conn.interrupted, err.Cause = true, conn.err
	}
	if status == verbs.StatusFlushed {
		err.Cause = c.causeOf(conn)
		t.keepMemory(err)
	}
	c.control.End(&t.Task)
	t.pool.completed(t, err)
}

// belongsTo implements target.
func (p *Peer) belongsTo(c *parts) error {
	switch {
	case p == nil:
		return fmt.Errorf("%w: no peer is given", ErrInvalid)
	case &p.ctx.parts != c:
		return fmt.Errorf("%w: %v does not belong to context %q", ErrInvalid, p, c.set.Name)
	}
	return nil
}

// accepts implements target: messages can go to a peer at any time.
func (p *Peer) accepts(*Task) error { return nil }

// address implements target: it finds the peer's address handle.
func (p *Peer) address(t *Task) error {
	// A request that the device refuses would end the endpoint.
	if err := t.checkSize(); err != nil {
		return err
	}
	d := p.ctx.endpoint
	if d.stopping() {
		return fmt.Errorf("%w: context %q is %v", ErrNotReady, p.ctx.set.Name, p.ctx.State())
	}
	h, err := d.handles.find(p, p.ctx.set.Transport == verbs.UD)
	if err != nil {
		return err
	}
	t.handle = h
	wr := &t.send.WR
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = h.ah, p.addr.QPN, p.qkey
	return nil
}

// submit implements target.
func (p *Peer) submit(t *Task) { p.ctx.endpoint.push(t) }

// completed implements target.
func (p *Peer) completed(t *Task, status verbs.Status, vendor uint32) {
	p.ctx.endpoint.completed(t, p, status, vendor)
}

// belongsTo implements target.
func (conn *Connection) belongsTo(c *parts) error {
	switch {
	case conn == nil:
		return fmt.Errorf("%w: no connection is given", ErrInvalid)
	case &conn.ctx.parts != c:
		return fmt.Errorf("%w: %v does not belong to context %q", ErrInvalid, conn, c.set.Name)
	}
	return nil
}
