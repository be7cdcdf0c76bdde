package transport

import (
	"math/bits"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// bounds are what the path and the peer allow.
type bounds struct {
	mtu         uint32
	largest     uint32 // the payload of the largest packet that it sends
	mtuShift    uint
	firstRead   int // packets of response that one read request asks for at most, at first
	readPackets int // the same in the end; both are powers of two
	window      int
	maxInitRead int           // reads and atomics under way
	ackTimeout  time.Duration // zero: for ever
	lossless    bool          // of SetLossless
	adapts      bool          // this connection measures the round trip: see Config.Adaptive
}

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

// SetLargestPacket lets a reliable connection send packets of up to that many bytes of payload
// from now on, where its path has room for more than the path MTU; zero: the path
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

// steadiness says for how many packets nothing was lost or late. The more, the more a read
// request asks for, and the fewer acknowledgements a long message asks for: both cost less then,
// while a repetition, or the time until it is known to be needed, costs more.
type steadiness struct {
	level   uint // by which power of two pieces are longer than at first
	packets int  // that have arrived since the level changed, or one was late
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

// late notes that an answer was missed for a moment.
func (s *steadiness) late() {
	s.packets = 0
	if s.level > 0 {
		s.level--
	}
}

// lost notes that packets have to be repeated.
func (s *steadiness) lost() { *s = steadiness{} }
