package cmtest

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// Run runs the tests with these two sides. They run in parallel, since they spend most of
// their time in time-wait. With quick, they skip waits that take seconds, except for once.
func Run(t *testing.T, active, passive Side, quick bool) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, active, passive *End)
		kind verbs.QPType
		slow bool
	}{
		{"connect", testConnect, verbs.RC, false},
		{"the passive end disconnects", testPassiveDisconnects, verbs.RC, false},
		{"reject", testReject, verbs.RC, false},
		{"reject the response", testRejectResponse, verbs.RC, false},
		{"nobody listens", testNobodyListens, verbs.RC, false},
		{"establish by a packet", testReceived, verbs.RC, false},
		{"close while resolving", testCloseResolving, verbs.RC, false},
		{"close after the request", testCloseConnecting, verbs.RC, false},
		{"close a request", testCloseRequested, verbs.RC, false},
		{"close after the response", testCloseResponded, verbs.RC, false},
		{"close after accepting", testCloseAccepted, verbs.RC, false},
		{"close an established one", testCloseEstablished, verbs.RC, false},
		{"close the managers", testCloseManagers, verbs.RC, false},
		{"backlog", testBacklog, verbs.RC, active.Kernel && !passive.Kernel},
		{"listen", testListen, verbs.RC, false},
		{"dials that must fail", testBadDials, verbs.RC, false},
		{"datagrams", testDatagrams, verbs.UD, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if quick && c.slow {
				t.Skip("it needs several seconds")
			}
			t.Parallel()
			a, p := NewEnd(t, active, c.kind), NewEnd(t, passive, c.kind)
			a.quick, p.quick = quick, quick
			c.test(t, a, p)
		})
	}
}

func testConnect(t *testing.T, active, passive *End) {
	listener, dial := passive.Listen(verbs.CMListen{})
	a := active.Dial(dial)
	require.ErrorIs(t, a.Establish(), verbs.ErrState)
	require.ErrorIs(t, a.Accept(active.Param("")), verbs.ErrState)
	require.ErrorIs(t, a.Reject(nil), verbs.ErrState)
	require.ErrorIs(t, a.Disconnect(), verbs.ErrState)
	for _, change := range []func(*verbs.CMParam){
		func(p *verbs.CMParam) { p.QPN = 0 },
		func(p *verbs.CMParam) { p.QPN = 1 },
		func(p *verbs.CMParam) { p.QPN = 1 << 24 },
		func(p *verbs.CMParam) { p.RetryCount = 8 },
		func(p *verbs.CMParam) { p.RNRRetryCount = 8 },
		func(p *verbs.CMParam) { p.PrivateData = make([]byte, 57) },
	} {
		bad := active.Param("")
		change(&bad)
		require.ErrorIs(t, a.Connect(bad), verbs.ErrInvalid)
	}
	_, _, err := a.Attr(verbs.QPReadyToReceive)
	require.ErrorIs(t, err, verbs.ErrState)
	active.Move(a, verbs.QPInitialized)
	require.NoError(t, a.Connect(active.Param("hello")))
	require.ErrorIs(t, a.Connect(active.Param("hello")), verbs.ErrState)

	event := passive.Next(verbs.CMConnectRequest)
	b := event.ID
	assert.Same(t, listener, event.Listener)
	assert.Equal(t, "hello", string(event.Param.PrivateData[:5]))
	assert.Len(t, event.Param.PrivateData, 56)
	assert.Equal(t, a.LocalAddr(), b.RemoteAddr())
	assert.Equal(t, a.RemoteAddr(), b.LocalAddr())
	port, index := b.PortGID()
	assert.Equal(t, 1, port)
	assert.Equal(t, passive.Side.GID.Index, index)
	assert.Equal(t, active.QP.Num(), event.Param.QPN)
	assert.Equal(t, 3, event.Param.ResponderResources, "the peer's initiator depth")
	assert.Equal(t, 4, event.Param.InitiatorDepth, "the peer's responder resources")
	assert.EqualValues(t, 6, event.Param.RetryCount)
	assert.EqualValues(t, 6, event.Param.RNRRetryCount)
	require.ErrorIs(t, b.Establish(), verbs.ErrState)
	require.ErrorIs(t, b.Connect(passive.Param("")), verbs.ErrState)
	require.ErrorIs(t, b.Disconnect(), verbs.ErrState)
	bad := passive.Param("")
	bad.QPN = 1 << 24
	require.ErrorIs(t, b.Accept(bad), verbs.ErrInvalid)
	bad = passive.Param("")
	bad.PrivateData = make([]byte, 197)
	require.ErrorIs(t, b.Accept(bad), verbs.ErrInvalid)
	require.ErrorIs(t, b.Reject(make([]byte, 149)), verbs.ErrInvalid)
	_, _, err = b.Attr(verbs.QPError)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	passive.Move(b, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	limited := passive.Param("welcome")
	limited.ResponderResources = 2
	limited.InitiatorDepth = 100 // more than the request offers
	require.NoError(t, b.Accept(limited))
	require.ErrorIs(t, b.Accept(limited), verbs.ErrState)

	event = active.Next(verbs.CMConnectResponse)
	assert.Same(t, a, event.ID)
	assert.Equal(t, "welcome", string(event.Param.PrivateData[:7]))
	assert.Len(t, event.Param.PrivateData, 196)
	assert.Equal(t, passive.QP.Num(), event.Param.QPN)
	assert.Equal(t, 2, event.Param.InitiatorDepth, "the peer's responder resources")
	attr, mask, err := a.Attr(verbs.QPReadyToSend)
	require.NoError(t, err)
	assert.NotZero(t, mask&verbs.QPAttrMaxInitReadAtomic)
	assert.Equal(t, 2, attr.MaxInitReadAtomic)
	attr, _, err = a.Attr(verbs.QPReadyToReceive)
	require.NoError(t, err)
	assert.Equal(t, 4, attr.MaxDestReadAtomic)
	assert.Equal(t, passive.Side.GID.GID, attr.Address.DGID)
	active.Move(a, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(t, a.Establish())
	require.ErrorIs(t, a.Establish(), verbs.ErrState)
	require.Same(t, b, passive.Next(verbs.CMEstablished).ID)
	require.NoError(t, b.Received(), "already known")
	require.ErrorIs(t, b.Reject(nil), verbs.ErrState)

	active.send(passive, "from the active end")
	passive.send(active, "from the passive end")

	require.NoError(t, listener.Close())
	require.NoError(t, listener.Close())
	require.NoError(t, a.Disconnect())
	require.ErrorIs(t, a.Disconnect(), verbs.ErrState)
	passive.Next(verbs.CMDisconnected)
	active.Next(verbs.CMDisconnected)
	require.ErrorIs(t, b.Disconnect(), verbs.ErrState)
	passive.Next(verbs.CMTimewaitExit)
	active.Next(verbs.CMTimewaitExit)
	for _, id := range []verbs.CMID{a, b} {
		require.NoError(t, id.Close())
		require.NoError(t, id.Close())
		_, _, err := id.Attr(verbs.QPInitialized)
		require.ErrorIs(t, err, verbs.ErrClosed)
		for _, err := range []error{
			id.Connect(active.Param("")), id.Accept(active.Param("")), id.Reject(nil), id.Establish(), id.Received(), id.Disconnect(),
		} {
			require.ErrorIs(t, err, verbs.ErrClosed)
		}
	}
	active.Quiet()
	passive.Quiet()
}

func testPassiveDisconnects(t *testing.T, active, passive *End) {
	a, b := Establish(active, passive)
	require.NoError(t, b.Disconnect())
	assert.Same(t, a, active.Next(verbs.CMDisconnected).ID)
	assert.Same(t, b, passive.Next(verbs.CMDisconnected).ID)
}

func testReject(t *testing.T, active, passive *End) {
	_, dial := passive.Listen(verbs.CMListen{})
	a := active.Connect(dial, "")
	b := passive.Next(verbs.CMConnectRequest).ID
	require.NoError(t, b.Reject([]byte("not today")))
	err := active.Failed(verbs.CMStepConnect, verbs.ErrRejected)
	assert.Equal(t, verbs.CMRejectConsumer, err.Reason)
	require.Len(t, err.PrivateData, 148)
	assert.Equal(t, "not today", string(err.PrivateData[:9]))
	assert.Same(t, a, active.Next(verbs.CMTimewaitExit).ID)
	assert.Same(t, b, passive.Next(verbs.CMTimewaitExit).ID)
	require.ErrorIs(t, b.Accept(passive.Param("")), verbs.ErrState)
	require.ErrorIs(t, b.Reject(nil), verbs.ErrState)
	require.ErrorIs(t, a.Establish(), verbs.ErrState)
}

func testRejectResponse(t *testing.T, active, passive *End) {
	a, b := Respond(active, passive)
	require.NoError(t, a.Reject([]byte("too late")))
	err := passive.Failed(verbs.CMStepAccept, verbs.ErrRejected)
	assert.Equal(t, verbs.CMRejectConsumer, err.Reason)
	assert.Equal(t, "too late", string(err.PrivateData[:8]))
	active.EndOfTimewait(a)
	passive.EndOfTimewait(b)
}

func testNobodyListens(t *testing.T, active, passive *End) {
	listener, dial := passive.Listen(verbs.CMListen{})
	require.NoError(t, listener.Close())
	a := active.Connect(dial, "")
	err := active.Failed(verbs.CMStepConnect, verbs.ErrNotListening)
	assert.Equal(t, verbs.CMRejectInvalidServiceID, err.Reason)
	assert.ErrorContains(t, err, dial.Addr.String())
	assert.Same(t, a, active.Next(verbs.CMTimewaitExit).ID)

	// The ports of datagram services are separate.
	_, dial = passive.Listen(verbs.CMListen{Type: verbs.UD})
	dial.Type = verbs.RC
	active.Connect(dial, "")
	active.Failed(verbs.CMStepConnect, verbs.ErrNotListening)
	active.Next(verbs.CMTimewaitExit)
	passive.Quiet()
}

func testReceived(t *testing.T, active, passive *End) {
	a, b := Respond(active, passive)
	require.NoError(t, b.Received())
	passive.Next(verbs.CMEstablished)
	active.Move(a, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(t, a.Establish())
	active.send(passive, "established")
	require.NoError(t, b.Disconnect())
	active.Next(verbs.CMDisconnected)
	passive.Next(verbs.CMDisconnected)
}

func testCloseResolving(t *testing.T, active, passive *End) {
	_, dial := passive.Listen(verbs.CMListen{})
	for range 10 {
		id, err := active.CM.Dial(dial)
		require.NoError(t, err)
		require.NoError(t, id.Close())
	}
	// A closed ID reports no event, but may have reported one before.
	for len(active.events) > 0 {
		require.Equal(t, verbs.CMResolved, (<-active.events).Type)
	}
	id := active.Dial(dial)
	require.NoError(t, id.Close())
	passive.Quiet()
}

func testCloseConnecting(t *testing.T, active, passive *End) {
	_, dial := passive.Listen(verbs.CMListen{})
	a := active.Connect(dial, "")
	b := passive.Next(verbs.CMConnectRequest).ID
	passive.Move(b, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(t, a.Close())
	if !passive.Side.Kernel {
		passive.Failed(verbs.CMStepAccept, verbs.ErrRejected)
		passive.Next(verbs.CMTimewaitExit)
		require.ErrorIs(t, b.Accept(passive.Param("")), verbs.ErrState)
		return
	}
	// The kernel may not have received the rejection yet.
	if err := b.Accept(passive.Param("")); err != nil {
		require.ErrorIs(t, err, verbs.ErrState)
		require.ErrorIs(t, b.Accept(passive.Param("")), verbs.ErrState)
	}
	passive.Failed(verbs.CMStepAccept, verbs.ErrRejected)
	passive.Next(verbs.CMTimewaitExit)
}

func testCloseRequested(t *testing.T, active, passive *End) {
	_, dial := passive.Listen(verbs.CMListen{})
	active.Connect(dial, "")
	require.NoError(t, passive.Next(verbs.CMConnectRequest).ID.Close())
	active.Failed(verbs.CMStepConnect, verbs.ErrRejected)
	active.Next(verbs.CMTimewaitExit)
	select {
	case event := <-passive.events: // a repetition, sent before the rejection came, is a new request by now
		require.Equal(t, verbs.CMConnectRequest, event.Type)
		require.NoError(t, event.ID.Close())
	default:
	}
	passive.Quiet()
}

func testCloseResponded(t *testing.T, active, passive *End) {
	a, b := Respond(active, passive)
	require.NoError(t, a.Close())
	passive.Failed(verbs.CMStepAccept, verbs.ErrRejected)
	passive.EndOfTimewait(b)
	active.Quiet()
}

func testCloseAccepted(t *testing.T, active, passive *End) {
	a, b := Respond(active, passive)
	require.NoError(t, b.Close())
	active.Failed(verbs.CMStepConnect, verbs.ErrRejected)
	require.ErrorIs(t, a.Establish(), verbs.ErrState)
	active.EndOfTimewait(a)
	passive.Quiet()
}

func testCloseEstablished(t *testing.T, active, passive *End) {
	a, b := Establish(active, passive)
	require.NoError(t, a.Close())
	require.Same(t, b, passive.Next(verbs.CMDisconnected).ID)
	passive.EndOfTimewait(b)
	active.Quiet()
}

func testCloseManagers(t *testing.T, active, passive *End) {
	listener, dial := passive.Listen(verbs.CMListen{})
	resolved := active.Dial(dial)
	active.Connect(dial, "")
	request := passive.Next(verbs.CMConnectRequest).ID
	require.NoError(t, active.CM.Close())
	require.NoError(t, active.CM.Close())
	require.NoError(t, passive.CM.Close())
	require.NoError(t, listener.Close())
	for _, id := range []verbs.CMID{resolved, request} {
		require.ErrorIs(t, id.Connect(active.Param("")), verbs.ErrClosed)
		require.NoError(t, id.Close())
	}
	_, err := active.CM.Dial(dial)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = passive.CM.Listen(verbs.CMListen{})
	require.ErrorIs(t, err, verbs.ErrClosed)
	active.Quiet()
	// The abandoned request may have been reported before its manager was closed.
	if !passive.Side.Kernel && len(passive.events) > 0 {
		passive.Next(verbs.CMFailed)
	}
}

// A request beyond the backlog is reported once there is room again.
func testBacklog(t *testing.T, active, passive *End) {
	_, dial := passive.Listen(verbs.CMListen{Backlog: 1})
	active.Connect(dial, "")
	first := passive.Next(verbs.CMConnectRequest).ID
	other := NewEnd(t, active.Side, verbs.RC)
	other.Connect(dial, "")
	require.NoError(t, first.Reject(nil))
	passive.Next(verbs.CMTimewaitExit)
	active.Failed(verbs.CMStepConnect, verbs.ErrRejected)
	second := passive.Next(verbs.CMConnectRequest).ID
	require.NoError(t, second.Close())
	other.Failed(verbs.CMStepConnect, verbs.ErrRejected)
}

func testListen(t *testing.T, active, passive *End) {
	own := passive.Side.GID.GID.Addr()
	l, dial := passive.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(own, 0)})
	assert.Equal(t, dial.Addr, l.Addr())
	a := active.Connect(dial, "")
	b := passive.Next(verbs.CMConnectRequest)
	assert.Same(t, l, b.Listener)
	require.NoError(t, l.Close(), "requests that were reported stay")
	passive.Accept(b.ID, "")
	active.Next(verbs.CMConnectResponse)
	require.NoError(t, a.Close())

	l, dial = passive.Listen(verbs.CMListen{})
	_, err := passive.CM.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), dial.Addr.Port())})
	require.ErrorIs(t, err, verbs.ErrInUse)
	require.NoError(t, l.Close())
	for _, bad := range []verbs.CMListen{
		{Addr: netip.MustParseAddrPort("192.0.2.1:7")},
		{Backlog: -1},
	} {
		_, err := passive.CM.Listen(bad)
		require.ErrorIs(t, err, verbs.ErrInvalid, "%+v", bad)
	}
	_, err = passive.CM.Listen(verbs.CMListen{Type: 9})
	require.Error(t, err)
	if passive.Side.Kernel {
		_, err = passive.CM.Listen(verbs.CMListen{Type: verbs.UC})
		require.ErrorIs(t, err, verbs.ErrNotSupported)
	}
}

func testBadDials(t *testing.T, active, passive *End) {
	good := netip.AddrPortFrom(passive.Side.GID.GID.Addr(), 7)
	family := netip.MustParseAddrPort("[fd00::1]:7")
	if !good.Addr().Is4() {
		family = netip.MustParseAddrPort("10.0.0.1:7")
	}
	for _, bad := range []verbs.CMDial{
		{},
		{Addr: netip.MustParseAddrPort("0.0.0.0:1")}, {Addr: netip.MustParseAddrPort("[::]:1")},
		{Addr: netip.MustParseAddrPort("224.0.0.1:1")},
		{Addr: netip.AddrPortFrom(good.Addr(), 0)},
		{Addr: good, Local: netip.MustParseAddrPort("192.0.2.1:1")},
		{Addr: good, Local: family},
	} {
		_, err := active.CM.Dial(bad)
		require.ErrorIs(t, err, verbs.ErrInvalid, "%+v", bad)
	}
	_, err := active.CM.Dial(verbs.CMDial{Addr: good, Type: 9})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	if active.Side.Kernel {
		_, err = active.CM.Dial(verbs.CMDial{Addr: good, Type: verbs.UC})
		require.ErrorIs(t, err, verbs.ErrNotSupported)
		_, err = active.CM.Dial(verbs.CMDial{Addr: good, UDPPort: 4792})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		for _, loopback := range []string{"127.0.0.1:7", "[::1]:7"} {
			_, err = active.CM.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort(loopback)})
			require.ErrorIs(t, err, verbs.ErrNoRoute)
		}
	}
	active.Quiet()
}

// testDatagrams resolves a datagram service.
func testDatagrams(t *testing.T, active, passive *End) {
	const qkey = 0x01234567 // of RDMA_PS_UDP
	listener, dial := passive.Listen(verbs.CMListen{Type: verbs.UD})
	ask := func(question string) verbs.CMID {
		id := active.Dial(dial)
		require.ErrorIs(t, id.Connect(verbs.CMParam{PrivateData: make([]byte, 181)}), verbs.ErrInvalid)
		require.NoError(t, id.Connect(verbs.CMParam{PrivateData: []byte(question)}))
		return id
	}
	// asked waits for a question. A repetition of an earlier one, sent before the answer to that came, is a new
	// request by now.
	asked := func(question string) verbs.CMEvent {
		for {
			event := passive.Next(verbs.CMConnectRequest)
			if bytes.HasPrefix(event.Param.PrivateData, []byte(question)) {
				return event
			}
			require.NoError(t, event.ID.Close())
		}
	}
	a := ask("who is it?")
	event := asked("who is it?")
	b := event.ID
	assert.Same(t, listener, event.Listener)
	assert.Equal(t, "who is it?", string(event.Param.PrivateData[:10]))
	assert.Len(t, event.Param.PrivateData, 180)
	assert.Equal(t, a.LocalAddr(), b.RemoteAddr())
	assert.Equal(t, a.RemoteAddr(), b.LocalAddr())
	passive.Move(b, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.ErrorIs(t, b.Accept(verbs.CMParam{QPN: 1 << 24}), verbs.ErrInvalid)
	require.ErrorIs(t, b.Accept(verbs.CMParam{QPN: 1}), verbs.ErrInvalid)
	require.ErrorIs(t, b.Accept(verbs.CMParam{QPN: 7, PrivateData: make([]byte, 137)}), verbs.ErrInvalid)
	require.ErrorIs(t, b.Reject(make([]byte, 137)), verbs.ErrInvalid)
	require.NoError(t, b.Accept(passive.Param("me")))
	require.ErrorIs(t, b.Accept(passive.Param("me")), verbs.ErrState)
	require.ErrorIs(t, b.Establish(), verbs.ErrState)

	event = active.Next(verbs.CMEstablished)
	require.Same(t, a, event.ID)
	assert.Equal(t, passive.QP.Num(), event.Param.QPN)
	assert.EqualValues(t, qkey, event.Param.QKey)
	assert.Equal(t, "me", string(event.Param.PrivateData[:2]))
	assert.Len(t, event.Param.PrivateData, 136)
	assert.Equal(t, passive.Side.GID.GID, event.Address.DGID)
	assert.Equal(t, active.Side.GID.Index, event.Address.SGIDIndex)
	require.ErrorIs(t, a.Disconnect(), verbs.ErrState)

	// The response has the attributes for sending a datagram.
	active.Move(a, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	ah, err := active.Side.Device.DefaultPD().CreateAH(event.Address)
	require.NoError(t, err)
	defer ah.Close()
	_, err = passive.QP.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Addr: passive.mr.Addr(), Length: size, LKey: passive.mr.LKey()}}}})
	require.NoError(t, err)
	copy(active.mem, "a datagram")
	_, err = active.QP.PostSend([]verbs.SendWR{{
		Op: verbs.OpSend, Flags: verbs.FlagSignaled, AH: ah, RemoteQPN: event.Param.QPN, RemoteQKey: event.Param.QKey,
		SGL: []verbs.SGE{{Addr: active.mr.Addr(), Length: 10, LKey: active.mr.LKey()}},
	}})
	require.NoError(t, err)
	active.complete()
	passive.complete()
	assert.Equal(t, "a datagram", string(passive.mem[40:50]), "behind the GRH")

	ask("may I?")
	require.NoError(t, asked("may I?").ID.Reject([]byte("no")))
	failed := active.Failed(verbs.CMStepConnect, verbs.ErrRejected)
	assert.Equal(t, verbs.CMRejectConsumer, failed.Reason)
	assert.Equal(t, "no", string(failed.PrivateData[:2]))

	ask("are you there?")
	require.NoError(t, asked("are you there?").ID.Close())
	active.Failed(verbs.CMStepConnect, verbs.ErrRejected)

	require.NoError(t, listener.Close())
	for len(passive.events) > 0 { // repetitions
		require.NoError(t, passive.Next(verbs.CMConnectRequest).ID.Close())
	}
	ask("and now?")
	failed = active.Failed(verbs.CMStepConnect, verbs.ErrNotListening)
	assert.Equal(t, verbs.CMRejectInvalidServiceID, failed.Reason)
	active.Quiet()
	passive.Quiet()
}
