package transport

import (
	"fmt"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// checkDatagram says what keeps a request from being sent as a datagram.
func (q *QP) checkDatagram(wr *verbs.SendWR, total uint64) error {
	switch {
	case total > uint64(q.mtu):
		// IBTA 10.8 (C10-93.1.1) would have it vanish without a word.
		return fmt.Errorf("message of %d bytes, a datagram has at most the path MTU of the port, %d: %w", total, q.mtu, verbs.ErrInvalid)
	case wr.RemoteQPN == 0 || wr.RemoteQPN > 0xffffff:
		return fmt.Errorf("RemoteQPN is %#x, it must be from 1 to 0xffffff: %w", wr.RemoteQPN, verbs.ErrInvalid)
	}
	return q.checkAH(wr.AH, wr.RemoteQPN)
}

// controlled is the bit of a Q_Key in a send request that asks for the queue
// pair's own instead (IBTA 10.2.5).
const controlled = 1 << 31

// addressDatagram fills in what the packet of a datagram has besides its data.
func (q *QP) addressDatagram(p *wire.Packet, w *sendWQE) {
	p.DestQP = w.wr.RemoteQPN
	p.DETH = wire.DETH{QKey: w.wr.RemoteQKey, SrcQP: q.num}
	if p.DETH.QKey&controlled != 0 {
		p.DETH.QKey = q.attr.QKey
	}
}

// ReceiveDatagram takes a packet from anybody (IBTA 9.8.3). That its checksum
// holds and that it names this queue pair has been checked. The header is what
// the program sees in front of the data, and the UDP port that by which the sender can be
// answered, if it is not that of RoCEv2; otherwise zero.
//
// A datagram that finds no receive, or a receive too small for header and data,
// is dropped, and the receive stays for the next one (IBTA 9.9.3, class D). The
// kernel's soft-RoCE driver drops the former too, but fails the receive and the
// queue pair for the latter (seen with Linux 6.1), which lets anybody with the
// Q_Key end it.
func (q *QP) ReceiveDatagram(p *wire.Packet, header *[verbs.GRHLen]byte, udpPort uint16) {
	if p.Opcode == wire.CNP {
		q.counters.NotificationsIgnored++
		return
	}
	if q.kind != verbs.UD || p.Opcode.Service() != wire.ServiceUD {
		q.counters.WrongService++
		return
	}
	if !q.receiving() {
		q.counters.WrongState++
		return
	}
	if p.DETH.QKey != q.attr.QKey {
		q.counters.QKeyViolations++
		return
	}
	n := uint32(len(p.Payload))
	if n > q.mtu || !q.holdReceive() {
		q.counters.DatagramsDropped++
		return
	}
	if !q.current.fault && verbs.GRHLen+n > q.current.length {
		q.counters.DatagramsDropped++
		return
	}
	q.received, q.replyPort = 0, udpPort
	if status := q.fillReceive(header[:], p.Payload); status != verbs.StatusSuccess {
		q.failReceiver(status)
		return
	}
	q.finishReceive(p, verbs.WCRecv, q.received)
}
