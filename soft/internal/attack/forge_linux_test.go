package attack

import (
	"errors"
	"syscall"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// forgery is a kind of packet that pretends to come from the peer of a connection.
type forgery int

const (
	naks forgery = iota
	acks
	notReady // receiver-not-ready NAKs
	responses
	sends
	writes
	atomics
	notifications // CNPs
)

// sendersToAll returns a sender to each end that pretends to be its peer; nil if the attacker may
// not do that.
func (a *attacker) sendersToAll() ([]*sender, error) {
	senders := make([]*sender, 4)
	for to := range senders {
		var err error
		if senders[to], err = a.senderAs(to^2, to); errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
	}
	return senders, nil
}

// forge sends the case's forged packets to all ends, with correct numbers.
func forge(a *attacker) error {
	senders, err := a.sendersToAll()
	if err != nil || senders == nil {
		return err
	}
	for !a.stopped() {
		for _, kind := range a.row.forges {
			for to, s := range senders {
				a.forge(s, kind, to)
			}
		}
	}
	return nil
}

var forged = []byte("forged: nobody has sent this here")

// forge sends a few packets of one kind to an end.
func (a *attacker) forge(s *sender, kind forgery, to int) {
	peer, victim := a.page.slot(to^2), a.page.slot(to)
	p := wire.Packet{DestQP: peer.get(slotQPN), AckReq: true}
	request := func(op wire.Opcode) {
		p.Opcode = op
		for ahead := range 4 { // a busy connection advances meanwhile
			p.PSN = wire.PSNAdd(peer.get(slotNext), ahead)
			s.send(&p)
		}
	}
	response := func(op wire.Opcode, syndrome wire.Syndrome) {
		p.Opcode, p.AETH.Syndrome = op, syndrome
		for behind := range 8 {
			p.PSN = wire.PSNAdd(victim.get(slotNext), 1-behind)
			s.send(&p)
		}
	}
	switch kind {
	case naks:
		response(wire.RCAcknowledge, wire.Nak(wire.NakRemoteAccess))
	case acks:
		response(wire.RCAcknowledge, wire.Ack(wire.AckUnlimited))
	case notReady:
		response(wire.RCAcknowledge, wire.RNRNak(0))
	case responses:
		p.Payload = make([]byte, 1024)
		response(wire.RCReadResponseMiddle, 0)
		response(wire.RCReadResponseFirst, wire.Ack(wire.AckUnlimited))
	case sends:
		p.Payload = forged
		request(wire.RCSendOnly)
	case writes:
		p.Payload = forged
		p.RETH = wire.RETH{VA: a.ends[to].Guard, RKey: a.ends[to].RKey, Length: uint32(len(forged))}
		request(wire.RCWriteOnly)
	case atomics:
		p.Atomic = wire.AtomicETH{VA: a.ends[to].Guard, RKey: a.ends[to].RKey, SwapAdd: 1}
		request(wire.RCFetchAdd)
	case notifications:
		p.Opcode = wire.CNP
		s.send(&p)
	}
}

// guessNumbers forges packets of one kind with random sequence numbers, and random queue pairs
// too unless those are known.
func guessNumbers(kind forgery, knowsQPN bool) func(*attacker) error {
	return func(a *attacker) error {
		senders, err := a.sendersToAll()
		if err != nil || senders == nil {
			return err
		}
		for !a.stopped() {
			for to, s := range senders {
				p := wire.Packet{Opcode: wire.RCSendOnly, DestQP: a.rng.Uint32N(1<<24-2) + 2, PSN: a.rng.Uint32() & wire.PSNMask, Payload: forged}
				if knowsQPN {
					p.DestQP = a.page.slot(to ^ 2).get(slotQPN)
				}
				if kind == naks {
					p.Opcode, p.Payload, p.AETH.Syndrome = wire.RCAcknowledge, nil, wire.Nak(wire.NakRemoteAccess)
				}
				s.send(&p)
			}
		}
		return nil
	}
}

// forgeDatagrams sends messages that pretend to come from an endpoint.
func forgeDatagrams(a *attacker) error {
	senders, err := a.sendersToAll()
	if err != nil || senders == nil {
		return err
	}
	for !a.stopped() {
		for to, s := range senders {
			from := a.page.slot(to ^ 2)
			p := wire.Packet{Opcode: wire.UDSendOnly, DestQP: a.ends[to].QPN, PSN: a.rng.Uint32() & wire.PSNMask, Payload: forged}
			p.DETH = wire.DETH{QKey: defaultQKey, SrcQP: a.ends[to^2].QPN}
			if a.row.connectBy == bySRD {
				p.Opcode, p.PSN = wire.SRDSend, from.get(slotNext)
				p.SRDETH = wire.SRDETH{Source: max(1, from.get(slotSource)), Target: from.get(slotTarget), MTU: 5}
			}
			s.send(&p)
		}
	}
	return nil
}
