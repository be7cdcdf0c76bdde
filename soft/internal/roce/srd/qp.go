package srd

import (
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The limits of EFA. Its adapters differ only in MaxInline and MaxRDMA.
const (
	MaxSendWR  = 4096
	MaxRecvWR  = 32768
	MaxSendSGE = 2
	MaxRecvSGE = 2
	MaxRDMASGE = 1 // of a read or write
	MaxInline  = 32
	MaxRDMA    = 1 << 30
)

// Completer takes completions.
type Completer interface {
	transport.Completer
	// CompleteFrom queues the completion of a receive. number is that of the sender's address
	// handle; if it is verbs.NoAH, gid names the sender.
	CompleteFrom(wc verbs.WC, frees transport.QueueEntries, number uint16, gid verbs.GID)
	// Room reports whether there is room for another completion besides the given number of
	// others.
	Room(others int) bool
}

// QPConfig configures a queue pair.
type QPConfig struct {
	Num         uint32
	Domain      uint32
	Send, Recv  Completer
	SendDepth   int
	RecvDepth   int
	MaxSendSGE  int
	MaxRecvSGE  int
	MaxInline   int
	SignalAll   bool
	Unsolicited bool // QPInit.UnsolicitedWriteRecv
	// CheckAH returns the AH of an address handle, or an error that says what is wrong with
	// it.
	CheckAH func(ah verbs.AH, remoteQPN uint32) (*AH, error)
}

// QP is a queue pair. It has no peer: its requests belong to the contexts of their address
// handles.
type QP struct {
	t              *Transport
	num, domain    uint32
	sendCQ, recvCQ Completer
	depth          int
	maxSGE         int
	maxInline      int
	signalAll      bool
	unsolicited    bool
	checkAH        func(ah verbs.AH, remoteQPN uint32) (*AH, error)

	state verbs.QPState
	attr  verbs.QPAttr

	messages []*message  // all places made so far
	free     *message    // places not in use
	drained  messageList // posted in SQD
	taken    int         // places of the send queue, including those of requests that are done
	sends    transport.Unpolled

	rq        *transport.RecvQueue
	receives  transport.Unpolled
	current   transport.Receive
	inReceive bool // current was taken from the queue and is not completed
}

// NewQP returns a queue pair in the state Reset.
func (t *Transport) NewQP(c QPConfig) *QP {
	q := &QP{
		t: t, num: c.Num, domain: c.Domain, sendCQ: c.Send, recvCQ: c.Recv, depth: c.SendDepth,
		maxSGE: max(c.MaxSendSGE, 1), maxInline: c.MaxInline, signalAll: c.SignalAll, unsolicited: c.Unsolicited,
		checkAH: c.CheckAH, rq: transport.NewRecvQueue(t.cfg.Memory, c.Domain, c.RecvDepth, c.MaxRecvSGE),
	}
	q.sends, q.receives = transport.NewUnpolled(&q.taken), q.rq.Unpolled()
	t.qps[q.num] = q
	return q
}

// State returns the present state.
func (q *QP) State() verbs.QPState { return q.state }

// Attr returns the attributes.
func (q *QP) Attr() verbs.QPAttr {
	a := q.attr
	a.State = q.state
	return a
}

// Close ends the queue pair, without completions.
func (q *QP) Close() {
	q.reset()
	q.state = verbs.QPReset
	delete(q.t.qps, q.num)
	if q.t.lastQP == q {
		q.t.lastQP = nil
	}
}

var limits = rules.Limits{Ports: 1, PKeys: 1}

// Modify changes attributes and state; a refused change changes nothing.
func (q *QP) Modify(a verbs.QPAttr, mask verbs.QPAttrMask, now time.Duration) error {
	to := q.state
	if mask&verbs.QPAttrState != 0 {
		to = a.State
	}
	if err := rules.CheckTransition(verbs.SRD, q.state, &a, mask, limits); err != nil {
		return fmt.Errorf("modify queue pair %#x, %v to %v: %w: %w", q.num, q.state, to, err, verbs.ErrInvalid)
	}
	switch to {
	case verbs.QPReset:
		q.reset()
	case verbs.QPError:
		q.state = to
		q.flush()
	default:
		rules.Assign(&q.attr, &a, mask)
		q.state = to
		if to == verbs.QPReadyToSend {
			q.resume(now)
		}
	}
	return nil
}

// reset drops everything, without completions (IBTA 10.3.1.1).
func (q *QP) reset() {
	busy := 0
	for _, m := range q.messages {
		if m.busy {
			busy++
			m.release()
		}
	}
	q.sends.Drop(busy)
	q.receives.Drop(0)
	q.rq.Clear()
	q.inReceive = false
	q.attr = verbs.QPAttr{}
	q.state = verbs.QPReset
}

// flush completes all posted requests with StatusFlushed.
func (q *QP) flush() {
	for _, m := range q.messages {
		if m.busy {
			m.fail(codeFlushed)
		}
	}
	for q.takeReceive() {
		q.failReceive(verbs.StatusFlushed)
	}
}

// resume sends the requests that were posted in SQD.
func (q *QP) resume(now time.Duration) {
	for m := q.drained.first; m != nil; m = q.drained.first {
		q.drained.remove(m)
		if c, err := q.t.context(m.ah, now); err == nil {
			q.enqueue(m, c)
		} else {
			m.fail(codeInvalidAH)
		}
	}
}

// enqueue adds a message to the context of its address handle.
func (q *QP) enqueue(m *message, c *Context) {
	m.context = c
	if c.outstanding == 0 && c.inFlight == 0 { // earlier requests may have ended without an answer
		c.helloPending = false
		c.silent, c.repeated, c.expired = 0, 0, 0
	}
	c.outstanding++
	c.queue.pushBack(m)
	q.t.activate(c)
}

// receiving reports whether the queue pair executes requests of peers in its state.
func (q *QP) receiving() bool {
	switch q.state {
	case verbs.QPReadyToReceive, verbs.QPReadyToSend, verbs.QPSendQueueDrained:
		return true
	}
	return false
}

// PostRecv posts receives. As on EFA, it cannot be done in the state Error.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.state == verbs.QPReset || q.state == verbs.QPError {
		return 0, fmt.Errorf("post receive on queue pair %#x in state %v: the state must be Init, RTR, RTS or SQD: %w", q.num, q.state, verbs.ErrState)
	}
	return q.rq.Post(wrs)
}

// takeReceive makes sure that a receive is in use: one that was taken before and not completed, or
// the next. It reports false if there is none.
func (q *QP) takeReceive() bool {
	if !q.inReceive {
		q.inReceive = q.rq.Take(&q.current)
	}
	return q.inReceive
}

func (q *QP) failReceive(status verbs.Status) {
	q.inReceive = false
	q.recvCQ.Complete(verbs.WC{ID: q.current.ID(), Status: status, Opcode: verbs.WCRecv, QPN: q.num}, q.receives.Add(), true)
}

// receiveSend places a message. A receive that is too short for it stays for the next one.
func (q *QP) receiveSend(c *Context, p *wire.Packet) code {
	if !q.takeReceive() {
		return codeNotReady
	}
	if len(p.Payload) > int(q.current.Len()) {
		return codeBadLength
	}
	if status := q.current.Fill(p.Payload); status != verbs.StatusSuccess {
		q.failReceive(status)
		return codeBadStatus
	}
	q.completeReceive(c, p, verbs.WCRecv, uint32(len(p.Payload)))
	return codeOK
}

// completeReceive completes the receive in use. A write with immediate to an Unsolicited queue
// pair uses none, so it only queues a completion.
func (q *QP) completeReceive(c *Context, p *wire.Packet, op verbs.WCOpcode, n uint32) {
	q.t.counters.Receives++
	wc := verbs.WC{Opcode: op, Bytes: n, QPN: q.num, SrcQPN: p.DETH.SrcQP}
	var frees transport.QueueEntries
	if op == verbs.WCRecvWriteImm && q.unsolicited {
		wc.Unsolicited = true
	} else {
		q.inReceive = false
		wc.ID = q.current.ID()
		frees = q.receives.Add()
	}
	if p.Opcode.HasImm() {
		wc.HasImm, wc.Imm = true, p.Imm
	}
	if port := c.addr.Peer.Port(); port != wire.UDPPort {
		wc.SrcUDPPort = port
	}
	number, gid := c.source()
	q.recvCQ.CompleteFrom(wc, frees, number, gid)
}

// PostSend posts send requests and returns how many were accepted.
func (q *QP) PostSend(wrs []verbs.SendWR, now time.Duration) (int, error) {
	if q.state != verbs.QPReadyToSend && q.state != verbs.QPSendQueueDrained {
		return 0, fmt.Errorf("post send on queue pair %#x in state %v: the state must be RTS or SQD: %w", q.num, q.state, verbs.ErrState)
	}
	for i := range wrs {
		if err := q.postSend(&wrs[i], now); err != nil {
			return i, fmt.Errorf("post send %d of %d (%v) on queue pair %#x: %w", i+1, len(wrs), wrs[i].Op, q.num, err)
		}
	}
	return len(wrs), nil
}

// check returns an error that says why a request cannot be posted, or nil.
func (q *QP) check(wr *verbs.SendWR) error {
	if err := rules.CheckRequest(verbs.SRD, wr.Op, wr.Flags); err != nil {
		return err
	}
	isSend := wr.Op == verbs.OpSend || wr.Op == verbs.OpSendImm
	inline := wr.Flags&verbs.FlagInline != 0
	var total uint64
	for i := range wr.SGL {
		total += uint64(wr.SGL[i].Length)
	}
	switch {
	case wr.Flags&verbs.FlagSignaled == 0 && !q.signalAll:
		return fmt.Errorf("SRD requests must be signaled: set FlagSignaled or QPInit.SignalAll: %w", verbs.ErrInvalid)
	case q.taken >= q.depth:
		return fmt.Errorf("all %d entries of the send queue are in use; poll completions to free some: %w", q.depth, verbs.ErrQueueFull)
	case !inline && len(wr.SGL) > q.maxSGE:
		return fmt.Errorf("%d scatter-gather entries exceed the limit of %d: %w", len(wr.SGL), q.maxSGE, verbs.ErrInvalid)
	case !isSend && len(wr.SGL) > MaxRDMASGE:
		return fmt.Errorf("%d scatter-gather entries exceed the limit of %d for SRD reads and writes: %w", len(wr.SGL), MaxRDMASGE, verbs.ErrInvalid)
	case inline && total > uint64(q.maxInline):
		return fmt.Errorf("%d bytes of inline data exceed the limit of %d: %w", total, q.maxInline, verbs.ErrInvalid)
	case isSend && total > uint64(q.t.cfg.MTU):
		return fmt.Errorf("message of %d bytes exceeds the path MTU of the port, %d, which limits SRD sends: %w", total, q.t.cfg.MTU, verbs.ErrInvalid)
	case total > MaxRDMA:
		return fmt.Errorf("message of %d bytes exceeds the limit of %d: %w", total, MaxRDMA, verbs.ErrInvalid)
	case wr.RemoteQPN == 0 || wr.RemoteQPN > 0xffffff:
		return fmt.Errorf("RemoteQPN is %#x, must be from 1 to 0xffffff: %w", wr.RemoteQPN, verbs.ErrInvalid)
	}
	return nil
}

func (q *QP) postSend(wr *verbs.SendWR, now time.Duration) error {
	if err := q.check(wr); err != nil {
		return err
	}
	ah, err := q.checkAH(wr.AH, wr.RemoteQPN)
	if err != nil {
		return err
	}
	c, err := q.t.context(ah, now)
	if err != nil {
		return err
	}
	m := q.allocMessage()
	m.busy, m.ah = true, ah
	m.id, m.op, m.imm, m.remoteAddr, m.rkey = wr.ID, wr.Op, wr.Imm, wr.RemoteAddr, wr.RKey
	m.remoteQPN, m.remoteQKey = wr.RemoteQPN, transport.DatagramQKey(wr.RemoteQKey, q.attr.QKey)
	m.packets, m.sent, m.finished = 0, 0, 0
	m.rnrRetries, m.rnrTries = q.attr.RNRRetry, 0
	ah.outstanding++
	q.taken++
	if !q.fill(m, wr) {
		m.fail(codeInvalidLKey)
		return nil
	}
	if q.state == verbs.QPSendQueueDrained {
		q.drained.pushBack(m)
		return nil
	}
	q.enqueue(m, c)
	return nil
}

// fill copies the inline data of a request, or resolves its segments. It reports false if they
// name memory that the request must not use.
func (q *QP) fill(m *message, wr *verbs.SendWR) bool {
	if wr.Flags&verbs.FlagInline != 0 {
		var err error
		m.inline, err = q.t.cfg.Memory.AppendInline(m.inline[:0], wr.SGL)
		m.segs, m.length = m.segs.Inline(m.inline), uint32(len(m.inline))
		return err == nil
	}
	access := verbs.Access(0)
	if wr.Op == verbs.OpRead {
		access = verbs.AccessLocalWrite
	}
	segs, total, ok := q.t.cfg.Memory.Resolve(m.segs, wr.SGL, q.domain, access)
	m.segs, m.length = segs, uint32(total)
	return ok
}

// messageBatch is how many places are allocated at a time, so that a queue pair with little
// use takes little memory.
const messageBatch = 8

// allocMessage returns a free place. The caller has checked that there is one.
func (q *QP) allocMessage() *message {
	if q.free == nil {
		n := min(messageBatch, q.depth-len(q.messages))
		for i, places := 0, make([]message, n); i < n; i++ {
			m := &places[i]
			m.qp = q
			q.messages = append(q.messages, m)
			m.next, q.free = q.free, m
		}
	}
	m := q.free
	q.free, m.next = m.next, nil
	return m
}

// reservedCompletions returns how many completions of the receive side's completion queue belong to
// requests that the queue pair has posted or can post.
func (q *QP) reservedCompletions() int {
	n := q.rq.Len()
	if q.sendCQ == q.recvCQ {
		n += q.depth - q.sends.Len()
	}
	return n
}
