package transport

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Completer takes completions of one queue pair's send or receive side.
type Completer interface {
	// Complete queues a completion, which frees places when it is polled; solicited ones
	// wake a consumer that waits for those only.
	Complete(wc verbs.WC, frees Places, solicited bool)
}

// Output takes packets on their way to a peer. The queue pair does not know how
// they get there.
type Output interface {
	// Send takes a packet whose payload is the n bytes of pieces. Packet and
	// pieces are valid until the end of the Transmit that calls Send; the bytes
	// are registered memory of the program, which may change at any time. An Output that
	// reads them later stops at Config.Revoked. Send reports false if they cannot be read (see
	// dma.Fault): then nothing is sent. A packet that cannot be sent otherwise is lost.
	Send(p *wire.Packet, pieces [][]byte, n int) bool
}

// defaultPKey is the partition key every port has (IBTA 10.9.2).
const defaultPKey = 0xffff

// Config configures a queue pair.
type Config struct {
	Type       verbs.QPType
	Num        uint32
	Domain     uint32
	Memory     *Memory
	Send, Recv Completer
	RecvQueue  *RecvQueue
	SendDepth  int
	MaxSendSGE int
	MaxInline  int
	SignalAll  bool
	// Adaptive has a reliable connection measure the round trip and repeat
	// requests accordingly, instead of by QPAttr.Timeout and RetryCount.
	Adaptive bool
	// Window is how many bytes may be under way at a time, until SetWindow.
	Window int
	// PortMTU bounds datagrams. Of connections, the path's MTU holds.
	PortMTU verbs.MTU
	// CheckAH returns what is wrong with the address handle of a datagram. A
	// handle that it accepts is the Output to its peer.
	CheckAH func(ah verbs.AH, remoteQPN uint32) error
	// Bind returns the window of a bind and its region, or what is wrong with either.
	// Nil: there are no windows.
	Bind func(*verbs.MWBind) (*Window, *Region, error)
	// Counters and Waiting are those of all queue pairs under one lock. Waiting may be nil:
	// the queue pair's own.
	Counters *Counters
	Waiting  *Waiting
	// Guard bounds how many keys the peer's host can try. Nil: nothing does.
	Guard KeyGuard
	// Event takes asynchronous events of the queue pair.
	Event func(verbs.EventType)
	// Revoked is called before anybody can know that memory is the program's again: mem, of a
	// window that was taken away, or all that the queue pair has sent from, if mem is nil: it has
	// failed or was reset. Once Revoked has returned, an Output must not read payload there that
	// it has not copied. Nil: there is no such Output.
	Revoked func(mem []byte)
}

// QP is a queue pair. What every packet looks at comes first: where there are thousands of
// queue pairs, each packet meets one that no cache holds.
type QP struct {
	kind         verbs.QPType
	num          uint32
	domain       uint32
	service      wire.Service
	signalAll    bool
	mayAdapt     bool // Config.Adaptive
	adapts       bool // this connection
	lossless     bool // of SetLossless
	requestFirst bool // of RequestFirst
	state        verbs.QPState
	mtu          uint32
	largest      uint32 // the payload of the largest packet that it sends
	mtuShift     uint
	firstRead    int // packets of response that one read request asks for at most, at first
	readPackets  int // the same in the end; both are powers of two
	window       int
	memory       *Memory
	counters     *Counters
	rq           *RecvQueue
	sendCQ       Completer
	recvCQ       Completer

	sq       sendQueue
	sends    Unpolled
	receives Unpolled
	requester
	adaptive
	responder
	congestionControl

	// The payload of the packet that is being received, and the most that it may be.
	payload    [][]byte
	payloadLen uint32
	payloadMax uint32
	whole      [1][]byte // the payload, where it is in one piece
	intact     func() bool
	unreadable bool // the payload cannot be read

	packet  wire.Packet // scratch of Transmit
	pieces  [][]byte
	scratch [8]byte

	attr        verbs.QPAttr
	ackTimeout  time.Duration // zero: for ever
	maxInitRead int
	portMTU     verbs.MTU
	waiting     *Waiting
	windows     fifo.List[*Window] // of type 2, bound on it
	pacer
	checkAH     func(verbs.AH, uint32) error
	findBind    func(*verbs.MWBind) (*Window, *Region, error)
	guard       KeyGuard
	expectedKey uint32 // of ExpectKey
	event       func(verbs.EventType)
	revoked     func(mem []byte)
	bounce      []byte // see transmitRead
}

// New returns a queue pair in the state Reset.
func New(c Config) *QP {
	q := &QP{
		kind: c.Type, service: services[c.Type], portMTU: c.PortMTU, checkAH: c.CheckAH, findBind: c.Bind,
		num: c.Num, domain: c.Domain, memory: c.Memory, sendCQ: c.Send, recvCQ: c.Recv,
		signalAll: c.SignalAll, mayAdapt: c.Adaptive && c.Type == verbs.RC,
		window: c.Window, counters: c.Counters, guard: c.Guard, event: c.Event, revoked: c.Revoked,
		rq: c.RecvQueue,
		sq: newSendQueue(c.SendDepth, c.MaxSendSGE, c.MaxInline),
	}
	q.sends, q.receives = NewUnpolled(&q.sq.taken), NewUnpolled(&q.rq.taken)
	if q.revoked == nil {
		q.revoked = func([]byte) {}
	}
	if q.waiting = c.Waiting; q.waiting == nil {
		q.waiting = &Waiting{}
	}
	return q
}

var services = [...]wire.Service{verbs.RC: wire.ServiceRC, verbs.UC: wire.ServiceUC, verbs.UD: wire.ServiceUD}

// Num is the queue pair number.
func (q *QP) Num() uint32 { return q.num }

// State is the present state.
func (q *QP) State() verbs.QPState { return q.state }

// SetWindow bounds the bytes that may be under way at a time from now on. What a packet takes
// of it is the path MTU, or as many of them as it stands for. The congestion window begins anew.
func (q *QP) SetWindow(bytes int) {
	q.window = bytes
	if q.sending() {
		q.startWindow()
	}
}

// MaxLargePacket is the payload of the largest packet that ReceivePieces takes, in bytes.
const MaxLargePacket = 1 << 20

// SetLargestPacket has a reliable connection send packets of up to that many bytes of
// payload from now on, where its path has room for more than the path MTU; zero: the path
// MTU. A larger packet takes the sequence numbers of those that it stands for, so that a
// connection can change between paths while packets are under way. It is called in RTR or
// RTS, and holds until the queue pair is reset.
func (q *QP) SetLargestPacket(bytes uint32) {
	q.largest = max(min(bytes, MaxLargePacket)&^(q.mtu-1), q.mtu)
}

// SetLossless says that the path loses nothing, so that the connection measures no round
// trips. It takes effect with the transition to RTS.
func (q *QP) SetLossless() { q.lossless = true }

// packetsOf is how many packets of the path MTU carry n bytes.
func (q *QP) packetsOf(n uint32) int {
	return max(int((uint64(n)+uint64(q.mtu)-1)>>q.mtuShift), 1)
}

// Attr returns the attributes.
func (q *QP) Attr() verbs.QPAttr {
	a := q.attr
	a.State = q.state
	return a
}

// PostRecv posts receives to a queue that is the queue pair's own.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.rq.shared {
		return 0, fmt.Errorf("post receive on queue pair %#x: it has a shared receive queue, post there: %w", q.num, verbs.ErrInvalid)
	}
	if q.state == verbs.QPReset {
		return 0, fmt.Errorf("post receive on queue pair %#x in state %v: it must be Init or later: %w", q.num, q.state, verbs.ErrState)
	}
	n, err := q.rq.Post(wrs)
	if q.state == verbs.QPError {
		q.flush()
	}
	return n, err
}

// Receive takes a packet from the peer of a connection. That its checksum holds,
// that it came from the peer's address and that it names this queue pair has been
// checked.
func (q *QP) Receive(p *wire.Packet, now time.Duration) {
	if p.Opcode == wire.CNP {
		q.notified(now)
		return
	}
	if p.Opcode.Service() != q.service {
		q.counters.WrongService++ // dropped (IBTA 9.6)
		return
	}
	if p.BECN {
		q.notified(now)
	}
	q.whole[0] = p.Payload
	q.payload, q.payloadLen, q.payloadMax = q.whole[:], uint32(len(p.Payload)), q.mtu
	switch q.kind {
	case verbs.RC:
		q.receiveReliable(p, now)
	case verbs.UC:
		q.receiveUnreliable(p)
	}
}

// ReceivePieces is Receive for a packet of a reliable connection whose payload is that of
// pieces, as an Output gets it, and which may be larger than the path MTU: see
// SetLargestPacket. It must not be called by that Output's Send, in the midst of a
// Transmit of the same queue pair. Where the pieces can change, intact says whether they were
// what was sent when they had been copied; if not, the packet counts as lost, and what has been
// copied as not there. So it is if the pieces cannot be read, and ReceivePieces reports false.
func (q *QP) ReceivePieces(p *wire.Packet, pieces [][]byte, intact func() bool, now time.Duration) (readable bool) {
	if q.kind != verbs.RC || p.Opcode.Service() != q.service {
		q.counters.WrongService++
		return true
	}
	q.payload, q.payloadLen, q.payloadMax, q.intact = pieces, size(pieces), MaxLargePacket, intact
	q.receiveReliable(p, now)
	readable = !q.unreadable
	q.intact, q.unreadable = nil, false
	return readable
}

func (q *QP) receiveReliable(p *wire.Packet, now time.Duration) {
	switch p.Opcode {
	case wire.RCAcknowledge:
		q.receiveAck(p, now)
	case wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast, wire.RCReadResponseOnly:
		q.receiveRead(p, now)
	case wire.RCAtomicAcknowledge:
		q.receiveAtomic(p, now)
	default:
		q.receiveRequest(p)
	}
}

// changed reports whether the payload was no longer what was sent when it was copied, or could not
// be read.
func (q *QP) changed() bool {
	changed := q.intact != nil && !q.intact()
	return changed || q.unreadable
}

// Unreadable says that an Output could not read the payload of a packet that Send had taken. The
// request that it is of fails; if it is a response, the queue pair does.
func (q *QP) Unreadable(p *wire.Packet) {
	if p.Opcode.IsReadResponse() {
		q.failRefusing(wire.NakRemoteOperation)
		return
	}
	for i := q.sq.head; i != q.sq.tail; i++ {
		if w := q.sq.at(i); !w.local() && wire.PSNDiff(w.last, p.PSN) >= 0 {
			q.faulted(w)
			return
		}
	}
}

// faulted notes that memory of a request cannot be accessed: it fails when its turn comes.
func (q *QP) faulted(w *sendWQE) {
	w.fault = verbs.StatusLocalProtectionError
	q.rewind(q.unaPSN) // what comes before may have asked for no acknowledgement
}

// Transmit gives what is due to out, at most budget packets, and reports whether
// more is left that could leave at once. Datagrams go to the outputs of their
// address handles instead.
func (q *QP) Transmit(out Output, now time.Duration, budget int) bool {
	if q.notify && budget > 0 {
		budget--
		q.transmitNotification(out, now)
	}
	if q.kind != verbs.RC {
		return q.transmitUnreliable(out, now, budget)
	}
	if first := q.requestFirst; first {
		q.requestFirst = false
		if budget > 1 {
			q.transmitRequests(out, now, 1)
			budget--
		}
	}
	budget = q.transmitResponses(out, now, budget)
	return q.transmitRequests(out, now, budget) || q.responses.Len() > 0 && q.responsesAt == 0
}

// OnlyAcknowledges reports whether all that there is to send is a positive acknowledgement of a
// message that is complete.
func (q *QP) OnlyAcknowledges() bool {
	if q.kind != verbs.RC || q.message != noMessage || q.notify || q.responses.Len() != 1 || q.sendIdx != q.sq.tail || q.probe != noProbe {
		return false
	}
	r := q.responses.first()
	return r.kind == ackResponse && r.syndrome.Kind() == wire.KindAck
}

// RequestFirst has the next packet of a request leave before the acknowledgement that waits, so
// that they can be one train: all packets of a train have one size, but the last may be smaller. An
// acknowledgement is, unless the message is empty. A fenced request stays behind it: it may end the
// connection, and what came before has to be heard first.
func (q *QP) RequestFirst() {
	q.requestFirst = false
	if q.sendIdx != q.sq.tail {
		w := q.sq.at(q.sendIdx)
		q.requestFirst = w.length > 0 && w.wr.Flags&verbs.FlagFence == 0
	}
}

// Deadline is when Timeout is to be called; zero means never.
func (q *QP) Deadline() time.Duration {
	if q.kind != verbs.RC {
		return q.paceUntil
	}
	at := q.ackDeadline
	for _, other := range [...]time.Duration{q.rnrUntil, q.requestsAt, q.responsesAt} {
		if other != 0 && (at == 0 || other < at) {
			at = other
		}
	}
	return at
}

// Close ends the queue pair's part in what those of its device share, and what windows
// grant to its peer. It is the last call.
func (q *QP) Close() {
	q.endNotReady()
	q.revoked(nil)
	q.endWindows()
	q.dropReceives()
}

// dropReceives drops the receives that have not been polled; those in the queue stay. Places in
// a shared queue are free again.
func (q *QP) dropReceives() {
	n := 0
	if q.inReceive {
		n = 1
	}
	q.receives.Drop(n)
	q.inReceive = false
}

// reset empties everything, without completions (IBTA 10.3.1.1).
func (q *QP) reset() {
	q.revoked(nil)
	q.endWindows()
	q.sends.Drop(q.sq.Len())
	q.sq.empty()
	q.dropReceives()
	if !q.rq.shared {
		q.receives.Drop(q.rq.Len())
		q.rq.empty()
	}
	q.endNotReady()
	asked := q.asked
	asked.ends.empty()
	q.requester, q.adaptive, q.pacer = requester{asked: asked}, adaptive{}, pacer{}
	q.congestionControl = congestionControl{}
	q.responder = responder{responses: q.responses, current: recvWQE{segs: q.current.segs[:0]}, executed: q.executed}
	q.responses.empty()
	q.executed.empty()
	q.attr, q.largest, q.lossless, q.requestFirst = verbs.QPAttr{}, 0, false, false
}

// fail puts the queue pair in error and flushes it (IBTA 10.3.1.7).
func (q *QP) fail() {
	if q.state == verbs.QPError {
		return
	}
	q.state = verbs.QPError
	q.refusing = false
	q.revoked(nil)
	q.responses.dropReads()
	q.ackDeadline, q.rnrUntil, q.paceUntil, q.requestsAt, q.responsesAt = 0, 0, 0, 0, 0
	q.endNotReady()
	q.flush()
	if q.rq.shared {
		q.event(verbs.EventQPLastWQEReached)
	}
}

// flush completes everything posted with StatusFlushed. Receives on a shared
// queue stay there for its other queue pairs.
func (q *QP) flush() {
	q.flushSends()
	if q.inReceive {
		q.failReceive(verbs.StatusFlushed)
	}
	if q.rq.shared {
		return
	}
	for q.rq.take(&q.current) {
		q.failReceive(verbs.StatusFlushed)
	}
}

// flushSends does so for sends. One that the peer is known to have refused completes with the reason:
// a request before it, whose response was lost, has none to give.
func (q *QP) flushSends() {
	for q.sq.head != q.sq.tail {
		status := verbs.StatusFlushed
		if q.refusal.of(q.sq.at(q.sq.head)) {
			status, q.refusal = q.refusal.status, refusal{}
		}
		q.failSend(status)
	}
}

// failSend completes the oldest request with an error.
func (q *QP) failSend(status verbs.Status) {
	w := q.sq.at(q.sq.head)
	q.sq.head++
	q.sendCQ.Complete(verbs.WC{ID: w.wr.ID, Status: status, QPN: q.num}, q.sends.Add(), true)
}

func (q *QP) setPath(mtu verbs.MTU, ackTimeout uint8) {
	q.mtu = uint32(mtu)
	q.mtuShift = uint(bits.TrailingZeros32(q.mtu))
	q.largest = max(q.largest, q.mtu)
	q.firstRead = min(firstReadBytes>>q.mtuShift, maxFirstRead)
	q.readPackets = min(readBytes>>q.mtuShift, maxReadPackets)
	q.ackTimeout = 0
	if ackTimeout != 0 {
		q.ackTimeout = 4096 * time.Nanosecond << ackTimeout
	}
}
