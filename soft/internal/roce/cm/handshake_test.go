package cm

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

func zeroed(s string, n int) []byte {
	b := make([]byte, n)
	copy(b, s)
	return b
}

// TestHandshake runs one connection from start to end and checks all events and parameters at
// both ends.
func TestHandshake(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, a, b string
		kind       verbs.QPType
	}{
		{"IPv4", "10.0.0.1:4791", "10.0.0.2:4791", verbs.RC},
		{"IPv6", "[fd00::1]:4791", "[fd00::2]:4791", verbs.RC},
		{"IPv6 with zone", "[fe80::1%v0]:4791", "[fe80::2%v0]:4791", verbs.RC},
		{"loopback", "127.0.0.2:4791", "127.0.0.3:4791", verbs.RC},
		{"UC", "10.0.0.1:4791", "10.0.0.2:4791", verbs.UC},
		{"active without 4791", "10.0.0.1:5000", "10.0.0.1:4791", verbs.RC},
		{"passive without 4791", "10.0.0.1:4791", "10.0.0.1:5000", verbs.RC},
		{"both without 4791", "10.0.0.1:5001", "10.0.0.1:5000", verbs.RC},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newNetwork(t, 1, faults{})
			w.tracing = true
			a, b := w.attach("A", c.a, Config{TargetAckDelay: 12}), w.attach("B", c.b, Config{TargetAckDelay: 18})
			a.answerAll()
			b.answerAll()
			b.listen(ListenParams{Service: testService, Transport: c.kind, Value: "listener"})

			p := a.params(b)
			p.Path.GIDIndex, p.Transport, p.Value, p.TrafficClass = 3, c.kind, "value", 0x21
			conn := a.connect(p)
			w.Pass(time.Second)

			require.Equal(t, []string{"A REQ", "B REP", "A RTU"}, w.trace)
			require.Equal(t, "C", a.reports())
			require.Equal(t, "request, E", b.reports())
			require.Equal(t, zeroed("request", 56), b.all[0].PrivateData)
			require.Equal(t, zeroed("reply", 196), a.all[0].PrivateData)
			require.Equal(t, zeroed("ready", 224), b.all[1].PrivateData)
			require.Equal(t, "listener", b.all[0].Listener.Value)
			require.Equal(t, "value", conn.Value)

			peer := b.all[0].Conn
			require.Equal(t, netip.AddrPortFrom(a.address.Addr(), 40000), peer.PeerAddr())
			require.Equal(t, netip.AddrPortFrom(b.address.Addr(), 7471), conn.PeerAddr())
			require.Equal(t, a.address, peer.Path().Remote)
			require.True(t, peer.Passive())
			require.False(t, conn.Passive())
			require.Equal(t, StateEstablished, conn.State())
			require.Equal(t, StateEstablished, peer.State())

			// Of what either side has to offer, the lesser; sides change.
			// A takes 4 reads and wants 7, B takes 16 and wants 2.
			wantA := Params{
				Transport: c.kind, LocalQPN: a.qpOf[conn], RemoteQPN: b.qpOf[peer], ResponderResources: 2, InitiatorDepth: 7,
				RetryCount: 6, RNRRetry: 4, PathMTU: 1024,
			}
			wantB := Params{
				Transport: c.kind, LocalQPN: b.qpOf[peer], RemoteQPN: a.qpOf[conn], ResponderResources: 7, InitiatorDepth: 2,
				RetryCount: 6, RNRRetry: 5, PathMTU: 1024,
			}
			if c.kind == verbs.UC {
				for _, p := range []*Params{&wantA, &wantB} {
					p.ResponderResources, p.InitiatorDepth = 0, 0
				}
			}
			require.Equal(t, wantA, conn.Params())
			require.Equal(t, wantB, peer.Params())

			requireAttributes(t, conn, wantA, 0x222222, 0x111111, 19, 3)
			requireAttributes(t, peer, wantB, 0x111111, 0x222222, 17, 0)

			require.Equal(t, 2, a.Entries().Connections+b.Entries().Connections)
			require.Zero(t, a.Entries().Timers+b.Entries().Timers, "established connections cost no timers")
			require.Zero(t, b.Entries().HalfOpen)

			require.NoError(t, conn.Disconnect(DisconnectParams{PrivateData: []byte("farewell")}, w.Now))
			a.settle()
			w.Pass(10 * time.Millisecond)
			require.Equal(t, "C, D disconnected", a.reports())
			require.Equal(t, "request, E, D disconnected by the peer", b.reports())
			require.Equal(t, zeroed("farewell", 220), b.all[2].PrivateData)
			require.Equal(t, StateTimeWait, conn.State())
			w.run(time.Minute)
			a.requireEmpty()
			b.requireEmpty()
			require.Equal(t, []string{"A REQ", "B REP", "A RTU", "A DREQ", "B DREP"}, w.trace)
		})
	}
}

// A peer that repeats for ever is told to wait for less time.
func TestRNRTimer(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	a.answerAll()
	b.answerAll()
	b.listen(ListenParams{Service: testService})
	p := a.params(b)
	p.RNRRetry = 7
	conn := a.connect(p)
	w.Pass(time.Second)
	for _, c := range []*Conn{conn, b.all[0].Conn} {
		attr, _, err := c.QPAttr(verbs.QPReadyToReceive)
		require.NoError(t, err)
		require.Equal(t, uint8(12), attr.MinRNRTimer)
	}
}

// requireAttributes checks what a connection's queue pair is to be given.
func requireAttributes(t *testing.T, c *Conn, p Params, sqPSN, rqPSN uint32, timeout uint8, index int) {
	t.Helper()
	reliable := p.Transport == verbs.RC
	attr, mask, err := c.QPAttr(verbs.QPInitialized)
	require.NoError(t, err)
	access := verbs.AccessRemoteWrite
	if reliable {
		access |= verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	}
	assert.Equal(t, verbs.QPAttr{State: verbs.QPInitialized, Port: 1, Access: access}, attr)
	assert.Equal(t, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess, mask)

	attr, mask, err = c.QPAttr(verbs.QPReadyToReceive)
	require.NoError(t, err)
	want := verbs.QPAttr{
		State: verbs.QPReadyToReceive, PathMTU: p.PathMTU, DestQPN: p.RemoteQPN, RQPSN: rqPSN,
		Address: verbs.AddressAttr{
			DGID: verbs.GIDFromAddr(c.Path().Remote.Addr()), SGIDIndex: index, Port: 1, TrafficClass: attr.Address.TrafficClass,
		},
	}
	if port := c.Path().Remote.Port(); port != 4791 {
		want.Address.UDPPort = port
	}
	assert.Equal(t, uint8(0x20), attr.Address.TrafficClass&^3)
	wantMask := verbs.QPAttrState | verbs.QPAttrAddress | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	if reliable {
		want.MaxDestReadAtomic, want.MinRNRTimer = int(p.ResponderResources), 20 // both ends limit the retries
		wantMask |= verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMinRNRTimer
	}
	assert.Equal(t, want, attr)
	assert.Equal(t, wantMask, mask)

	attr, mask, err = c.QPAttr(verbs.QPReadyToSend)
	require.NoError(t, err)
	want, wantMask = verbs.QPAttr{State: verbs.QPReadyToSend, SQPSN: sqPSN}, verbs.QPAttrState|verbs.QPAttrSQPSN
	if reliable {
		want.Timeout, want.RetryCount, want.RNRRetry, want.MaxInitReadAtomic = timeout, p.RetryCount, p.RNRRetry, int(p.InitiatorDepth)
		wantMask |= verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrMaxInitReadAtomic
	}
	assert.Equal(t, want, attr)
	assert.Equal(t, wantMask, mask)

	_, _, err = c.QPAttr(verbs.QPError)
	assert.ErrorIs(t, err, verbs.ErrInvalid)
}

// TestRequestBytes checks every field of a REQ.
func TestRequestBytes(t *testing.T) {
	t.Parallel()
	_, a, b := pair(t, faults{})
	p := a.params(b)
	p.SRQ, p.AckTimeout, p.ResponseTimeout, p.MaxCMRetries = true, 14, 20, 9
	_, err := a.Connect(p, a.net.Now)
	require.NoError(t, err)
	r, path := requireSent[mad.REQ](a)
	require.Equal(t, a.pathTo(b), path)
	var header mad.IPHeader
	require.NoError(t, header.Decode(r.PrivateData))
	require.Equal(t, mad.IPHeader{Source: a.address.Addr(), Destination: b.address.Addr(), SourcePort: 40000}, header)
	require.Equal(t, zeroed("request", 56), r.PrivateData[36:])
	require.EqualValues(t, 3, r.LocalCommID&15, "the slot")
	require.Equal(t, uint64(0x02), r.CAGUID>>56, "locally administered")
	r.PrivateData, r.LocalCommID, r.TransactionID = nil, 0, 0
	require.Equal(t, &mad.REQ{
		ServiceID: 0x0000000001061d2f, CAGUID: a.CAGUID(), QPN: p.QPN, ResponderResources: 4, InitiatorDepth: 7,
		RemoteResponseTimeout: 20, LocalResponseTimeout: 20, StartingPSN: 0x111111, RetryCount: 6,
		PKey: 0xffff, PathMTU: 3, RNRRetry: 5, MaxCMRetries: 9, SRQ: true,
		Primary: mad.Path{
			LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: verbs.GIDFromAddr(a.address.Addr()), RemoteGID: verbs.GIDFromAddr(b.address.Addr()),
			HopLimit: 64, AckTimeout: 14,
		},
	}, r)
}

// TestOneLost loses the first message of each type in turn: it is retransmitted.
func TestOneLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lost  mad.Attribute
		trace []string
	}{
		{mad.AttrREQ, []string{"A REQ", "A REQ", "B REP", "A RTU", "A DREQ", "B DREP"}},
		{mad.AttrREP, []string{"A REQ", "B REP", "B REP", "A RTU", "A DREQ", "B DREP"}},
		{mad.AttrRTU, []string{"A REQ", "B REP", "A RTU", "B REP", "A RTU", "A DREQ", "B DREP"}},
		{mad.AttrDREQ, []string{"A REQ", "B REP", "A RTU", "A DREQ", "A DREQ", "B DREP"}},
		{mad.AttrDREP, []string{"A REQ", "B REP", "A RTU", "A DREQ", "B DREP", "A DREQ", "B DREP"}},
	} {
		t.Run(c.lost.String(), func(t *testing.T) {
			t.Parallel()
			w, a, b := pair(t, faults{})
			w.tracing = true
			lost := 0
			w.drop = func(_, _ *host, attribute mad.Attribute, _ []byte) bool {
				if attribute == c.lost {
					lost++
				}
				return attribute == c.lost && lost == 1
			}
			a.answerAll()
			b.answerAll()
			b.listen(ListenParams{Service: testService})
			conn := a.connect(a.params(b))
			w.Pass(5 * time.Second)
			require.Equal(t, StateEstablished, conn.State())
			require.Equal(t, "request, E", b.reports())
			require.NoError(t, conn.Disconnect(DisconnectParams{}, w.Now))
			a.settle()
			w.run(time.Minute)
			a.requireEmpty()
			b.requireEmpty()
			require.Equal(t, c.trace, w.trace)
			require.Equal(t, "C, D disconnected", a.reports())
			require.Equal(t, "request, E, D disconnected by the peer", b.reports())
			require.NotZero(t, a.Counters().Retransmitted+b.Counters().Retransmitted)
		})
	}
}

// TestAllLost loses all messages of one type and checks the final events of both ends.
func TestAllLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lost        []mad.Attribute
		told, other string
		disconnect  bool
	}{
		{lost: []mad.Attribute{mad.AttrREQ}, told: "U no response from the peer", other: ""},
		// The end that gives up first tells the other.
		{lost: []mad.Attribute{mad.AttrREP}, told: "R 4", other: "request, U no response from the peer"},
		// B has forgotten the request by the time of A's last REQ, and takes it for a new one.
		{lost: []mad.Attribute{mad.AttrREP, mad.AttrREJ}, told: "U no response from the peer", other: "request, U no response from the peer, request, U no response from the peer"},
		{lost: []mad.Attribute{mad.AttrRTU}, told: "C, D rejected by the peer", other: "request, U no response from the peer"},
		{lost: []mad.Attribute{mad.AttrRTU, mad.AttrREJ}, told: "C", other: "request, U no response from the peer"},
		{lost: []mad.Attribute{mad.AttrDREQ}, told: "C, D no response from the peer", other: "request, E", disconnect: true},
		{lost: []mad.Attribute{mad.AttrDREP}, told: "C, D no response from the peer", other: "request, E, D disconnected by the peer", disconnect: true},
	} {
		t.Run(fmt.Sprint(c.lost), func(t *testing.T) {
			t.Parallel()
			w, a, b := pair(t, faults{})
			w.drop = func(_, _ *host, attribute mad.Attribute, _ []byte) bool {
				for _, lost := range c.lost {
					if attribute == lost {
						return true
					}
				}
				return false
			}
			a.answerAll()
			b.answerAll()
			b.listen(ListenParams{Service: testService})
			conn := a.connect(a.params(b))
			if c.disconnect {
				w.Pass(time.Second)
				require.NoError(t, conn.Disconnect(DisconnectParams{}, w.Now))
				a.settle()
			}
			w.run(2 * time.Minute)
			require.Equal(t, c.told, a.reports())
			require.Equal(t, c.other, b.reports())
		})
	}
}

// TestPacketForRTU: the first packet stands for a lost RTU.
func TestPacketForRTU(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	w.drop = func(_, _ *host, attribute mad.Attribute, _ []byte) bool { return attribute == mad.AttrRTU }
	a.answerAll()
	b.answerAll()
	b.listen(ListenParams{Service: testService})
	a.connect(a.params(b))
	w.Pass(time.Millisecond)
	conn := b.all[0].Conn
	require.Equal(t, StateREPSent, conn.State())
	conn.CommunicationEstablished(w.Now)
	b.settle()
	require.Equal(t, "request, E", b.reports())
	require.Nil(t, b.all[1].PrivateData)
	conn.CommunicationEstablished(w.Now)
	require.Zero(t, b.Entries().Timers)
	// The RTU arrives after all: there is no second event.
	w.forge(b, "10.0.0.1:4791", &mad.RTU{TransactionID: conn.transactionID, LocalCommID: conn.remoteID, RemoteCommID: conn.localID})
	b.requireNoEvent()
	require.Equal(t, uint64(1), b.Counters().WrongState)
}

// TestRefused checks every reason to reject a REQ.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(p *ConnectParams)
		listen ListenParams
		told   string
		info   []byte
	}{
		{"nobody listens", func(p *ConnectParams) { p.Service.Port++ }, ListenParams{}, "R 8", nil},
		{"wrong port space", func(p *ConnectParams) { p.Service.Space = 0x013f }, ListenParams{}, "R 8", nil},
		{"another address", func(*ConnectParams) {}, ListenParams{Addr: netip.MustParseAddr("10.0.0.7")}, "R 8", nil},
		{"a service of datagrams", func(*ConnectParams) {}, ListenParams{Transport: verbs.UD}, "R 8", nil},
		{"another transport", func(p *ConnectParams) { p.Transport = verbs.UC }, ListenParams{}, "R 9", nil},
		{"path MTU", func(p *ConnectParams) { p.PathMTU = 4096 }, ListenParams{}, "R 26", []byte{3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newNetwork(t, 1, faults{})
			a, b := w.attach("A", "10.0.0.1:4791", Config{}), w.attach("B", "10.0.0.2:4791", Config{MTU: 1024})
			c.listen.Service = testService
			b.listen(c.listen)
			p := a.params(b)
			c.change(&p)
			a.connect(p)
			w.run(time.Second)
			require.Equal(t, c.told, a.reports())
			require.Empty(t, b.all)
			if c.info != nil {
				require.Equal(t, c.info, a.all[0].Info)
			}
			a.requireEmpty()
			b.requireEmpty()
			require.Equal(t, uint64(1), b.Counters().NoService+b.Counters().UnsupportedRequest)
		})
	}
}

// TestListenerOfAddress: the listener of one address takes precedence over that of all
// addresses.
func TestListenerOfAddress(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	b.listen(ListenParams{Service: testService, Value: "all"})
	own := b.listen(ListenParams{Service: testService, Value: "own", Addr: b.address.Addr()})
	a.connect(a.params(b))
	w.Pass(time.Millisecond)
	require.Equal(t, "own", b.all[0].Listener.Value)
	own.Close(w.Now)
	own.Close(w.Now)
	require.Equal(t, 1, b.Entries().Listeners)
	a.connect(a.params(b))
	w.Pass(time.Millisecond)
	require.Equal(t, "all", b.all[1].Listener.Value)
}

// TestReject is the application's rejection, by either end and at every point.
func TestReject(t *testing.T) {
	t.Parallel()
	t.Run("request", func(t *testing.T) {
		t.Parallel()
		w, a, b := pair(t, faults{})
		b.listen(ListenParams{Service: testService})
		b.app = func(e *Event) {
			if e.Type == EventConnectRequest {
				require.NoError(t, e.Conn.Reject(RejectParams{PrivateData: []byte("no"), Info: []byte("why")}, w.Now))
			}
		}
		a.connect(a.params(b))
		w.run(time.Second)
		require.Equal(t, "R 28", a.reports())
		require.Equal(t, zeroed("no", 148), a.all[0].PrivateData)
		require.Equal(t, []byte("why"), a.all[0].Info)
		require.Equal(t, CauseREJ, a.all[0].Cause)
		require.Equal(t, "request", b.reports())
		a.requireEmpty()
		b.requireEmpty()
	})
	t.Run("response", func(t *testing.T) {
		t.Parallel()
		w, a, b := pair(t, faults{})
		b.listen(ListenParams{Service: testService})
		b.answerAll()
		a.app = func(e *Event) {
			if e.Type == EventConnectResponse {
				require.NoError(t, e.Conn.Reject(RejectParams{Reason: mad.Reason(27)}, w.Now))
			}
		}
		a.connect(a.params(b))
		w.run(time.Minute)
		require.Equal(t, "C", a.reports())
		require.Equal(t, "request, R 27", b.reports())
		require.Equal(t, mad.MessageREP, b.all[1].Message)
		a.requireEmpty()
		b.requireEmpty()
	})
	t.Run("accepted", func(t *testing.T) {
		t.Parallel()
		w, a, b := pair(t, faults{})
		b.listen(ListenParams{Service: testService})
		b.app = func(e *Event) {
			if e.Type == EventConnectRequest {
				b.accept(e.Conn)
				require.NoError(t, e.Conn.Reject(RejectParams{}, w.Now))
			}
		}
		a.answerAll()
		a.connect(a.params(b))
		w.run(time.Minute)
		require.Equal(t, "C, D rejected by the peer", a.reports())
		a.requireEmpty()
		b.requireEmpty()
	})
}

// TestDisconnectAtOnce: both ends disconnect, and both DREQs are on their way.
func TestDisconnectAtOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []mad.Attribute{0, mad.AttrDREQ, mad.AttrDREP} {
		t.Run(lost.String(), func(t *testing.T) {
			t.Parallel()
			w, a, b := pair(t, faults{})
			a.answerAll()
			b.answerAll()
			b.listen(ListenParams{Service: testService})
			conn := a.connect(a.params(b))
			w.Pass(time.Millisecond)
			dropped := false
			w.drop = func(_, _ *host, attribute mad.Attribute, _ []byte) bool {
				first := attribute == lost && !dropped
				dropped = dropped || first
				return first
			}
			require.NoError(t, conn.Disconnect(DisconnectParams{}, w.Now))
			require.NoError(t, b.all[0].Conn.Disconnect(DisconnectParams{}, w.Now))
			a.settle()
			b.settle()
			w.run(time.Minute)
			for _, h := range []*host{a, b} {
				require.Contains(t, h.reports(), "D disconnected")
				h.requireEmpty()
			}
		})
	}
}

// TestDisconnectBeforeRTU: the DREQ of a fast active end stands for its lost RTU.
func TestDisconnectBeforeRTU(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	w.drop = func(_, _ *host, attribute mad.Attribute, _ []byte) bool { return attribute == mad.AttrRTU }
	b.answerAll()
	b.listen(ListenParams{Service: testService})
	a.app = func(e *Event) {
		if e.Type == EventConnectResponse {
			require.NoError(t, e.Conn.Establish(nil, w.Now))
			require.NoError(t, e.Conn.Disconnect(DisconnectParams{}, w.Now))
		}
	}
	a.connect(a.params(b))
	w.run(time.Minute)
	require.Equal(t, "C, D disconnected", a.reports())
	require.Equal(t, "request, D disconnected by the peer", b.reports())
	a.requireEmpty()
	b.requireEmpty()
}

// TestSelf: a program connects to itself, both ends in one manager.
func TestSelf(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 1, faults{})
	h := w.attach("H", "127.0.0.1:4791", Config{})
	h.answerAll()
	h.listen(ListenParams{Service: testService})
	conn := h.connect(h.params(h))
	w.Pass(time.Second)
	require.Equal(t, StateEstablished, conn.State())
	require.Equal(t, "request, C, E", h.reports())
	require.Equal(t, 2, h.Entries().Connections)
	conn.Close(w.Now)
	h.settle()
	w.run(time.Minute)
	h.requireEmpty()
}
