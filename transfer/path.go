package transfer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

type pathState int

const (
	pathDown   pathState = iota
	pathQueued           // the engine's goroutine will dial
	pathDialing
	pathReady
	pathClosing
)

const (
	maxFailures = 5                // in a row, before a path is given up over whose latest connection no piece got done
	lasting     = time.Second      // how long a connection lasts that is no reason to wait before the next
	maxBackOff  = 10 * time.Second // between two connections
	maxDials    = 16               // at a time, of an agent; half are for peers that could be reached
	windowBytes = 4 << 20          // at a device for one peer, if more than one piece
)

// path is a peer as one device of the agent reaches it: by one connection at a time. The agent's mutex guards it.
type path struct {
	peer     *Peer
	own      *localDevice
	dev      *localDevice // own, or another one when that fails
	inFlight int          // pieces
	bytes    int
	active   [levels]bool // in the queue of dev

	// The connection.
	state      pathState
	conn       link
	acceptance           // of whom it has reached
	ready      time.Time // since when; zero: it never was
	progress   bool      // a piece got done
	err        error     // why it failed

	// How the next one is made.
	dials    uint32     // so far
	target   string     // the address that is dialled
	remote   int        // the device of the peer to dial, counted from own's index
	asked    time.Time  // to dial
	slot     *int       // of Agent.dialing, while it dials
	failures int        // connections in a row that did not last, or could not be made
	pause    host.Timer // until the next may be made; nil: it may now
	gaveUp   bool       // until there is other work

	// fenced are writes that the device had when the connection ended, in the order in which it got them. Packets of
	// them may still be on their way. The peer accepts the next connection when it has ended the old one: then they can
	// be repeated.
	fenced []*piece
	tries  int    // dials in a row that failed
	notes  uint64 // that the peer has got by earlier connections and this one
}

// room reports whether the device takes another piece. Peers that do not answer hold what was posted to them:
// so each gets less while the device has many.
func (p *path) room() bool {
	depth := p.dev.agent.cfg.Depth
	if p.dev.inFlight > poolSize/2 {
		depth = min(depth, 2)
	}
	return p.inFlight < depth && (p.inFlight == 0 || p.bytes < windowBytes)
}

// activate puts the path into the queues of its dev for which there is work, if it can take some.
func (p *path) activate() {
	for level := range levels {
		if p.state == pathReady && !p.active[level] && p.peer.work[level].Len() > 0 && p.room() {
			p.active[level] = true
			p.dev.active[level].Push(p)
			p.dev.wake()
		}
	}
}

// dial connects, unless the pause after the latest connection goes on.
func (p *path) dial() {
	if p.state != pathDown || p.pause != nil {
		return
	}
	a := p.peer.agent
	p.state, p.dev, p.asked = pathQueued, p.own, a.host.Now()
	class := 0
	if p.failures > 0 && p.ready.IsZero() { // the latest dial has failed
		class = 1
	}
	a.toDial[class].Push(p)
	a.dialNext()
}

// dialNext lets paths dial, as many as may.
func (a *Agent) dialNext() {
	for class, most := range [...]int{maxDials, maxDials / 2} {
		for q := &a.toDial[class]; q.Len() > 0 && a.dialing[class] < most && a.dialing[0]+a.dialing[1] < maxDials; {
			if p := q.Pop(); p.state == pathQueued && p.slot == nil {
				p.slot = &a.dialing[class]
				*p.slot++
				p.start()
			}
		}
	}
}

// release lets the next path dial. It is called whenever a path has dialled, or need no longer.
func (p *path) release() {
	if p.slot != nil {
		*p.slot--
		p.slot = nil
		p.peer.agent.dialNext()
	}
}

// ownTarget is the address that the path dials next, if not through another one.
func (p *path) ownTarget() string {
	targets := p.peer.targets
	return targets[(p.own.index+p.remote)%len(targets)]
}

// start chooses device and address, those of a connected path if its own have failed, and has the engine's
// goroutine dial.
func (p *path) start() {
	acc, devices := &p.peer.reached, p.peer.agent.devices
	p.dev, p.target, p.active = p.own, p.ownTarget(), [levels]bool{}
	for i := 0; p.dev.dead != nil && i < len(devices); i++ {
		p.dev = devices[i]
	}
	for _, other := range p.peer.paths {
		// Not each time: it may have failed too, and not have noticed.
		if other.state == pathReady && p.tries%2 == 0 && (p.fenced != nil || p.own.dead != nil) {
			p.dev, p.target = other.dev, acc.addr(int(other.Device)).String()
		}
	}
	_ = p.dev.engine.Do(p.begin)
}

func (p *path) close() {
	if p.state == pathQueued {
		p.state = pathDown
		p.release()
	}
	if p.state == pathDialing || p.state == pathReady {
		p.state = pathClosing
		conn := p.conn
		_ = p.dev.engine.Do(func() { _ = conn.Close() })
	}
}

// begin dials. It runs on the engine's goroutine.
func (p *path) begin() {
	a := p.dev.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.state != pathQueued {
		return
	}
	p.state, p.err, p.ready, p.progress = pathDialing, nil, time.Time{}, false
	a.counters.Dials++
	p.dials++
	who := request{Magic: magic, Path: pathID{p.peer.id, uint8(p.own.index)}, Dials: p.dials, Epoch: a.epoch}
	if len(a.addrs) > 0 {
		who.Port = a.addrs[p.dev.index].AddrPort.Port()
	}
	timeout := max(a.cfg.DialTimeout-a.host.Now().Sub(p.asked), a.cfg.DialTimeout/10) / time.Duration(len(p.peer.targets))
	conn, err := p.dev.transport.dial(p, who, timeout)
	if err != nil {
		p.down(err)
		return
	}
	p.conn = conn
}

// rejected says why a rejection is final, if it is.
func rejected(data []byte) error {
	data = bytes.TrimRight(data, "\x00")
	if bytes.Equal(data, busy) {
		return nil
	}
	return fmt.Errorf("%w, which says %q", rdma.ErrRejected, data)
}

// accepted notes that the peer has accepted the connection; err, that it is no agent.
func (p *path) accepted(conn link, acc acceptance, err error) {
	a := p.peer.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if conn != p.conn {
		return
	}
	p.release()
	if err != nil {
		a.counters.Refused++
		p.err = err
		p.close()
		return
	}
	if p.state != pathDialing {
		return
	}
	same := p.Epoch == acc.Epoch && acc.Known == 1
	p.tries = 0
	p.state, p.acceptance, p.err, p.ready = pathReady, acc, nil, a.host.Now()
	a.cfg.Log.Debug().Stringer("connection", conn).Stringer("peer", p.peer).Msg("connected")
	p.peer.found(acc)
	p.releaseFenced(same)
	if p.dev != p.own && p.own.dead == nil { // all that was wanted is the end of its writes
		p.close()
	}
	p.peer.connect()
	p.activate()
}

// changed follows the end of the connection.
func (p *path) changed(conn link, state rdma.ConnectionState, err error) {
	a := p.peer.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if conn != p.conn {
		return
	}
	switch state {
	case rdma.Failed:
		p.err = err
		a.counters.Lost++
		a.cfg.Log.Debug().Stringer("connection", conn).Stringer("peer", p.peer).Err(err).Msg("lost")
		p.state = pathClosing
		_ = conn.Close() // this is the engine's goroutine
	case rdma.Closed:
		p.down(cmp.Or(p.err, err, rdma.ErrPeerClosed))
	}
}

// down notes the end of the connection, of which the device has nothing any more.
func (p *path) down(err error) {
	p.state, p.conn = pathDown, nil
	p.release()
	if p.ready.IsZero() {
		if p.target == p.ownTarget() {
			p.remote++
		}
		p.tries++
	}
	a := p.peer.agent
	if p.failures++; p.progress && a.host.Now().Sub(p.ready) >= lasting {
		p.failures = 0
	}
	p.gaveUp = p.ready.IsZero() && p.tries >= len(p.peer.targets) || p.failures >= maxFailures && !p.progress
	if p.failures > 1 && p.peer.closed == nil { // after the first, the next may come at once
		p.pause = a.host.AfterFunc(a.backOff(p.failures), p.pauseEnded)
	}
	p.peer.lost(p, err)
}

// backOff is how long to pause after so many failures: from a half of what these call for to all of it, so that the
// many agents that have lost a peer do not come back together.
func (a *Agent) backOff(failures int) time.Duration {
	most := min(50*time.Millisecond<<min(failures-1, 8), maxBackOff)
	return most - time.Duration(host.Uint64(a.host)%uint64(most/2))
}

// rank is less for a path that is more likely to connect.
func (p *path) rank() (rank int) {
	rank = min(p.failures, 1000)
	if p.pause != nil {
		rank += 1 << 10
	}
	if p.gaveUp {
		rank += 1 << 11
	}
	if p.fenced != nil { // it tries anyway
		rank += 1 << 12
	}
	return rank
}

// pauseEnded connects, if there is still work.
func (p *path) pauseEnded() {
	p.peer.agent.mu.Lock()
	defer p.peer.agent.mu.Unlock()
	p.pause = nil
	if p.peer.waiting() || slices.ContainsFunc(p.peer.paths, func(q *path) bool { return q.inFlight > 0 }) {
		p.peer.connect()
	}
}

// take takes the next piece of work of a level for the path, or none.
func (p *path) take(level int) *piece {
	w := &p.peer.work[level]
	for w.Len() > 0 {
		sub := w.Front()
		pc := sub.nextPiece()
		if pc == nil {
			sub.queued = false
			w.Pop()
			continue
		}
		var m *mmap.Map
		var err error
		if pc.item.op != rdma.OpWriteImm {
			m, err = pc.item.remote.mapFor(p)
		} else if sub.epoch != 0 && sub.epoch != p.Epoch {
			err = ErrStale // the peer with the data is no more
		}
		if err == nil {
			pc.path, pc.remote = p, m
			return pc
		}
		p.peer.agent.pieceEnded(pc, err)
	}
	return nil
}

// ended takes a piece back from the device, or one that it did not take.
func (p *path) ended(pc *piece, original uint64, posted bool, err error) {
	a, it := p.peer.agent, pc.item
	p.inFlight--
	p.bytes -= pc.length
	p.dev.inFlight--
	closed := cmp.Or(a.closed, p.peer.closed)
	repeats, fences := err != nil && repeatable(err, posted), a.cfg.Transport == verbs.RC
	if repeats && posted && !fences && notTaken(err) {
		posted = false // nor is it on its way any more
	} else if repeats && p.state == pathReady {
		p.state = pathClosing // the transport reports the end to changed
	}
	if err == nil {
		p.progress = true
		it.original = original
		if it.op == rdma.OpWriteImm {
			p.notes++
		}
	}
	perhaps := posted && it.op != rdma.OpRead // it has changed something there, or still does
	switch {
	case !repeats:
		a.pieceEnded(pc, err)
	case perhaps && (closed != nil || it.atomic() || !fences):
		a.pieceEnded(pc, unknown(cmp.Or(closed, err)))
	case closed != nil:
		a.pieceEnded(pc, closed)
	case perhaps:
		p.fenced = append(p.fenced, pc)
	default:
		pc.repeat()
	}
	p.activate()
}

// repeatable reports whether a piece failed because its connection or device ended, and not by itself: of what the
// device had, only the peer's refusals and the checks here say that.
func repeatable(err error, posted bool) bool {
	if !posted {
		return errors.Is(err, rdma.ErrNotReady) || errors.Is(err, pe.ErrBadState)
	}
	var e *rdma.TaskError
	if !errors.As(err, &e) {
		return true
	}
	switch e.Status { // not errors.Is: the error of what was flushed also matches why
	case verbs.StatusLocalLengthError, verbs.StatusLocalQPOperationError, verbs.StatusLocalProtectionError, verbs.StatusLocalAccessError,
		verbs.StatusRemoteInvalidRequest, verbs.StatusRemoteAccessError:
		return false
	case verbs.StatusRemoteOperationError:
		return e.Peer != nil // SRD: the peer does not know this end any more
	}
	return true
}

// notTaken reports whether a note has found no place at the peer, whose program does not take them at present.
func notTaken(err error) bool {
	var e *rdma.TaskError
	return errors.As(err, &e) && e.Op == rdma.OpWriteImm && e.Status == verbs.StatusRNRRetryExceeded
}

// repeat puts a piece back into the work for its peer, unless its batch was canceled.
func (pc *piece) repeat() {
	sub := pc.sub
	a := sub.peer.agent
	if sub.h.canceled {
		a.pieceEnded(pc, ErrCanceled)
		return
	}
	a.counters.Repeated++
	sub.again = append(sub.again, pc)
	sub.peer.enqueue(sub)
}

// releaseFenced lets the writes of the earlier connection go on, which has ended at both ends. Of its notes, the peer
// has got the first, and counted them if it is the same.
func (p *path) releaseFenced(same bool) {
	a, fenced, got, notes := p.peer.agent, p.fenced, p.acceptance.Notes-p.notes, uint64(0)
	for _, pc := range fenced {
		if pc.item.op == rdma.OpWriteImm {
			notes++
		}
	}
	same = same && got <= notes
	p.fenced, p.notes = nil, p.acceptance.Notes
	for _, pc := range fenced {
		switch {
		case pc.item.op != rdma.OpWriteImm:
			pc.repeat()
		case !same:
			a.pieceEnded(pc, unknown(errors.New("the peer was opened again, or knows nothing of the connection")))
		case got > 0:
			got--
			a.pieceEnded(pc, nil)
		default:
			pc.repeat()
		}
	}
}

// endFenced ends the writes of the earlier connection, whose outcome will not be known.
func (p *path) endFenced(err error) {
	fenced := p.fenced
	p.fenced = nil
	for _, pc := range fenced {
		p.peer.agent.pieceEnded(pc, unknown(err))
	}
}
