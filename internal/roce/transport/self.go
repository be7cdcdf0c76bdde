package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/wire"
)

// selfMTU is the payload of a packet from a queue pair to itself, which crosses
// no network: as much as the device is to copy in one go. A power of two, as every
// path MTU.
const selfMTU = 1 << 20

// SetSelf says whether the connection leads back to this queue pair, so that its
// packets go to ReceiveSelf and nowhere else. It counts from the transition to RTR
// on.
func (q *QP) SetSelf(self bool) { q.selfNext = self }

// Self reports whether the connection leads back to this queue pair.
func (q *QP) Self() bool { return q.self }

// ReceiveSelf takes a packet that the queue pair has just given to its Output, with
// the payload as it was there, and returns the payload's size in bytes.
func (q *QP) ReceiveSelf(p *wire.Packet, pieces [][]byte, now time.Duration) int {
	q.payload, q.payloadLen = pieces, size(pieces)
	q.receiveReliable(p, now)
	return int(q.payloadLen)
}
