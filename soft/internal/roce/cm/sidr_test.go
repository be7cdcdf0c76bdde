package cm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

var testDatagrams = Service{PortSpaceUDP, 7174}

func (h *host) resolve(to *host) *Resolution {
	h.net.t.Helper()
	r, err := h.Resolve(ResolveParams{Service: testDatagrams, Path: h.pathTo(to), SourcePort: 0x4321, PrivateData: []byte("who"), Value: 7}, h.net.Now)
	require.NoError(h.net.t, err)
	h.settle()
	return r
}

// TestResolve tests service ID resolution, with the ports of both ends.
func TestResolve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, a, b string }{
		{"IPv4", "10.0.0.1:4791", "10.0.0.2:4791"}, {"IPv6", "[fd00::1]:4791", "[fd00::2]:4791"},
		{"active without 4791", "10.0.0.1:5000", "10.0.0.2:4791"}, {"neither has 4791", "10.0.0.1:5000", "10.0.0.1:5001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newNetwork(t, 1, faults{})
			w.tracing = true
			a, b := w.attach("A", c.a, Config{}), w.attach("B", c.b, Config{})
			b.answerAll()
			b.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD})
			r := a.resolve(b)
			w.run(time.Second)
			require.Equal(t, []string{"A SIDR_REQ", "B SIDR_REP"}, w.trace)
			require.Equal(t, zeroed("who", 180), b.all[0].PrivateData)
			require.Equal(t, uint16(0x4321), b.all[0].Request.PeerAddr().Port())
			require.Equal(t, a.address, b.all[0].Request.Path().Remote)
			e := a.all[0]
			require.Equal(t, EventSIDRResponse, e.Type)
			require.Same(t, r, e.Resolution)
			require.Equal(t, 7, r.Value)
			require.Equal(t, mad.SIDRValid, e.Status)
			require.Equal(t, uint32(0x77), e.QPN)
			require.Equal(t, uint32(QKeyUDP), e.QKey)
			require.Equal(t, zeroed("answer", 136), e.PrivateData)
			a.requireEmpty()
			b.requireEmpty()
		})
	}
}

// TestResolveFailures checks every other end of a resolution.
func TestResolveFailures(t *testing.T) {
	t.Parallel()
	last := func(h *host) Event {
		require.NotEmpty(t, h.all)
		return h.all[len(h.all)-1]
	}
	w, a, b := pair(t, faults{})
	a.resolve(b)
	w.run(time.Second)
	require.Equal(t, mad.SIDRNotSupported, last(a).Status, "nobody listens")

	// A listener for connections is none for datagrams.
	rc := b.listen(ListenParams{Service: testDatagrams, Transport: verbs.RC})
	a.resolve(b)
	w.run(time.Second)
	require.Equal(t, mad.SIDRNotSupported, last(a).Status)
	rc.Close(w.Now)

	b.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD})
	b.app = func(e *Event) {
		require.NoError(t, e.Request.Reply(SIDRReply{Status: mad.SIDRRejected, Info: []byte("why"), PrivateData: []byte("no")}))
	}
	a.resolve(b)
	w.run(time.Second)
	require.Equal(t, mad.SIDRRejected, last(a).Status)
	require.Equal(t, []byte("why"), last(a).Info)
	require.Equal(t, zeroed("no", 136), last(a).PrivateData)

	b.app = nil
	a.resolve(b)
	w.Pass(time.Second)
	request := last(b).Request
	w.run(2 * time.Minute)
	require.Equal(t, CauseTimeout, last(a).Cause)
	require.NotZero(t, b.Counters().DuplicateREQ)
	b.requireEmpty()
	require.ErrorIs(t, request.Reply(SIDRReply{QPN: 7}), verbs.ErrState)

	b.kill(true)
	a.resolve(b)
	w.run(time.Second)
	require.Equal(t, CausePortUnreachable, last(a).Cause)

	b.kill(false)
	_, err := a.Resolve(ResolveParams{Service: testDatagrams, Path: a.pathTo(b), Deadline: w.Now + 3*time.Second}, w.Now)
	require.NoError(t, err)
	w.run(time.Minute)
	require.Equal(t, CauseDeadline, last(a).Cause)

	told := len(a.all)
	a.resolve(b).Close()
	a.resolve(b).Close()
	w.run(time.Minute)
	require.Len(t, a.all, told, "nothing is reported of a closed one")
	a.requireEmpty()

	for i, p := range []ResolveParams{
		{}, {Path: a.pathTo(b), ResponseTimeout: 32}, {Path: a.pathTo(b), MaxCMRetries: 16}, {Path: a.pathTo(b), PrivateData: make([]byte, 181)},
	} {
		_, err := a.Resolve(p, w.Now)
		require.ErrorIs(t, err, verbs.ErrInvalid, i)
	}
}

// TestResolveHostile: invalid SIDR messages, and a flood.
func TestResolveHostile(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	r, err := a.Resolve(ResolveParams{Service: testDatagrams, Path: a.pathTo(b)}, w.Now)
	require.NoError(t, err)
	a.sent()
	good := mad.SIDRREP{TransactionID: r.transactionID, RequestID: r.requestID, QPN: 5}
	for _, c := range []struct {
		from    string
		change  func(m *mad.SIDRREP)
		counter func(c Counters) uint64
	}{
		{"10.0.0.3:4791", func(*mad.SIDRREP) {}, func(c Counters) uint64 { return c.WrongPeer }},
		{"10.0.0.2:4791", func(m *mad.SIDRREP) { m.TransactionID++ }, func(c Counters) uint64 { return c.WrongTransaction }},
		{"10.0.0.2:4791", func(m *mad.SIDRREP) { m.RequestID++ }, func(c Counters) uint64 { return c.UnknownConnection }},
		{"10.0.0.2:4791", func(m *mad.SIDRREP) { m.QPN = 1 }, func(c Counters) uint64 { return c.Malformed }},
	} {
		m := good
		c.change(&m)
		w.forge(a, c.from, &m)
		require.Equal(t, uint64(1), c.counter(a.Counters()))
		a.requireNoEvent()
	}
	w.forge(a, "10.0.0.2:4791", &good)
	a.nextEvent(EventSIDRResponse)

	l := b.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD, Backlog: 10})
	req := request(b, 1)
	for i := range uint32(1000) {
		w.forge(b, foreigner, &mad.SIDRREQ{RequestID: i, PKey: 0xffff, ServiceID: testDatagrams.ID(), PrivateData: req.PrivateData})
	}
	require.Equal(t, 10, l.HalfOpen())
	require.Equal(t, 10, b.Entries().Events)
	require.Equal(t, uint64(990), b.Counters().BacklogFull)
	require.Empty(t, b.sent())
	for _, c := range []struct {
		change  func(m *mad.SIDRREQ)
		replies int
	}{
		{func(m *mad.SIDRREQ) { m.PKey = 1 }, 1},
		{func(m *mad.SIDRREQ) { m.PrivateData = []byte{1} }, 1},
		{func(m *mad.SIDRREQ) { m.ServiceID++ }, 1},
		{func(m *mad.SIDRREQ) { m.PrivateData = append([]byte(nil), m.PrivateData...); m.PrivateData[19]++ }, 0},
	} {
		m := mad.SIDRREQ{RequestID: 5000, PKey: 0xffff, ServiceID: testDatagrams.ID(), PrivateData: req.PrivateData}
		c.change(&m)
		w.forge(b, foreigner, &m)
		require.Len(t, b.sent(), c.replies)
	}
	b.requireSane()
	// Two processes of one address may use the same request ID.
	m := mad.SIDRREQ{TransactionID: 0x5642_1388_00000000, RequestID: 1, PKey: 0xffff, ServiceID: testDatagrams.ID(), PrivateData: req.PrivateData}
	full := b.Counters().BacklogFull
	w.forge(b, "10.0.0.9:5000", &m)
	require.Equal(t, full+1, b.Counters().BacklogFull, "no duplicate")
	w.forge(b, "10.0.0.9:5001", &m)
	require.Equal(t, full+1, b.Counters().BacklogFull, "a duplicate")
	// What has not been taken when it expires is not reported.
	w.Now = b.Deadline()
	b.Expire(w.Now)
	require.Equal(t, 10, l.HalfOpen())
	b.requireNoEvent()
	b.requireEmpty()

	w.forge(b, foreigner, &mad.SIDRREQ{RequestID: 1, PKey: 0xffff, ServiceID: testDatagrams.ID(), PrivateData: req.PrivateData})
	q := b.nextEvent(EventSIDRRequest).Request
	for i, p := range []SIDRReply{{QPN: 1}, {QPN: 1 << 24}, {QPN: 5, Info: make([]byte, 73)}, {QPN: 5, PrivateData: make([]byte, 137)}} {
		require.ErrorIs(t, q.Reply(p), verbs.ErrInvalid, i)
	}
	require.NoError(t, q.Reply(SIDRReply{QPN: 5}))
	_, path := requireSent[mad.SIDRREP](b)
	require.Equal(t, "10.0.0.9:4791", path.Remote.String())
	b.requireEmpty()
}
