package attack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// target asks the right victim for a queue pair that is connected to the attacker.
func (a *attacker) target(what string) (*sender, target, error) {
	s, err := a.socket(a.ends[2+busy].Addr)
	if err != nil {
		return nil, target{}, err
	}
	t, err := a.retarget(s, what)
	return s, t, err
}

// retarget asks for another queue pair.
func (a *attacker) retarget(s *sender, what string) (target, error) {
	answer, err := a.ask(message{Kind: "target", Addresses: addrs(s.from), Text: what})
	if err == nil && answer.Text != "" {
		err = fmt.Errorf("connect the victim to the attacker: %s", answer.Text)
	}
	return answer.Target, err
}

// receive returns the next packet, or nil if none arrives in time.
func (s *sender) receive(b []byte, within time.Duration) *wire.Packet {
	_ = s.conn.SetReadDeadline(time.Now().Add(within))
	n, _, err := s.conn.ReadFromUDPAddrPort(b)
	p := &wire.Packet{}
	if err != nil || p.Parse(b[:n]) != nil {
		return nil
	}
	return p
}

// unlessStopped returns an attack's error, or nil if the attack was stopped.
func (a *attacker) unlessStopped(err error) error {
	if a.stopped() {
		return nil
	}
	return err
}

// guessWithOldReads tries keys in READs with old sequence numbers.
func guessWithOldReads(a *attacker) error {
	s, t, err := a.target("")
	if err != nil {
		return a.unlessStopped(err)
	}
	b := make([]byte, wire.MaxDatagramLen)
	refusals := 0
	for !a.stopped() {
		for range 32 {
			p := wire.Packet{Opcode: wire.RCReadRequest, DestQP: t.QPN, PSN: wire.PSNAdd(attackerPSN, -1)}
			p.RETH = wire.RETH{VA: t.Secret, RKey: a.rng.Uint32(), Length: 8}
			s.send(&p)
		}
		for p := s.receive(b, time.Millisecond); p != nil; p = s.receive(b, time.Millisecond) {
			if p.Opcode.IsReadResponse() {
				a.achieved(leaked, "a key was guessed after %d packets", s.sent)
			} else if refusals++; refusals == 100 {
				a.achieved(guessed, "100 keys were tried by one queue pair, which is not in error")
			}
		}
	}
	return nil
}

// A host may try triesAtOnce keys at once, and then triesPerSecond.
const (
	triesAtOnce    = 128
	triesPerSecond = 2
)

// guessAndReconnect tries keys with the expected sequence numbers. Each wrong key ends the
// connection, and the attacker makes another.
func guessAndReconnect(a *attacker) error {
	s, t, err := a.target("")
	b := make([]byte, wire.MaxDatagramLen)
	began, refusals := time.Now(), 0
	for err == nil && !a.stopped() {
		p := wire.Packet{Opcode: wire.RCReadRequest, DestQP: t.QPN, PSN: attackerPSN}
		p.RETH = wire.RETH{VA: t.Secret, RKey: a.rng.Uint32(), Length: 8}
		s.send(&p)
		if p := s.receive(b, 100*time.Millisecond); p != nil {
			if p.Opcode.IsReadResponse() {
				a.achieved(leaked, "a key was guessed after %d packets", s.sent)
			}
			refusals++
		}
		if allowed := triesAtOnce + triesPerSecond*int(time.Since(began).Seconds()); refusals > allowed {
			a.achieved(guessed, "%d keys were tried in %v", refusals, time.Since(began))
			return nil
		}
		t, err = a.retarget(s, "")
	}
	return a.unlessStopped(err)
}

// readAndFallSilent requests 10 GiB, and sends nothing else.
func readAndFallSilent(a *attacker) error {
	s, t, err := a.target("")
	if err != nil {
		return a.unlessStopped(err)
	}
	const reads = 40
	for i := range reads {
		p := wire.Packet{Opcode: wire.RCReadRequest, DestQP: t.QPN, PSN: wire.PSNAdd(attackerPSN, i*packetsOf(targetBytes, targetMTU))}
		p.RETH = wire.RETH{VA: t.Addr64, RKey: t.RKey, Length: targetBytes}
		s.send(&p)
	}
	const limit = 64 << 20
	b := make([]byte, wire.MaxDatagramLen)
	for got := 0; !a.stopped(); {
		_ = s.conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		n, _, _ := s.conn.ReadFromUDPAddrPort(b)
		if got += n; got > limit+limit/8 && got-n <= limit+limit/8 {
			a.achieved(amplified, "more than %d MiB came from one who has heard nothing", limit>>20)
		}
	}
	return nil
}

// neverReady answers every message with a receiver-not-ready NAK.
func neverReady(a *attacker) error {
	s, t, err := a.target("sends")
	if err != nil {
		return a.unlessStopped(err)
	}
	b := make([]byte, wire.MaxDatagramLen)
	for !a.stopped() {
		if p := s.receive(b, 10*time.Millisecond); p != nil {
			s.send(&wire.Packet{Opcode: wire.RCAcknowledge, DestQP: t.QPN, PSN: p.PSN, AETH: wire.AETH{Syndrome: wire.RNRNak(0)}})
		}
	}
	return nil
}

// nonsense sends requests and responses of all kinds with wrong contents, on one connection
// after the other.
func nonsense(a *attacker) error {
	s, t, err := a.target("sends")
	b := make([]byte, wire.MaxDatagramLen)
	for err == nil && !a.stopped() {
		for psn := uint32(attackerPSN); psn < attackerPSN+16; psn++ {
			s.send(a.nonsense(&t, psn))
		}
		for p := s.receive(b, time.Millisecond); p != nil; p = s.receive(b, time.Millisecond) {
			if len(p.Payload) >= 8 && binary.LittleEndian.Uint64(p.Payload) == t.SecretWord {
				a.achieved(leaked, "a response has memory without its key")
			}
		}
		t, err = a.retarget(s, "sends")
	}
	return a.unlessStopped(err)
}

func (a *attacker) nonsense(t *target, psn uint32) *wire.Packet {
	pick := func(of ...uint64) uint64 { return of[a.rng.IntN(len(of))] }
	p := &wire.Packet{DestQP: t.QPN, PSN: psn, AckReq: a.rng.IntN(2) == 0}
	for p.Opcode = 0xff; !p.Opcode.Known() || p.Opcode.Service() == wire.ServiceSRD; {
		p.Opcode = wire.Opcode(a.rng.IntN(0x90))
	}
	if a.rng.IntN(2) == 0 { // a response
		p.PSN = wire.PSNAdd(targetPSN, a.rng.IntN(targetMessages+2)-1)
	}
	va := pick(t.Addr64, t.Secret, t.Secret-8, t.Addr64+targetBytes-1, 0, 1<<64-1)
	key := uint32(pick(uint64(t.RKey), uint64(t.RKey), 0, uint64(a.rng.Uint32())))
	p.RETH = wire.RETH{VA: va, RKey: key, Length: uint32(pick(0, 1, 8, 1024, 1<<30, 1<<32-1))}
	p.Atomic = wire.AtomicETH{VA: va, RKey: key, SwapAdd: a.rng.Uint64(), Compare: a.rng.Uint64()}
	p.AETH = wire.AETH{Syndrome: wire.Syndrome(a.rng.Uint32()), MSN: a.rng.Uint32()}
	p.DETH, p.InvalidateRKey, p.AtomicAck = wire.DETH{QKey: defaultQKey, SrcQP: attackerQPN}, t.RKey, a.rng.Uint64()
	if p.Opcode.HasPayload() {
		p.Payload = bytes.Repeat([]byte{0xbd}, int(pick(0, 1, 8, 1023, 1024, 1025, 4096)))
	}
	return p
}

// floodBytes sends random bytes, and packets with a wrong ICRC, to every end.
func floodBytes(a *attacker) error {
	var senders [4]*sender
	for to := range senders {
		var err error
		if senders[to], err = a.senderAs(to^2, to); err != nil {
			return err
		}
	}
	b := make([]byte, 256)
	for !a.stopped() {
		for to, s := range senders {
			for i := range b {
				b[i] = byte(a.rng.Uint32())
			}
			s.sendBytes(b[:a.rng.IntN(len(b)+1)])
			right := wire.Packet{Opcode: wire.RCSendOnly, DestQP: a.page.slot(to ^ 2).get(slotQPN), PSN: a.page.slot(to ^ 2).get(slotNext)}
			n := right.PutHeaders(b)
			b[2], b[3] = 0xff, 0xff
			s.sendBytes(b[:n+wire.ICRCLen]) // all but the ICRC is right
			for _, op := range []wire.Opcode{wire.UCSendOnly, wire.UDSendOnly, wire.SRDHello, wire.SRDAcknowledge, wire.CNP} {
				p := wire.Packet{Opcode: op, DestQP: a.rng.Uint32N(1 << 24), PSN: a.rng.Uint32() & wire.PSNMask, SRDETH: wire.SRDETH{Source: 1, MTU: 1}}
				s.send(&p)
			}
		}
	}
	return nil
}
