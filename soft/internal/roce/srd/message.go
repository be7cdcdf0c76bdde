package srd

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// message is a send request, in one place of its queue pair's send queue.
type message struct {
	list       *messageList // that it is in; nil: none
	prev, next *message

	qp      *QP
	context *Context
	ah      *AH
	busy    bool
	gen     uint32 // counts the requests that have used this place

	id         uint64
	op         verbs.Opcode
	imm        uint32
	remoteAddr uint64
	rkey       uint32
	remoteQPN  uint32
	remoteQKey uint32
	segs       transport.Segments
	inline     []byte
	length     uint32

	mtu      uint32 // of its packets
	packets  uint32 // in all; zero: not yet known
	sent     uint32 // packets that have a sequence number
	finished uint32 // packets acknowledged or answered

	waitUntil  time.Duration // when to repeat the request after an RNR NAK
	rnrRetries uint8         // left
	rnrTries   uint8
}

// size returns the payload of a packet of the message, or of the response to it.
func (m *message) size(index uint32) uint32 { return min(m.mtu, m.length-index*m.mtu) }

// lastWaits reports whether the only packet not yet sent is one that must arrive last.
func (m *message) lastWaits() bool {
	return m.op == verbs.OpWriteImm && m.sent == m.packets-1 && m.finished < m.packets-1
}

// succeed completes the request.
func (m *message) succeed() {
	q, id, op, n := m.qp, m.id, transport.CompletionOpcodes[m.op], m.length
	if op == verbs.WCSend {
		q.t.counters.Sends++
	}
	m.release()
	q.sendCQ.Complete(verbs.WC{ID: id, Opcode: op, Bytes: n, QPN: q.num}, q.sends.Add(), false)
}

// fail completes the request with an error. Answers to its packets under way are ignored.
func (m *message) fail(c code) {
	q := m.qp
	wc := verbs.WC{ID: m.id, Status: statuses[c], Opcode: transport.CompletionOpcodes[m.op], VendorError: uint32(c), QPN: q.num}
	m.release()
	q.sendCQ.Complete(wc, q.sends.Add(), true)
}

// release frees the place.
func (m *message) release() {
	if m.list != nil {
		m.list.remove(m)
	}
	if m.context != nil {
		m.context.outstanding--
	}
	m.ah.outstanding--
	m.gen++
	m.busy, m.context, m.ah = false, nil, nil
	clear(m.segs) // so that the collector can free the program's memory before the place is used again
	q := m.qp
	m.next, q.free = q.free, m
}

// messageList is a list of messages. Every operation takes constant time.
type messageList struct{ first, last *message }

func (l *messageList) pushBack(m *message) {
	m.list, m.prev, m.next = l, l.last, nil
	if l.last == nil {
		l.first = m
	} else {
		l.last.next = m
	}
	l.last = m
}

func (l *messageList) pushFront(m *message) {
	m.list, m.prev, m.next = l, nil, l.first
	if l.first == nil {
		l.last = m
	} else {
		l.first.prev = m
	}
	l.first = m
}

func (l *messageList) remove(m *message) {
	if m.prev == nil {
		l.first = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		l.last = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.list, m.prev, m.next = nil, nil, nil
}
