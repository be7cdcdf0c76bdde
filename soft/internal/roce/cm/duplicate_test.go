package cm

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestDuplicateOfRejectedREQ: a program that begins to listen gets no request whose sender was told
// before that nobody listens.
func TestDuplicateOfRejectedREQ(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	req := request(b, 1)
	rejected := func() {
		t.Helper()
		w.forge(b, foreigner, req)
		rej, _ := requireSent[mad.REJ](b)
		require.Equal(t, verbs.CMRejectInvalidServiceID, rej.Reason)
		require.Zero(t, b.Entries().Connections)
	}
	rejected()
	b.listen(ListenParams{Service: testService})
	rejected()
	require.Equal(t, uint64(1), b.Counters().DuplicateREQ)

	// Another request is none of them, nor is this one when no repetition is under way.
	next := *req
	next.LocalCommID++
	w.forge(b, foreigner, &next)
	b.nextEvent(EventConnectRequest)
	w.Now += rejectedLately
	w.forge(b, foreigner, req)
	b.nextEvent(EventConnectRequest)
}

// TestDuplicateREQ answers a REQ that comes again as the kernel does, in every state.
func TestDuplicateREQ(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	b.listen(ListenParams{Service: testService})
	req := request(b, 1)
	again := func() {
		t.Helper()
		before := b.Counters().DuplicateREQ
		w.forge(b, foreigner, req)
		require.Equal(t, before+1, b.Counters().DuplicateREQ)
		require.Equal(t, 1, b.Entries().Connections)
	}
	w.forge(b, foreigner, req)
	conn := b.nextEvent(EventConnectRequest).Conn
	again()
	require.Empty(t, b.sent(), "before an MRA: silence")

	w.Now = b.Deadline()
	b.Expire(w.Now)
	mra, path := requireSent[mad.MRA](b)
	require.Equal(t, "10.0.0.9:4791", path.Remote.String(), "a foreign peer's port is 4791, wherever it sends from")
	require.Equal(t, req.TransactionID, mra.TransactionID)
	require.Equal(t, req.LocalCommID, mra.RemoteCommID)
	require.Equal(t, mad.MessageREQ, mra.Message)
	require.Equal(t, uint8(24), mra.ServiceTimeout, "68.7 s: more than the application has")
	again()
	repeated, _ := requireSent[mad.MRA](b)
	require.Equal(t, mra, repeated)

	require.NoError(t, conn.Accept(AcceptParams{QPN: 0x20}, w.Now))
	rep, _ := requireSent[mad.REP](b)
	again()
	require.Empty(t, b.sent(), "the REP has a timer of its own")

	w.forge(b, foreigner, &mad.RTU{TransactionID: req.TransactionID, LocalCommID: 1, RemoteCommID: rep.LocalCommID})
	b.nextEvent(EventEstablished)
	again()
	require.Empty(t, b.sent())

	dreq := &mad.DREQ{TransactionID: 0x77, LocalCommID: 1, RemoteCommID: rep.LocalCommID, RemoteQPN: 0x20}
	w.forge(b, foreigner, dreq)
	b.nextEvent(EventDisconnected)
	drep, _ := requireSent[mad.DREP](b)
	require.Equal(t, uint64(0x77), drep.TransactionID)
	again()
	rej, _ := requireSent[mad.REJ](b)
	require.Equal(t, verbs.CMRejectStaleConnection, rej.Reason)
	require.Equal(t, req.LocalCommID, rej.RemoteCommID)
	require.Equal(t, req.TransactionID, rej.TransactionID)

	// The DREQ again, in time-wait.
	w.forge(b, foreigner, dreq)
	requireSent[mad.DREP](b)
	require.Equal(t, uint64(1), b.Counters().DuplicateDREQ)
	b.requireNoEvent()

	// After time-wait, which the peer's local ACK timeout has set, it is a new request.
	require.Equal(t, w.Now+timeoutDuration(19), b.Deadline())
	w.Now = b.Deadline()
	b.Expire(w.Now)
	b.nextEvent(EventTimeWaitExit)
	w.forge(b, foreigner, req)
	b.nextEvent(EventConnectRequest)
}

// TestDuplicateREP answers a REP that comes again.
func TestDuplicateREP(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	conn, err := a.Connect(a.params(b), w.Now)
	require.NoError(t, err)
	req, _ := requireSent[mad.REQ](a)
	rep := &mad.REP{TransactionID: req.TransactionID, LocalCommID: 0x55, RemoteCommID: req.LocalCommID, QPN: 0x66, CAGUID: 0x77}
	w.forge(a, "10.0.0.2:50001", rep)
	a.nextEvent(EventConnectResponse)
	w.forge(a, "10.0.0.2:50002", rep)
	require.Empty(t, a.sent(), "before an MRA: silence")

	w.Now = a.Deadline()
	a.Expire(w.Now)
	mra, _ := requireSent[mad.MRA](a)
	require.Equal(t, mad.MessageREP, mra.Message)
	require.Equal(t, uint32(0x55), mra.RemoteCommID)
	w.forge(a, "10.0.0.2:50003", rep)
	again, _ := requireSent[mad.MRA](a)
	require.Equal(t, mra, again)

	require.NoError(t, conn.Establish([]byte("ready"), w.Now))
	rtu, _ := requireSent[mad.RTU](a)
	w.forge(a, "10.0.0.2:50004", rep)
	repeated, _ := requireSent[mad.RTU](a)
	require.Equal(t, rtu, repeated, "with its private data")
	require.Equal(t, zeroed("ready", 224), rtu.PrivateData)
	require.Equal(t, uint64(3), a.Counters().DuplicateREP)

	require.NoError(t, conn.Disconnect(DisconnectParams{}, w.Now))
	a.sent()
	w.forge(a, "10.0.0.2:50004", rep)
	require.Empty(t, a.sent())
	a.requireNoEvent()
}

// TestUnknown: messages for unknown connections. Peers that wait for an answer get one.
func TestUnknown(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	w.forge(b, foreigner, &mad.DREQ{TransactionID: 1, LocalCommID: 2, RemoteCommID: 3, RemoteQPN: 4})
	drep, path := requireSent[mad.DREP](b)
	require.Equal(t, "10.0.0.9:4791", path.Remote.String())
	require.Equal(t, uint64(1), drep.TransactionID)
	require.Equal(t, uint32(3), drep.LocalCommID)
	require.Equal(t, uint32(2), drep.RemoteCommID)

	w.forge(b, foreigner, &mad.REP{TransactionID: 1, LocalCommID: 2, RemoteCommID: 3, QPN: 4})
	rej, _ := requireSent[mad.REJ](b)
	require.Equal(t, verbs.CMRejectInvalidCommID, rej.Reason)
	require.Equal(t, mad.MessageREP, rej.Message)
	require.Equal(t, uint32(3), rej.LocalCommID)
	require.Equal(t, uint32(2), rej.RemoteCommID)

	for _, m := range []encoder{
		&mad.RTU{LocalCommID: 2, RemoteCommID: 3}, &mad.DREP{LocalCommID: 2, RemoteCommID: 3}, &mad.REJ{LocalCommID: 2, RemoteCommID: 3},
		&mad.REJ{LocalCommID: 2, Reason: verbs.CMRejectTimeout, Info: make([]byte, 8)}, &mad.MRA{LocalCommID: 2, RemoteCommID: 3},
		&mad.LAP{LocalCommID: 2, RemoteCommID: 3}, &mad.SIDRREP{RequestID: 3},
	} {
		w.forge(b, foreigner, m)
		require.Empty(t, b.sent(), "%T", m)
	}
	require.Equal(t, uint64(9), b.Counters().UnknownConnection)
	w.forge(b, foreigner, &mad.APR{})
	require.Equal(t, uint64(1), b.Counters().WrongState)
	b.requireNoEvent()
	b.requireEmpty()
}

// TestAlternatePath: alternate paths are not supported. The answer to a REQ with one says so,
// and a LAP is refused.
func TestAlternatePath(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	b.listen(ListenParams{Service: testService})
	req := request(b, 1)
	req.Alternate.LocalLID = 7
	w.forge(b, foreigner, req)
	conn := b.nextEvent(EventConnectRequest).Conn
	lap := &mad.LAP{TransactionID: 0x88, LocalCommID: 1, RemoteCommID: conn.localID, RemoteQPN: 0x20}
	w.forge(b, foreigner, lap)
	require.Empty(t, b.sent())
	require.NoError(t, conn.Accept(AcceptParams{QPN: 0x20}, w.Now))
	rep, _ := requireSent[mad.REP](b)
	require.Equal(t, mad.FailoverNotSupported, rep.Failover)
	conn.CommunicationEstablished(w.Now)
	w.forge(b, foreigner, lap)
	apr, _ := requireSent[mad.APR](b)
	require.Equal(t, mad.APNotSupported, apr.Status)
	require.Equal(t, uint64(0x88), apr.TransactionID)
	lap.RemoteQPN++
	w.forge(b, foreigner, lap)
	require.Empty(t, b.sent())
}

// TestSlowAcceptor: if an application needs a long time to accept, its peer gets an MRA before
// the response timeout, and waits.
func TestSlowAcceptor(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{0, 1} {
		w, a, b := pair(t, faults{})
		w.tracing = true
		mras := 0
		w.drop = func(_, _ *host, attribute mad.Attribute, _ []byte) bool {
			if attribute == mad.AttrMRA {
				mras++
			}
			return attribute == mad.AttrMRA && mras <= lost
		}
		b.listen(ListenParams{Service: testService})
		b.app = func(e *Event) {
			if e.Type == EventConnectRequest {
				w.After(50*time.Second, func() { b.accept(e.Conn) })
			}
		}
		a.app = func(e *Event) {
			if e.Type == EventConnectResponse {
				w.After(20*time.Second, func() {
					require.NoError(t, e.Conn.Establish(nil, w.Now))
					a.settle()
				})
			}
		}
		p := a.params(b)
		p.MaxCMRetries = 3
		a.connect(p)
		w.Pass(100 * time.Second)
		require.Equal(t, "C", a.reports())
		require.Equal(t, "request, E", b.reports())
		if lost == 0 {
			require.Equal(t, []string{"A REQ", "A REQ", "B MRA", "B REP", "B REP", "A MRA", "A RTU"}, w.trace)
		} else {
			// The REQ comes again and is answered by the MRA again.
			require.Equal(t, []string{"A REQ", "A REQ", "B MRA", "A REQ", "B MRA", "B REP", "B REP", "A MRA", "A RTU"}, w.trace)
		}
	}
}

// TestMRABounds: MRAs cannot make an end wait forever.
func TestMRABounds(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	p := a.params(b)
	p.MaxCMRetries = 2
	_, err := a.Connect(p, w.Now)
	require.NoError(t, err)
	req, _ := requireSent[mad.REQ](a)
	mra := &mad.MRA{TransactionID: req.TransactionID, LocalCommID: 5, RemoteCommID: req.LocalCommID, ServiceTimeout: 31}
	w.forge(a, "10.0.0.2:4791", mra)
	require.Equal(t, w.Now+70*time.Second+timeoutDuration(18), a.Deadline())
	mra.ServiceTimeout = 0
	w.forge(a, "10.0.0.2:4791", mra)
	require.Equal(t, w.Now+70*time.Second+timeoutDuration(18), a.Deadline(), "an MRA does not shorten a wait")
	mra.ServiceTimeout = 31
	w.Now += time.Second
	w.forge(a, "10.0.0.2:4791", mra)
	require.Equal(t, w.Now-time.Second+70*time.Second+timeoutDuration(18), a.Deadline(), "the third does not count")

	// A deadline of the caller holds, MRA or not.
	p.QPN, p.Deadline = a.newQPN(), w.Now+5*time.Second
	_, err = a.Connect(p, w.Now)
	require.NoError(t, err)
	req, _ = requireSent[mad.REQ](a)
	mra.TransactionID, mra.RemoteCommID = req.TransactionID, req.LocalCommID
	w.forge(a, "10.0.0.2:4791", mra)
	require.Equal(t, p.Deadline, a.Deadline())
	w.Now = p.Deadline
	a.Expire(w.Now)
	require.Equal(t, CauseDeadline, a.nextEvent(EventUnreachable).Cause)
	a.nextEvent(EventTimeWaitExit)
	rej, _ := requireSent[mad.REJ](a)
	require.Equal(t, verbs.CMRejectTimeout, rej.Reason)
	require.Len(t, rej.Info, 8)
	// An MRA of a message that is not waited for.
	mra.Message = mad.MessageREP
	w.forge(a, "10.0.0.2:4791", mra)
	require.NotZero(t, a.Counters().UnknownConnection)
}

// TestMRAForREP: the passive end waits too, but not longer than its handshakes may take.
func TestMRAForREP(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	b.listen(ListenParams{Service: testService})
	w.forge(b, foreigner, request(b, 1))
	conn := b.nextEvent(EventConnectRequest).Conn
	require.NoError(t, conn.Accept(AcceptParams{QPN: 0x20, Deadline: w.Now + time.Hour}, w.Now))
	b.sent()
	accepted := w.Now
	for range 20 {
		w.forge(b, foreigner, &mad.MRA{TransactionID: conn.transactionID, LocalCommID: 1, RemoteCommID: conn.localID, Message: mad.MessageREP, ServiceTimeout: 31})
	}
	require.Equal(t, accepted+time.Minute, b.Deadline())
	w.Now = b.Deadline()
	b.Expire(w.Now)
	require.Equal(t, CauseTimeout, b.nextEvent(EventUnreachable).Cause)
	rej, _ := requireSent[mad.REJ](b)
	require.Equal(t, verbs.CMRejectTimeout, rej.Reason)
	require.Equal(t, mad.MessageOther, rej.Message, "no message of the peer's")
	require.Equal(t, binary.BigEndian.AppendUint64(nil, b.CAGUID()), rej.Info, "the kernel finds the connection by it")
}
