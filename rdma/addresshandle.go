package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/ref"
	"github.com/verbena-rdma/verbena/verbs"
)

// handleLimit is how many unused address handles a context keeps.
const handleLimit = 1024

// destination is what an address handle leads to: a device, with all its endpoints.
type destination struct {
	sgid    int // index of the local address
	gid     verbs.GID
	udpPort uint16
	lid     uint16
	source  uint16 // UDP source port of the datagrams; 0: not named
	qpn     uint32 // of the queue pair that sends from there; 0: source is not named
}

// addressHandle is an address handle for a device. It is made when a task needs it. Of too
// many unused handles, the one unused longest is closed.
type addressHandle struct {
	to       destination
	ah       verbs.AH // nil: not made yet, or closed
	tasks    int      // at the device, or waiting
	creating bool     // a helper makes it
	// waiting are the tasks that go to the lane, in order, once the handle has been made.
	waiting fifo.Queue[*Task]
	idle    fifo.Node[*addressHandle]
	number  uint16                  // verbs.NoAH: it has none
	serial  uint64                  // of all handles of the run, in the order in which they were made
	known   *ref.Ref[addressHandle] // for peers

	// For a handle that is no longer in use, but that completions may still name.
	retired verbs.AH
	until   uint64 // barrier of the lanes at which no such completion is left
}

// addressHandles are the address handles of a context, in one run.
type addressHandles struct {
	ctx      *Datagrams
	open     map[destination]*addressHandle
	byNumber map[uint16]*addressHandle
	idle     fifo.List[*addressHandle] // handles without tasks, the longest unused first
	retired  []*addressHandle          // out of use, but completions may still name them
	limit    int
	made     uint64 // handles so far
}

func newAddressHandles(c *Datagrams, limit int) addressHandles {
	return addressHandles{
		ctx: c, limit: limit,
		open: make(map[destination]*addressHandle), byNumber: make(map[uint16]*addressHandle),
	}
}

// find returns the handle that leads to a peer. For UD on adapters, the kernel resolves the
// peer's address when a handle is made, which takes a second and more if the peer is down.
// With helped, a helper therefore makes the handle, and the tasks that need it wait.
func (a *addressHandles) find(p *Peer, helped bool) (*addressHandle, error) {
	sgid := a.ctx.port.State().GID.Index
	if h := p.handle.Get(); h != nil && (h.ah != nil || h.creating) && h.to.sgid == sgid && h.to.lid == p.lid && h.to.source == p.source {
		return h, nil
	}
	to := destination{sgid: sgid, gid: p.addr.GID, udpPort: p.addr.UDPPort, lid: p.lid, source: p.source}
	if p.source != 0 {
		to.qpn = p.addr.QPN
	}
	h := a.open[to]
	if h == nil {
		var err error
		if h, err = a.create(to, p, helped); err != nil {
			return nil, fmt.Errorf("create an address handle for %v: %w", p, err)
		}
	}
	p.handle = h.known
	return h, nil
}

func (a *addressHandles) create(to destination, p *Peer, helped bool) (*addressHandle, error) {
	if len(a.open) >= a.limit {
		a.evict()
	}
	for len(a.retired) > 0 && a.retired[0].until <= a.ctx.lanes.Handled() {
		a.closeRetired(a.retired[0])
		a.retired = a.retired[1:]
	}
	s := a.ctx.set
	if to.lid == 0 && p.group == nil && s.Transport != verbs.SRD && a.ctx.port.State().GID.Type == verbs.GIDInfiniBand {
		return nil, fmt.Errorf("%w: InfiniBand needs the LID of the peer's port; call Peer.SetLID, or make the peer from its descriptor", ErrInvalid)
	}
	path := s.path(to.sgid, to.gid, to.lid, to.udpPort, to.source)
	path.SourceQPN = to.qpn
	if p.group != nil {
		path = p.group.path
		path.SGIDIndex = to.sgid
	}
	a.made++
	h := &addressHandle{to: to, number: verbs.NoAH, serial: a.made}
	h.idle.Value, h.known = h, ref.To(h)
	if !helped {
		ah, err := s.PD.CreateAH(path)
		if err != nil {
			return nil, err
		}
		a.open[to] = h
		a.created(h, ah)
		return h, nil
	}
	a.open[to], h.creating = h, true
	d := a.ctx.endpoint
	a.ctx.helpers.Run(func() func() {
		if d.ended.Load() { // its waiting tasks are flushed
			return func() { h.creating = false }
		}
		ah, err := s.PD.CreateAH(path)
		return func() {
			h.creating = false
			if err != nil {
				a.createFailed(h, err)
			} else {
				a.created(h, ah)
			}
		}
	})
	return h, nil
}

// created takes a new handle into use. Tasks that wait for it go to the lane, unless the
// endpoint is about to end: then they are flushed.
func (a *addressHandles) created(h *addressHandle, ah verbs.AH) {
	h.ah = ah
	if n, ok := ah.(verbs.NumberedAH); ok {
		h.number = n.Number()
		a.byNumber[h.number] = h
	}
	if h.tasks == 0 {
		a.idle.Push(&h.idle)
	}
	d := a.ctx.endpoint
	for d != nil && !d.stopping() && h.waiting.Len() > 0 {
		r := h.waiting.Pop()
		r.send.WR.AH = ah
		d.lane.Push(&r.send)
	}
	if h.waiting.Len() == 0 {
		h.waiting = fifo.Queue[*Task]{} // its memory is not needed any more
	}
}

// remove makes peers look for another handle.
func (a *addressHandles) remove(h *addressHandle) {
	delete(a.open, h.to)
	h.known.End()
}

// createFailed fails the tasks that wait for a handle that could not be created. The next task
// to the peer tries again.
func (a *addressHandles) createFailed(h *addressHandle, err error) {
	a.remove(h)
	status := verbs.StatusLocalQPOperationError
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNoRoute) {
		status = verbs.StatusRetryExceeded
	}
	defer func() { // a callback has panicked: the others are for the next pass
		if h.waiting.Len() > 0 {
			a.ctx.manager.runOnEngine(func() { a.createFailed(h, err) })
		}
	}()
	for h.waiting.Len() > 0 {
		r := h.waiting.Pop()
		failure := &TaskError{Op: r.op, Status: status, Peer: r.Peer(), Cause: fmt.Errorf("create the address handle: %w", err)}
		a.release(h)
		r.handle = nil
		a.ctx.control.End(&r.Task)
		r.pool.completed(r, failure)
	}
}

// inOrder returns the open handles, the oldest first.
func (a *addressHandles) inOrder() []*addressHandle {
	return slices.SortedFunc(maps.Values(a.open), func(x, y *addressHandle) int { return cmp.Compare(x.serial, y.serial) })
}

// flush ends the tasks that wait for handles, and returns how many. The lane is shut.
func (a *addressHandles) flush() (n int) {
	for _, h := range a.inOrder() {
		for ; h.waiting.Len() > 0; n++ {
			r := h.waiting.Pop()
			r.to.completed(r, verbs.StatusFlushed, 0)
		}
	}
	return n
}

// evictIdle closes all handles that no task uses.
func (a *addressHandles) evictIdle() {
	for a.idle.Len() > 0 {
		a.evict()
	}
}

// evict closes the handle that no task has used for the longest time, if there is one.
func (a *addressHandles) evict() {
	e := a.idle.Pop()
	if e == nil {
		return
	}
	h := e.Value
	a.remove(h)
	h.retired, h.ah = h.ah, nil
	if h.number == verbs.NoAH {
		a.closeRetired(h)
		return
	}
	h.until = a.ctx.lanes.Barrier()
	a.retired = append(a.retired, h)
}

// closeRetired closes a handle that no completion names any more. Then the device may reuse
// its number.
func (a *addressHandles) closeRetired(h *addressHandle) {
	if err := h.retired.Close(); err != nil {
		a.ctx.control.Log().Warn().Err(err).Msg("failed to close an address handle")
	}
	h.retired = nil
	if a.byNumber[h.number] == h {
		delete(a.byNumber, h.number)
	}
}

// acquire and release are called when a task begins and ends to use the handle.
func (a *addressHandles) acquire(h *addressHandle) {
	if h.tasks++; h.tasks == 1 {
		a.idle.Remove(&h.idle)
	}
}

func (a *addressHandles) release(h *addressHandle) {
	if h.tasks--; h.tasks == 0 && h.ah != nil {
		a.idle.Push(&h.idle)
	}
}

// close closes all handles. Nothing is at the device any more.
func (a *addressHandles) close() error {
	var errs []error
	for _, h := range a.inOrder() {
		h.known.End()
		if h.ah == nil {
			continue
		}
		errs = append(errs, h.ah.Close())
		h.ah, h.tasks = nil, 0
	}
	for _, h := range a.retired {
		errs = append(errs, h.retired.Close())
	}
	*a = addressHandles{}
	return errors.Join(errs...)
}
