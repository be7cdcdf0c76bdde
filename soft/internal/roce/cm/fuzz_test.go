package cm

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// Control bytes of FuzzReceive: each precedes the message of a MAD behind its header and
// the attribute, and says what else is to be done.
const (
	fuzzFromPeer   = 1 << iota // from the peer of what is there, else from somebody else
	fuzzKnownIDs               // with the IDs of a connection, in the places of most messages
	fuzzAnswer                 // the application answers what it was told, before
	fuzzExpire                 // let a deadline pass, before
	fuzzDisconnect             // disconnect what is established, before
	fuzzReq                    // patch what a REQ has to say about addresses
	fuzzToActive               // the IDs are those of the dial
	fuzzHint                   // the host says that the peer's port is closed, before
)

const fuzzStep = 2 + mad.Len - 24

// FuzzReceive gives fuzzed datagrams to a manager with a dial, a resolution and listeners; the
// fuzzer knows everything that a peer may know. Nothing panics, an answer is one datagram at
// most, and all operations end.
func FuzzReceive(f *testing.F) {
	seed := func(control byte, attribute mad.Attribute, m encoder) []byte {
		var b [mad.Len]byte
		require.NoError(f, m.Encode(&b))
		return append([]byte{control, byte(attribute - mad.AttrREQ)}, b[24:]...)
	}
	_, _, b := pair(f, faults{})
	req := seed(fuzzReq, mad.AttrREQ, request(b, 1))
	known := byte(fuzzFromPeer | fuzzKnownIDs)
	rtu := seed(known|fuzzAnswer, mad.AttrRTU, &mad.RTU{})
	dreq := seed(known, mad.AttrDREQ, &mad.DREQ{RemoteQPN: 0x20})
	rep := seed(known|fuzzToActive, mad.AttrREP, &mad.REP{QPN: 9})
	answered := seed(known|fuzzToActive|fuzzAnswer, mad.AttrREP, &mad.REP{QPN: 9})
	accepted := seed(known|fuzzAnswer, mad.AttrAPR, &mad.APR{})
	lie := request(b, 2)
	lie.QPN, lie.CAGUID = 9, 0
	stale := seed(fuzzReq, mad.AttrREQ, lie)
	for _, list := range [][][]byte{
		{req}, {req, req, rtu, dreq, dreq}, {req, seed(known, mad.AttrREJ, &mad.REJ{Reason: verbs.CMRejectTimeout})},
		{rep, seed(known|fuzzToActive|fuzzAnswer, mad.AttrDREP, &mad.DREP{})}, {rep, rep, seed(known|fuzzToActive|fuzzAnswer|fuzzDisconnect, mad.AttrDREP, &mad.DREP{})},
		{seed(known|fuzzToActive, mad.AttrMRA, &mad.MRA{ServiceTimeout: 31}), rep}, {seed(known|fuzzToActive|fuzzExpire, mad.AttrREJ, &mad.REJ{Reason: 8})},
		{seed(fuzzReq, mad.AttrSIDRREQ, &mad.SIDRREQ{PKey: 0xffff, ServiceID: testDatagrams.ID(), PrivateData: request(b, 1).PrivateData})},
		{answered, seed(known|fuzzToActive|fuzzAnswer, mad.AttrREP, &mad.REP{QPN: 9}), seed(known|fuzzToActive, mad.AttrLAP, &mad.LAP{RemoteQPN: 0x11}), seed(known|fuzzToActive, mad.AttrDREQ, &mad.DREQ{RemoteQPN: 0x11})},
		{answered, stale, seed(known|fuzzToActive, mad.AttrDREP, &mad.DREP{})}, {answered, seed(known|fuzzToActive|fuzzDisconnect, mad.AttrDREP, &mad.DREP{})},
		{answered, seed(known|fuzzToActive, mad.AttrREJ, &mad.REJ{Reason: 28})}, {answered, seed(known|fuzzToActive|fuzzDisconnect|fuzzHint, mad.AttrDREP, &mad.DREP{})},
		{req, accepted, seed(known, mad.AttrMRA, &mad.MRA{Message: mad.MessageREP}), seed(fuzzFromPeer|fuzzExpire, mad.AttrAPR, &mad.APR{}), rtu, req},
		{req, seed(fuzzExpire, mad.AttrAPR, &mad.APR{}), req, seed(fuzzExpire, mad.AttrAPR, &mad.APR{})}, {seed(fuzzFromPeer, mad.AttrREP, &mad.REP{QPN: 9}), seed(fuzzFromPeer, mad.AttrDREQ, &mad.DREQ{})},
		{seed(fuzzReq|fuzzAnswer, mad.AttrSIDRREQ, &mad.SIDRREQ{PKey: 0xffff, ServiceID: testDatagrams.ID(), PrivateData: request(b, 1).PrivateData})},
		{seed(known, mad.AttrSIDRREP, &mad.SIDRREP{QPN: 9})}, {req, rtu, seed(known, mad.AttrLAP, &mad.LAP{RemoteQPN: 0x20}), seed(known, mad.AttrAPR, &mad.APR{})},
	} {
		var input []byte
		for _, s := range list {
			input = append(input, s...)
		}
		f.Add(input)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		w := newNetwork(t, 1, faults{})
		h := w.attach("H", "10.0.0.2:4791", Config{Random: rand.New(rand.NewPCG(1, 1)).Uint64, MaxHalfOpen: 8})
		h.listen(ListenParams{Service: testService, Backlog: 4})
		h.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD, Backlog: 4})
		peer := netip.MustParseAddrPort("10.0.0.9:4791")
		path := Path{Local: h.address, Remote: peer}
		p := ConnectParams{Service: testService, Path: path, QPN: 0x11, PathMTU: 1024}
		dial, err := h.Connect(p, w.Now)
		require.NoError(t, err)
		resolution, err := h.Resolve(ResolveParams{Service: testDatagrams, Path: path}, w.Now)
		require.NoError(t, err)
		answers := false
		qpn := uint32(0x1f)
		var last *Conn
		h.app = func(e *Event) {
			switch {
			case e.Type == EventConnectRequest:
				last = e.Conn
				if answers {
					qpn++
					require.NoError(t, e.Conn.Accept(AcceptParams{QPN: qpn}, w.Now))
				}
			case e.Type == EventConnectResponse && answers:
				require.NoError(t, e.Conn.Establish(nil, w.Now))
			case e.Type == EventSIDRRequest && answers:
				require.NoError(t, e.Request.Reply(SIDRReply{QPN: 5}))
			}
		}
		h.settle()
		for rest := input; len(rest) >= 2 && len(input)-len(rest) < 40*fuzzStep; {
			control, attribute := rest[0], mad.AttrREQ+mad.Attribute(rest[1]%11)
			var b [mad.Len]byte
			copy(b[:], "\x01\x07\x02\x03")
			b[17] = byte(attribute)
			n := copy(b[24:], rest[2:])
			rest = rest[2+n:]
			answers = control&fuzzAnswer != 0
			if control&fuzzExpire != 0 && h.Deadline() != 0 {
				w.Now = h.Deadline()
				h.Expire(w.Now)
			}
			c := last
			if control&fuzzToActive != 0 {
				c = dial
			}
			if answers && last != nil && last.State() == StateREQReceived {
				qpn++
				_ = last.Accept(AcceptParams{QPN: qpn}, w.Now)
			}
			if control&fuzzDisconnect != 0 && c != nil {
				_ = c.Disconnect(DisconnectParams{}, w.Now)
			}
			if control&fuzzHint != 0 && c != nil {
				h.PeerUnreachable(path, c.awaited(), CausePortUnreachable, w.Now)
			}
			if control&fuzzKnownIDs != 0 {
				patchIDs(&b, attribute, c, resolution)
			}
			if control&fuzzReq != 0 {
				patchAddresses(&b, attribute, h, peer)
			}
			from := path
			if control&fuzzFromPeer == 0 && control&fuzzReq == 0 {
				from.Remote = netip.MustParseAddrPort("10.0.0.77:1234")
			}
			h.settle()
			sent := h.Counters().Sent
			h.Receive(b[:], from, w.Now)
			// To a stale request also belongs the question, at most once in a time-out.
			allowed := uint64(1)
			if attribute == mad.AttrREQ || attribute == mad.AttrREP || attribute == mad.AttrRTU {
				allowed = 2
			}
			require.LessOrEqual(t, h.Counters().Sent-sent, allowed, "%v", attribute)
			h.settle()
			h.requireSane()
		}
		// Nothing more comes: all of it ends by itself, but what is established.
		limit := w.Now + time.Hour
		for round := 0; round < 2; round++ {
			for h.Deadline() != 0 {
				w.Now = max(w.Now, h.Deadline())
				require.Less(t, w.Now, limit)
				h.Expire(w.Now)
				h.settle()
			}
			for _, c := range h.conns {
				require.Equal(t, StateEstablished, c.State())
				c.Close(w.Now)
			}
		}
		for _, e := range []int{len(h.conns), len(h.requests), len(h.peers), len(h.resolutions), len(h.sidr), h.halfOpen.Taken(), len(h.timers)} {
			require.Zero(t, e)
		}
	})
}

// patchIDs gives a MAD the IDs that it needs to be taken.
func patchIDs(b *[mad.Len]byte, attribute mad.Attribute, c *Conn, r *Resolution) {
	put := func(at int, x uint64, n int) {
		for i := range n {
			b[at+i] = byte(x >> (8 * (n - 1 - i)))
		}
	}
	switch {
	case attribute == mad.AttrSIDRREP:
		put(8, r.transactionID, 8)
		put(24, uint64(r.requestID), 4)
	case c != nil && attribute != mad.AttrREQ && attribute != mad.AttrSIDRREQ:
		id := c.transactionID
		if attribute == mad.AttrDREP {
			id = c.transactionIDClose
			if c.state == StateEstablished {
				id = c.transactionIDProbe
			}
		}
		put(8, id, 8)
		if c.remoteKnown {
			put(24, uint64(c.remoteID), 4)
		}
		put(28, uint64(c.localID), 4)
	}
}

// patchAddresses has a request say where it comes from and goes to.
func patchAddresses(b *[mad.Len]byte, attribute mad.Attribute, h *host, peer netip.AddrPort) {
	var header [mad.IPHeaderLen]byte
	(&mad.IPHeader{Source: peer.Addr(), Destination: h.address.Addr(), SourcePort: 1}).Encode(&header)
	switch attribute {
	case mad.AttrREQ:
		source, destination := verbs.GIDFromAddr(peer.Addr()), verbs.GIDFromAddr(h.address.Addr())
		copy(b[24+56:], source[:])
		copy(b[24+72:], destination[:])
		copy(b[24+140:], header[:])
	case mad.AttrSIDRREQ:
		copy(b[24+16:], header[:])
	}
}
