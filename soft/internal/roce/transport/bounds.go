package transport

import (
	"math/bits"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// bounds are the limits that the path and the peer set.
type bounds struct {
	mtu         uint32
	largest     uint32 // the payload of the largest packet to send
	mtuShift    uint
	firstRead   int // the most response packets that one read request asks for, at first
	readPackets int // the same on a steady path; both are powers of two
	window      int
	maxInitRead int           // the most reads and atomics under way
	ackTimeout  time.Duration // zero: for ever
	lossless    bool          // set by SetLossless
	adapts      bool          // the connection measures the round trip: see Config.Adaptive
}

// SetWindow bounds the bytes under way from now on. A packet counts as one path MTU, or as
// several if it takes several sequence numbers. The congestion window begins anew.
func (q *QP) SetWindow(bytes int) {
	q.window = bytes
	if q.sending() {
		q.startWindow()
	}
}

// MaxLargePacket is the payload of the largest packet that ReceivePieces takes, in bytes.
const MaxLargePacket = 1 << 20

// SetLargestPacket lets a reliable connection send packets of up to that many bytes of payload
// from now on, on a path that has room for more than the path MTU. Zero means the path MTU. A
// larger packet takes the sequence numbers of the packets that it replaces, so that a
// connection can change paths while packets are under way. SetLargestPacket is called in RTR
// or RTS, and holds until the queue pair is reset.
func (q *QP) SetLargestPacket(bytes uint32) {
	q.largest = max(min(bytes, MaxLargePacket)&^(q.mtu-1), q.mtu)
}

// SetLossless says that the path loses nothing, so the connection measures no round trips. It
// takes effect with the transition to RTS.
func (q *QP) SetLossless() { q.lossless = true }

// packetsOf returns how many packets of the path MTU carry n bytes.
func (q *QP) packetsOf(n uint32) int {
	return max(int((uint64(n)+uint64(q.mtu)-1)>>q.mtuShift), 1)
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

// steadiness measures for how many packets nothing was lost or late. On a steady path, a read
// request asks for more, and a long message asks for fewer acknowledgements. That makes both
// cheaper, but a repetition more expensive, and the need for it is noticed later.
type steadiness struct {
	level   uint // pieces are 2^level times as long as at first
	packets int  // packets that arrived since the level changed, or one was late
}

const (
	maxLevel = 3
	// steadyPackets is how many packets have to arrive for the next level.
	steadyPackets = 1 << 14
)

// arrived notes packets that the peer has acknowledged, or has responded with.
func (s *steadiness) arrived(packets int) {
	if s.level == maxLevel {
		return
	}
	if s.packets += packets; s.packets >= steadyPackets {
		s.level++
		s.packets = 0
	}
}

// late notes that an answer was late.
func (s *steadiness) late() {
	s.packets = 0
	if s.level > 0 {
		s.level--
	}
}

// lost notes that packets must be repeated.
func (s *steadiness) lost() { *s = steadiness{} }
