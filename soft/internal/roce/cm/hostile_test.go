package cm

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// established is two hosts with a connection.
func established(t tb) (w *network, a, b *host, active, passive *Conn) {
	w, a, b = pair(t, faults{})
	a.answerAll()
	b.answerAll()
	b.listen(ListenParams{Service: testService})
	active = a.connect(a.params(b))
	w.Pass(time.Millisecond)
	passive = b.all[0].Conn
	require.Equal(t, StateEstablished, passive.State())
	a.all, b.all = nil, nil
	return w, a, b, active, passive
}

// TestExpected: every message but a first request names a connection of its receiver, and is
// expected. From another address, or a second time, it is not.
func TestExpected(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	a.answerAll()
	b.answerAll()
	b.listen(ListenParams{Service: testService})
	b.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD})
	seen := make(map[mad.Attribute]bool)
	var last [mad.Len]byte
	w.drop = func(from, to *host, attribute mad.Attribute, m []byte) bool {
		path, elsewhere := to.pathTo(from), to.pathTo(from)
		elsewhere.Remote = netip.MustParseAddrPort("10.0.0.3:4791")
		known := attribute != mad.AttrREQ && attribute != mad.AttrSIDRREQ
		assert.Equal(t, known, to.NamesConnection(m, &path), "%v", attribute)
		assert.False(t, to.NamesConnection(m, &elsewhere), "%v", attribute)
		assert.False(t, to.NamesConnection(m[:mad.Len-1], &path), "%v", attribute)
		assert.True(t, to.Receive(m, path, w.Now), "%v", attribute)
		seen[attribute] = true
		copy(last[:], m)
		to.settle()
		return true
	}
	active := a.connect(a.params(b))
	w.Pass(time.Second)
	require.NoError(t, active.Disconnect(DisconnectParams{}, w.Now))
	a.settle()
	w.Pass(time.Second)
	assert.False(t, a.Receive(last[:], a.pathTo(b), w.Now), "the DREP again")
	a.resolve(b)
	w.Pass(time.Second)
	assert.False(t, a.Receive(last[:], a.pathTo(b), w.Now), "the SIDR_REP again")
	for _, attribute := range []mad.Attribute{mad.AttrREQ, mad.AttrREP, mad.AttrRTU, mad.AttrDREQ, mad.AttrDREP, mad.AttrSIDRREQ, mad.AttrSIDRREP} {
		assert.True(t, seen[attribute], "%v", attribute)
	}
}

// TestWrongPeer: messages that are correct except for their source address.
func TestWrongPeer(t *testing.T) {
	t.Parallel()
	w, a, b, active, passive := established(t)
	ids := func(c *Conn) (uint64, uint32, uint32) { return c.transactionID, c.remoteID, c.localID }
	tid, local, remote := ids(passive)
	for i, m := range []encoder{
		&mad.DREQ{TransactionID: 1, LocalCommID: local, RemoteCommID: remote, RemoteQPN: passive.localQPN},
		&mad.REJ{TransactionID: tid, LocalCommID: local, RemoteCommID: remote, Reason: verbs.CMRejectTimeout},
		&mad.RTU{TransactionID: tid, LocalCommID: local, RemoteCommID: remote},
		&mad.DREP{TransactionID: tid, LocalCommID: local, RemoteCommID: remote},
		&mad.MRA{TransactionID: tid, LocalCommID: local, RemoteCommID: remote},
		&mad.LAP{TransactionID: tid, LocalCommID: local, RemoteCommID: remote, RemoteQPN: passive.localQPN},
		&mad.REJ{TransactionID: tid, LocalCommID: local, Reason: verbs.CMRejectTimeout, Info: binary.BigEndian.AppendUint64(nil, passive.caGUID)},
	} {
		w.forge(b, "10.0.0.3:4791", m)
		require.Empty(t, b.sent(), "%T", m)
		if i < 6 {
			require.Equal(t, uint64(i+1), b.Counters().WrongPeer, "%T", m)
		}
	}
	// To another address of the device.
	var d [mad.Len]byte
	require.NoError(t, (&mad.DREQ{LocalCommID: local, RemoteCommID: remote, RemoteQPN: passive.localQPN}).Encode(&d))
	b.Receive(d[:], Path{Local: netip.MustParseAddrPort("10.0.0.22:4791"), Remote: a.address}, w.Now)
	require.Equal(t, uint64(7), b.Counters().WrongPeer)

	tid, local, remote = ids(active)
	w.forge(a, "10.0.0.3:4791", &mad.REP{TransactionID: tid, LocalCommID: local, RemoteCommID: remote, QPN: 0x66})
	require.Equal(t, uint64(1), a.Counters().WrongPeer)
	require.Empty(t, a.sent())
	require.Equal(t, StateEstablished, active.State())
	require.Equal(t, StateEstablished, passive.State())
	a.requireNoEvent()
	b.requireNoEvent()
}

// TestWrongIDs: messages from the right address with wrong communication IDs, transaction IDs
// or queue pairs.
func TestWrongIDs(t *testing.T) {
	t.Parallel()
	w, a, b, active, passive := established(t)
	from := a.address.String()
	tid, local, remote, qpn := passive.transactionID, passive.remoteID, passive.localID, passive.localQPN
	for _, c := range []struct {
		m       encoder
		counter func(c Counters) uint64
		replies int
	}{
		{&mad.DREQ{LocalCommID: local + 1, RemoteCommID: remote, RemoteQPN: qpn}, func(c Counters) uint64 { return c.UnknownConnection }, 1},
		{&mad.DREQ{LocalCommID: local, RemoteCommID: remote + 1, RemoteQPN: qpn}, func(c Counters) uint64 { return c.UnknownConnection }, 1},
		{&mad.DREQ{LocalCommID: local, RemoteCommID: remote, RemoteQPN: qpn + 1}, func(c Counters) uint64 { return c.WrongQPN }, 0},
		{&mad.REJ{TransactionID: tid + 1, LocalCommID: local, RemoteCommID: remote}, func(c Counters) uint64 { return c.WrongTransaction }, 0},
		{&mad.REJ{TransactionID: tid, LocalCommID: 0, RemoteCommID: remote}, func(c Counters) uint64 { return c.UnknownConnection }, 0},
		{&mad.RTU{TransactionID: tid + 1, LocalCommID: local, RemoteCommID: remote}, func(c Counters) uint64 { return c.WrongTransaction }, 0},
		{&mad.DREP{TransactionID: 0, LocalCommID: local, RemoteCommID: remote}, func(c Counters) uint64 { return c.WrongTransaction }, 0},
		{&mad.MRA{TransactionID: tid + 1, LocalCommID: local, RemoteCommID: remote}, func(c Counters) uint64 { return c.WrongTransaction }, 0},
		{&mad.MRA{TransactionID: tid, LocalCommID: local, RemoteCommID: remote}, func(c Counters) uint64 { return c.WrongState }, 0},
		// A REP for a connection that is passive.
		{&mad.REP{TransactionID: tid, LocalCommID: local, RemoteCommID: remote, QPN: 5}, func(c Counters) uint64 { return c.UnknownConnection }, 0},
	} {
		before := c.counter(b.Counters())
		w.forge(b, from, c.m)
		require.Equal(t, before+1, c.counter(b.Counters()), "%T", c.m)
		require.Len(t, b.sent(), c.replies, "%T", c.m)
	}
	require.Equal(t, StateEstablished, passive.State())
	b.requireNoEvent()

	// A REP that does not know the transaction ID.
	w.hosts[b.address].dead = true
	dial, err := a.Connect(a.params(b), w.Now)
	require.NoError(t, err)
	a.sent()
	w.forge(a, b.address.String(), &mad.REP{TransactionID: dial.transactionID ^ 1, LocalCommID: 5, RemoteCommID: dial.localID, QPN: 5})
	require.Equal(t, uint64(1), a.Counters().WrongTransaction)
	w.forge(a, b.address.String(), &mad.REP{TransactionID: dial.transactionID, LocalCommID: 5, RemoteCommID: dial.localID, QPN: 1})
	require.Equal(t, uint64(1), a.Counters().Malformed)
	w.forge(a, b.address.String(), &mad.MRA{TransactionID: dial.transactionID ^ 1, LocalCommID: 5, RemoteCommID: dial.localID})
	w.forge(a, b.address.String(), &mad.REJ{TransactionID: dial.transactionID ^ 1, LocalCommID: 5, RemoteCommID: dial.localID})
	require.Equal(t, uint64(3), a.Counters().WrongTransaction)
	require.Equal(t, StateREQSent, dial.State())
	require.Equal(t, StateEstablished, active.State())
	a.requireNoEvent()

	// A second REP, of another connection of the peer's, that has all but its own ID right.
	tid, local, remote = active.transactionID, active.remoteID, active.localID
	before := a.Counters().UnknownConnection
	w.forge(a, b.address.String(), &mad.REP{TransactionID: tid, LocalCommID: local + 1, RemoteCommID: remote, QPN: 5})
	require.Equal(t, before+1, a.Counters().UnknownConnection)
	require.Empty(t, a.sent())

	// A DREP to another DREQ than ours.
	require.NoError(t, active.Disconnect(DisconnectParams{}, w.Now))
	a.sent()
	w.forge(a, b.address.String(), &mad.DREP{TransactionID: active.transactionIDClose ^ 1, LocalCommID: local, RemoteCommID: remote})
	require.Equal(t, StateDREQSent, active.State())
	w.forge(a, b.address.String(), &mad.DREP{TransactionID: active.transactionIDClose, LocalCommID: local, RemoteCommID: remote})
	require.Equal(t, StateTimeWait, active.State())
}

// TestPeerOfAnotherPort: a peer that does not use port 4791 is identified by its own port.
func TestPeerOfAnotherPort(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 1, faults{})
	a, b := w.attach("A", "10.0.0.1:5000", Config{}), w.attach("B", "10.0.0.1:5001", Config{})
	b.answerAll()
	a.answerAll()
	b.listen(ListenParams{Service: testService})
	conn := a.connect(a.params(b))
	w.Pass(time.Millisecond)
	passive := b.all[0].Conn
	for _, port := range []string{"5002", "4791"} {
		w.forge(b, "10.0.0.1:"+port, &mad.DREQ{LocalCommID: conn.localID, RemoteCommID: conn.remoteID, RemoteQPN: passive.localQPN})
		w.forge(a, "10.0.0.1:"+port, &mad.DREQ{LocalCommID: passive.localID, RemoteCommID: conn.localID, RemoteQPN: conn.localQPN})
	}
	require.Equal(t, uint64(2), a.Counters().WrongPeer)
	require.Equal(t, uint64(2), b.Counters().WrongPeer)
	require.Equal(t, StateEstablished, conn.State())
	require.Equal(t, StateEstablished, passive.State())
}

// TestMalformedREQ: fields of a REQ that are invalid, or that this device does not support.
func TestMalformedREQ(t *testing.T) {
	t.Parallel()
	other := verbs.GIDFromAddr(netip.MustParseAddr("10.0.0.77"))
	for i, c := range []struct {
		change  func(r *mad.REQ)
		reason  mad.Reason // 0: silence
		counter func(c Counters) uint64
	}{
		{func(r *mad.REQ) { r.QPN = 1 }, 0, func(c Counters) uint64 { return c.Malformed }},
		{func(r *mad.REQ) { r.Primary.LocalGID = other }, 0, func(c Counters) uint64 { return c.AddressMismatch }},
		{func(r *mad.REQ) { r.PrivateData[19]++ }, 0, func(c Counters) uint64 { return c.AddressMismatch }},
		{func(r *mad.REQ) { r.PrivateData[35]++ }, 0, func(c Counters) uint64 { return c.AddressMismatch }},
		{func(r *mad.REQ) { r.Primary.RemoteGID = other }, mad.ReasonInvalidGID, func(c Counters) uint64 { return c.UnsupportedRequest }},
		{func(r *mad.REQ) { r.PrivateData[0] = 1 }, verbs.CMRejectUnsupported, func(c Counters) uint64 { return c.UnsupportedRequest }},
		{func(r *mad.REQ) { r.PrivateData[1] = 0x50 }, verbs.CMRejectUnsupported, func(c Counters) uint64 { return c.UnsupportedRequest }},
		{func(r *mad.REQ) { r.PKey = 0x8001 }, verbs.CMRejectUnsupported, func(c Counters) uint64 { return c.UnsupportedRequest }},
		{func(r *mad.REQ) { r.Transport = mad.TransportRD }, mad.ReasonInvalidTransport, func(c Counters) uint64 { return c.UnsupportedRequest }},
		{func(r *mad.REQ) { r.Transport, r.ExtendedTransport = mad.TransportExtended, 1 }, mad.ReasonInvalidTransport, func(c Counters) uint64 { return c.UnsupportedRequest }},
		{func(r *mad.REQ) { r.PathMTU = 0 }, verbs.CMRejectInvalidMTU, func(c Counters) uint64 { return c.UnsupportedRequest }},
		{func(r *mad.REQ) { r.PathMTU = 6 }, verbs.CMRejectInvalidMTU, func(c Counters) uint64 { return c.UnsupportedRequest }},
		{func(r *mad.REQ) { r.ServiceID |= 1 << 40 }, verbs.CMRejectInvalidServiceID, func(c Counters) uint64 { return c.NoService }},
	} {
		w, _, b := pair(t, faults{})
		b.listen(ListenParams{Service: testService})
		r := request(b, 1)
		c.change(r)
		w.forge(b, foreigner, r)
		require.Equal(t, uint64(1), c.counter(b.Counters()), i)
		if c.reason != 0 {
			rej, _ := requireSent[mad.REJ](b)
			require.Equal(t, c.reason, rej.Reason, i)
			require.Equal(t, mad.MessageREQ, rej.Message)
			require.Equal(t, uint32(1), rej.RemoteCommID)
			require.Zero(t, rej.LocalCommID)
		}
		require.Empty(t, b.sent(), i)
		b.requireNoEvent()
		b.requireEmpty()
	}
	w, _, b := pair(t, faults{})
	for _, n := range []int{0, 1, 24, 255, 257} {
		b.Receive(make([]byte, n), Path{}, w.Now)
	}
	require.Equal(t, uint64(5), b.Counters().Malformed)
}

// TestLimitsOfREQ: values that a peer requests are reduced to the limits.
func TestLimitsOfREQ(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ack, response uint8
		timeout       uint8
		repeat, wait  time.Duration
	}{
		{0, 0, 14, timeoutDuration(14), timeoutDuration(14)},
		{31, 31, 21, timeoutDuration(22), 2200 * time.Millisecond},
		{18, 16, 18, timeoutDuration(16), timeoutDuration(18)},
	} {
		w, _, b := pair(t, faults{})
		b.listen(ListenParams{Service: testService})
		r := request(b, 1)
		r.Primary.AckTimeout, r.LocalResponseTimeout, r.ResponderResources, r.InitiatorDepth = c.ack, c.response, 255, 255
		r.Primary.TrafficClass = 0x23
		w.forge(b, foreigner, r)
		conn := b.nextEvent(EventConnectRequest).Conn
		require.Equal(t, uint8(255), conn.Params().ResponderResources)
		require.NoError(t, conn.Prepare(AcceptParams{QPN: 2, ResponderResources: 16, InitiatorDepth: 8}))
		attr, _, err := conn.QPAttr(verbs.QPReadyToSend)
		require.NoError(t, err)
		require.Equal(t, c.timeout, attr.Timeout)
		require.Equal(t, 8, attr.MaxInitReadAtomic)
		attr, _, err = conn.QPAttr(verbs.QPReadyToReceive)
		require.NoError(t, err)
		require.Equal(t, 16, attr.MaxDestReadAtomic)
		require.Equal(t, uint8(0x20), attr.Address.TrafficClass, "congestion is not the peer's to declare")
		require.NoError(t, conn.Accept(AcceptParams{QPN: 2, ResponderResources: 255, InitiatorDepth: 255}, w.Now))
		require.Equal(t, uint8(16), conn.Params().ResponderResources, "Prepare has said so")
		require.Equal(t, c.repeat, conn.retransmission.responseTimeout)
		require.Equal(t, w.Now+min(c.repeat, initialTimeout), b.Deadline())
		conn.CommunicationEstablished(w.Now)
		w.forge(b, foreigner, &mad.DREQ{LocalCommID: 1, RemoteCommID: conn.localID, RemoteQPN: 2})
		require.Equal(t, w.Now+c.wait, b.Deadline())
	}
}

// TestStaleLie: a forged REQ claims the queue pair of a live connection for its sender, from
// the peer's own address, with everything that is known outside.
func TestStaleLie(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"passive", "active"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			w, a, b, active, passive := established(t)
			w.tracing = true
			liar, victim, conn := a, b, passive
			if side == "active" {
				liar, victim, conn = b, a, active
				a.listen(ListenParams{Service: testService})
			}
			lie := func(id uint32) {
				r := request(victim, id)
				r.CAGUID, r.QPN, r.Primary.LocalGID = liar.CAGUID(), conn.remoteQPN, verbs.GIDFromAddr(liar.address.Addr())
				var d [mad.Len]byte
				require.NoError(t, r.Encode(&d))
				w.arrive(liar.address, victim, d[:], Path{}, 0)
			}
			lie(1)
			w.Pass(100 * time.Millisecond)
			// The liar gets a REJ, which its victim does not understand, and the peer is asked.
			require.Equal(t, []string{victim.name + " DREQ", victim.name + " REJ"}, w.trace)
			require.Equal(t, uint64(1), liar.Counters().WrongQPN, "the peer ignores the question")
			for id := range uint32(100) {
				lie(2 + id)
			}
			require.Equal(t, uint64(1), victim.Counters().Probes, "and is not asked for every lie")
			require.Equal(t, uint64(101), victim.Counters().StaleConnection)
			w.run(time.Minute)
			require.Equal(t, StateEstablished, active.State())
			require.Equal(t, StateEstablished, passive.State())
			require.Empty(t, a.all)
			require.Empty(t, b.all)

			// From another address, or as another device, it is not even a lie.
			for i, change := range []func(r *mad.REQ){func(r *mad.REQ) { r.QPN = conn.remoteQPN }, func(r *mad.REQ) { r.CAGUID = liar.CAGUID() }} {
				r := request(victim, 1000+uint32(i))
				change(r)
				w.forge(victim, foreigner, r)
				require.Equal(t, EventConnectRequest, victim.nextEvent(EventConnectRequest).Type)
			}
			require.Equal(t, uint64(1), victim.Counters().Probes)
		})
	}
}

// TestStale: a peer that was killed and comes back with the same queue pair numbers. Its
// first REQ is rejected, the old connection ends, the next one succeeds.
func TestStale(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"passive", "active"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			w, a, b, active, passive := established(t)
			killed, other, old := a, b, passive
			if side == "active" {
				killed, other, old = b, a, active
				a.listen(ListenParams{Service: testService})
			}
			killed.kill(false)
			again := w.attach("again", killed.address.String(), Config{CAGUID: killed.CAGUID()})
			again.answerAll()
			p := again.params(other)
			p.QPN = old.remoteQPN
			again.connect(p)
			w.Pass(100 * time.Millisecond)
			require.Equal(t, "R 10", again.reports())
			require.Equal(t, "D the peer no longer has the connection", other.reports())
			require.Equal(t, StateTimeWait, old.State())

			conn := again.connect(p)
			w.Pass(10 * time.Second)
			require.Equal(t, StateEstablished, conn.State())
			require.Equal(t, StateIdle, old.State())
		})
	}
}

// TestStaleREP: a peer answers with a queue pair that a connection with it has. The kernel
// rejects the REP, and so do we.
func TestStaleREP(t *testing.T) {
	t.Parallel()
	w, a, b, active, _ := established(t)
	b.kill(false)
	again := w.attach("again", b.address.String(), Config{CAGUID: b.CAGUID()})
	again.listen(ListenParams{Service: testService})
	again.app = func(e *Event) {
		if e.Type == EventConnectRequest {
			require.NoError(t, e.Conn.Accept(AcceptParams{QPN: active.remoteQPN}, w.Now))
		}
	}
	a.connect(a.params(b))
	w.Pass(time.Millisecond)
	require.Equal(t, "R 10, D the peer no longer has the connection", a.reports())
	require.Equal(t, CauseStale, a.all[0].Cause)
	require.Equal(t, "request, R 10", again.reports())
	a.connect(a.params(b))
	w.Pass(time.Minute)
	require.Contains(t, a.reports(), "C")
}

// TestTwoREQsOfOneQP: two requests with the same queue pair are in progress at once, and one
// may be forged. The sender that has received the REP wins.
func TestTwoREQsOfOneQP(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	b.listen(ListenParams{Service: testService})
	first, second := request(b, 1), request(b, 2)
	second.QPN = first.QPN
	w.forge(b, foreigner, first)
	w.forge(b, foreigner, second)
	one, two := b.nextEvent(EventConnectRequest).Conn, b.nextEvent(EventConnectRequest).Conn
	for i, c := range []*Conn{one, two} {
		require.NoError(t, c.Accept(AcceptParams{QPN: uint32(0x20 + i)}, w.Now))
	}
	b.sent()
	w.forge(b, foreigner, &mad.RTU{TransactionID: second.TransactionID, LocalCommID: 2, RemoteCommID: two.localID})
	require.Same(t, two, b.nextEvent(EventEstablished).Conn)
	w.forge(b, foreigner, &mad.RTU{TransactionID: first.TransactionID, LocalCommID: 1, RemoteCommID: one.localID})
	e := b.nextEvent(EventRejected)
	require.Same(t, one, e.Conn)
	require.Equal(t, CauseStale, e.Cause)
	require.Equal(t, StateEstablished, two.State())
	require.Equal(t, StateTimeWait, one.State())
}

// TestFlood: REQs of unknown hosts, both well-formed and random ones, occupy no more memory
// than the limits allow and do not affect established connections. Afterwards others can
// connect.
func TestFlood(t *testing.T) {
	t.Parallel()
	w, a, b, active, passive := established(t)
	b.config.MaxHalfOpen = 200
	other := Service{PortSpaceTCP, 2}
	l := b.listen(ListenParams{Service: other, Backlog: 60})
	third := Service{PortSpaceTCP, 3}
	b.listen(ListenParams{Service: third})
	b.stopped = true // the peer does not answer
	random := rand.New(rand.NewPCG(1, 1))
	sent := 0
	for i := range uint32(50_000) {
		r := request(b, i+1)
		r.ServiceID = other.ID()
		if i >= 25_000 {
			r.ServiceID = third.ID()
		}
		r.CAGUID = random.Uint64()
		before := b.Counters().Sent
		w.forge(b, foreigner, r)
		sent += int(b.Counters().Sent - before)
		var noise [mad.Len]byte
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		copy(noise[:], "\x01\x07\x02\x03\x00\x00")
		noise[16], noise[17] = 0, 0x10+byte(i%11)
		b.Receive(noise[:], Path{Local: b.address, Remote: netip.MustParseAddrPort(foreigner)}, w.Now)
		require.LessOrEqual(t, len(b.sent()), 2, "one answer at most to each of the two")
		if i == 24_999 {
			require.Equal(t, 60, l.HalfOpen())
			require.Equal(t, 61, b.Entries().Connections)
		}
	}
	e := b.Entries()
	require.Equal(t, 101, e.Connections)
	require.Equal(t, 100, e.HalfOpen)
	require.Equal(t, 100, e.Timers)
	require.Equal(t, 100, e.Events)
	require.Zero(t, sent, "nobody has accepted: nothing goes back")
	require.Equal(t, uint64(24_940), b.Counters().BacklogFull)
	require.Equal(t, uint64(24_960), b.Counters().HalfOpenFull)
	b.requireSane()

	// An established connection works on.
	require.NoError(t, active.Disconnect(DisconnectParams{}, w.Now))
	a.settle()
	w.Pass(time.Millisecond)
	require.Equal(t, "D disconnected", a.reports())
	require.Equal(t, StateTimeWait, passive.State())

	// Nobody has taken the requests, so the application is not troubled with them when
	// they have expired, and an honest peer gets through.
	w.Pass(2 * time.Minute)
	require.Equal(t, uint64(100), b.Counters().HandshakesExpired)
	require.Zero(t, b.Entries().Connections)
	require.Equal(t, 100, b.Entries().HalfOpen, "events that wait are counted")
	b.stopped = false
	b.all = nil
	b.settle()
	require.Zero(t, b.Entries().HalfOpen)
	b.answerAll()
	p := a.params(b)
	p.Service = other
	conn := a.connect(p)
	w.Pass(time.Second)
	require.Equal(t, StateEstablished, conn.State())
	require.Equal(t, "D disconnected by the peer, request, E", b.reports())
}

// TestFloodOfOneAddress: one address takes all the places that it can get, by requests that nobody
// answers or confirms. A newcomer finds a place at once, and no request of it is dropped.
func TestFloodOfOneAddress(t *testing.T) {
	t.Parallel()
	datagrams := Service{PortSpaceUDP, 7}
	for name, c := range map[string]struct {
		listeners, backlog, maxHalfOpen int
		accepts                         bool // the application accepts at once
		udp                             bool
	}{
		"one listener":               {listeners: 1, backlog: 50, maxHalfOpen: 4096},
		"one listener that accepts":  {listeners: 1, backlog: 50, maxHalfOpen: 4096, accepts: true},
		"a small backlog":            {listeners: 1, backlog: 1, maxHalfOpen: 4096},
		"many listeners":             {listeners: 8, backlog: 50, maxHalfOpen: 100},
		"many listeners that accept": {listeners: 8, backlog: 50, maxHalfOpen: 100, accepts: true},
		"datagrams":                  {listeners: 1, backlog: 50, maxHalfOpen: 4096, udp: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, a, b := pair(t, faults{})
			b.config.MaxHalfOpen = c.maxHalfOpen
			service, transport := testService, verbs.RC
			if c.udp {
				service, transport = datagrams, verbs.UD
			}
			for i := range c.listeners {
				service.Port += uint16(i)
				b.listen(ListenParams{Service: service, Transport: transport, Backlog: c.backlog})
			}
			if c.accepts {
				b.answerAll()
			} else {
				b.stopped = true
			}
			flood := func() {
				for i := range uint32(1000) {
					r := request(b, i+1)
					r.ServiceID = service.ID()
					if c.udp {
						w.forge(b, foreigner, &mad.SIDRREQ{RequestID: i, PKey: 0xffff, ServiceID: service.ID(), PrivateData: r.PrivateData})
					} else {
						w.forge(b, foreigner, r)
					}
					b.settle()
				}
			}
			flood()
			full := b.Counters().BacklogFull + b.Counters().HalfOpenFull
			require.Positive(t, full)
			held := b.Entries().HalfOpen
			require.LessOrEqual(t, held, min(c.backlog*c.listeners, c.maxHalfOpen/2))
			if c.udp {
				_, err := a.Resolve(ResolveParams{Service: service, Path: a.pathTo(b)}, w.Now)
				require.NoError(t, err)
			} else {
				p := a.params(b)
				p.Service = service
				a.connect(p)
			}
			a.settle()
			w.Pass(time.Millisecond)
			require.Equal(t, full, b.Counters().BacklogFull+b.Counters().HalfOpenFull, "the newcomer's request was dropped")
			if c.accepts {
				require.Equal(t, "C", a.reports())
			} else {
				require.Equal(t, held+1, b.Entries().HalfOpen)
			}
			flood()
			b.requireSane()
		})
	}
}

// TestFloodOfOneNetwork: a host that sends from all IPv6 addresses of its /64 network gets as many
// places as from one.
func TestFloodOfOneNetwork(t *testing.T) {
	t.Parallel()
	_, _, b := pair(t, faults{})
	l := b.listen(ListenParams{Service: testService, Backlog: 10})
	gid := func(network, host byte) verbs.GID {
		return verbs.GID{0: 0x20, 1: 0x01, 7: network, 8: host, 15: host}
	}
	for i := range byte(10) {
		require.True(t, b.admit(l, gid(1, i)))
	}
	require.False(t, b.admit(l, gid(1, 10)), "another address of the network")
	require.True(t, b.admit(l, gid(2, 0)), "another network")
	require.True(t, b.admit(l, verbs.GIDFromAddr(netip.MustParseAddr("10.0.0.9"))))
	require.True(t, b.admit(l, verbs.GIDFromAddr(netip.MustParseAddr("10.0.0.10"))))
	b.unadmit(l, gid(1, 9))
	require.Equal(t, 12, l.HalfOpen())
}

// TestFloodOfPairs: a REQ and the REJ that takes it back, again and again, while the
// application does not take its events.
func TestFloodOfPairs(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	l := b.listen(ListenParams{Service: testService, Backlog: 10})
	for i := range uint32(1000) {
		r := request(b, i+1)
		w.forge(b, foreigner, r)
		w.forge(b, foreigner, &mad.REJ{
			TransactionID: r.TransactionID, LocalCommID: r.LocalCommID, Reason: verbs.CMRejectTimeout, Info: binary.BigEndian.AppendUint64(nil, r.CAGUID),
		})
	}
	require.Zero(t, b.Entries().Connections)
	require.LessOrEqual(t, b.Entries().Events, 30)
	require.Equal(t, 10, l.HalfOpen())
	b.requireSane()
	b.requireNoEvent()
	require.Zero(t, l.HalfOpen())
	b.requireEmpty()
}

// TestFloodAccepted: the application accepts every request, and no RTU follows.
func TestFloodAccepted(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	b.listen(ListenParams{Service: testService, Backlog: 50})
	b.answerAll()
	for i := range uint32(200) {
		w.forge(b, foreigner, request(b, i+1))
		b.settle()
	}
	require.Equal(t, 50, b.Entries().Connections)
	require.Equal(t, 50, b.Entries().HalfOpen)
	w.run(5 * time.Minute)
	b.requireEmpty()
	require.Equal(t, uint64(50), b.Counters().HandshakesExpired)
	// A REP and its repetitions, and one REJ, for each that got in.
	require.LessOrEqual(t, w.carried, 50*(1+15+1))
}

// TestMaxConnections is the limit of all states together.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 1, faults{})
	b := w.attach("B", "10.0.0.2:4791", Config{MaxConnections: 3})
	b.listen(ListenParams{Service: testService})
	for i := range uint32(5) {
		w.forge(b, foreigner, request(b, i+1))
	}
	require.Equal(t, 3, b.Entries().Connections)
	require.Equal(t, uint64(2), b.Counters().ConnectionsFull)
	_, err := b.Connect(b.params(b), w.Now)
	require.ErrorIs(t, err, verbs.ErrLimit)
}

// TestOutputBounded: a device that does not send loses datagrams, not memory.
func TestOutputBounded(t *testing.T) {
	t.Parallel()
	w, _, b := pair(t, faults{})
	for i := range uint32(maxQueuedMADs + 100) {
		w.forge(b, foreigner, request(b, i+1))
	}
	require.Equal(t, uint64(100), b.Counters().OutputFull)
	require.Len(t, b.sent(), maxQueuedMADs)
}

// TestUnpredictable: with the default source of randomness IDs do not repeat.
func TestUnpredictable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 3 {
		m := New(Config{})
		path := Path{Local: netip.MustParseAddrPort("10.0.0.1:4791"), Remote: netip.MustParseAddrPort("10.0.0.2:4791")}
		for range 100 {
			c, err := m.Connect(ConnectParams{Path: path, QPN: 2, PathMTU: 256}, 0)
			require.NoError(t, err)
			for _, id := range []string{fmt.Sprint("id ", c.localID), fmt.Sprint("transaction ", c.transactionID)} {
				require.False(t, seen[id], id)
				seen[id] = true
			}
		}
		guid := fmt.Sprint("guid ", m.CAGUID())
		require.False(t, seen[guid])
		seen[guid] = true
	}
}

// TestAnswerPort: an answer goes to port 4791, or to the port that the request has named and
// come from.
func TestAnswerPort(t *testing.T) {
	t.Parallel()
	from := func(port uint16) Path {
		return Path{Local: netip.MustParseAddrPort("10.0.0.2:4791"), Remote: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port)}
	}
	for _, c := range []struct {
		id           uint64
		source, want uint16
	}{
		{0x5642_1388_00000000, 5000, 5000},
		{0x5642_1388_ffffffff, 5000, 5000},
		{0x5642_1388_ffffffff, 5001, 4791}, // named a port that it did not come from
		{0x5643_1388_00000000, 5000, 4791},
		{0x0000_0001_00000001, 5000, 4791}, // as the kernel's
		{0x5642_12b7_00000000, 4791, 4791},
	} {
		assert.Equal(t, c.want, responsePath(c.id, from(c.source)).Remote.Port(), "%#x from %d", c.id, c.source)
	}
	m := New(Config{})
	for range 100 {
		assert.Equal(t, uint16(5000), responsePath(m.newTransactionID(5000), from(5000)).Remote.Port())
	}
}
