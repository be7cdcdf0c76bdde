package roce

import (
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/verbs"
)

var connectionAttr = verbs.CMParam{ResponderResources: 4, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7}

// cmSide is a side with a connection manager, whose events wait in order.
type cmSide struct {
	*side
	cm     verbs.CM
	mu     sync.Mutex
	events []verbs.CMEvent
}

func openCMSide(t *testing.T, cfg Config) *cmSide {
	return withManager(openSide(t, cfg, 4096))
}

// withManager adds a connection manager to a side.
func withManager(s *side) *cmSide {
	m := &cmSide{side: s}
	m.cm = must(m.dev.OpenCM(func(e verbs.CMEvent) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.events = append(m.events, e)
	}))
	s.t.Cleanup(func() {
		require.ErrorIs(s.t, m.dev.Close(), verbs.ErrInUse)
		require.NoError(s.t, m.cm.Close())
		require.NoError(s.t, m.cm.Close(), "again")
	})
	return m
}

// next waits for the next event.
func (m *cmSide) next(want verbs.CMEventType) verbs.CMEvent {
	m.t.Helper()
	for range 30_000 {
		m.mu.Lock()
		if len(m.events) > 0 {
			e := m.events[0]
			m.events = m.events[1:]
			m.mu.Unlock()
			require.Equal(m.t, want, e.Type, "%v: %v", e.Type, e.Err)
			return e
		}
		m.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	require.Fail(m.t, "no event", "%v is waited for", want)
	return verbs.CMEvent{}
}

// listen listens on a port that the device chooses, and returns the address to dial.
func (m *cmSide) listen(kind verbs.QPType) (verbs.CMListener, verbs.CMDial) {
	m.t.Helper()
	l, err := m.cm.Listen(verbs.CMListen{Type: kind})
	require.NoError(m.t, err)
	gids, err := m.dev.GIDs(1)
	require.NoError(m.t, err)
	return l, verbs.CMDial{Addr: netip.AddrPortFrom(gids[0].GID.Addr(), l.Addr().Port()), Type: kind, UDPPort: gids[0].UDPPort}
}

// move moves the side's queue pair to a state, with the attributes of the manager.
func (m *cmSide) move(id verbs.CMID, states ...verbs.QPState) {
	m.t.Helper()
	for _, state := range states {
		attr, mask, err := id.Attr(state)
		require.NoError(m.t, err)
		require.NoError(m.t, m.qp.Modify(attr, mask))
	}
}

func (m *cmSide) param(private string) verbs.CMParam {
	p := connectionAttr
	p.QPN, p.PrivateData = m.qp.Num(), []byte(private)
	return p
}

// establish connects two sides.
func establish(t *testing.T, active, passive *cmSide) (a, b verbs.CMID) {
	t.Helper()
	listener, dial := passive.listen(verbs.RC)
	return establishBy(t, active, passive, listener, dial)
}

func establishBy(t *testing.T, active, passive *cmSide, listener verbs.CMListener, dial verbs.CMDial) (a, b verbs.CMID) {
	t.Helper()
	a, err := active.cm.Dial(dial)
	require.NoError(t, err)
	e := active.next(verbs.CMResolved)
	assert.Same(t, a, e.ID)
	assert.Equal(t, dial.Addr, a.RemoteAddr())
	require.ErrorIs(t, a.Establish(), verbs.ErrState)
	require.ErrorIs(t, a.Accept(connectionAttr), verbs.ErrState)
	active.move(a, verbs.QPInitialized)
	require.NoError(t, a.Connect(active.param("hello")))

	e = passive.next(verbs.CMConnectRequest)
	b = e.ID
	assert.Same(t, listener, e.Listener)
	assert.Equal(t, "hello", string(e.Param.PrivateData[:5]))
	assert.Equal(t, a.LocalAddr(), b.RemoteAddr())
	assert.Equal(t, a.RemoteAddr(), b.LocalAddr())
	assert.Equal(t, 4, e.Param.InitiatorDepth)
	passive.move(b, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(t, b.Accept(passive.param("welcome")))

	e = active.next(verbs.CMConnectResponse)
	assert.Equal(t, "welcome", string(e.Param.PrivateData[:7]))
	active.move(a, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(t, a.Establish())
	passive.next(verbs.CMEstablished)
	return a, b
}

func TestConnectionManager(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		t.Run(address, func(t *testing.T) {
			cfg := Config{Addresses: addresses(address)}
			active, passive := openCMSide(t, cfg), openCMSide(t, cfg)
			a, b := establish(t, active, passive)

			fill(active.mem[:64], 7)
			_, err := passive.qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{passive.sge(0, 64)}}})
			require.NoError(t, err)
			active.post(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{active.sge(0, 64)}})
			for _, wc := range append(active.wait(1), passive.wait(1)...) {
				assert.Equal(t, verbs.StatusSuccess, wc.Status)
			}
			assert.Equal(t, active.mem[:64], passive.mem[:64])
			passive.post(verbs.SendWR{
				ID: 3, Op: verbs.OpRead, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{passive.sge(128, 64)},
				RemoteAddr: active.mr.Addr(), RKey: active.mr.RKey(),
			})
			assert.Equal(t, verbs.StatusRemoteInvalidRequest, passive.wait(1)[0].Status, "the rights are the program's to add")

			require.NoError(t, a.Disconnect())
			require.ErrorIs(t, a.Establish(), verbs.ErrState)
			passive.next(verbs.CMDisconnected)
			active.next(verbs.CMDisconnected)
			passive.next(verbs.CMTimewaitExit)
			active.next(verbs.CMTimewaitExit)
			require.NoError(t, b.Close())
			require.NoError(t, b.Close())
			require.ErrorIs(t, b.Disconnect(), verbs.ErrClosed)
		})
	}
}

// Any packet may be lost or duplicated.
func TestConnectionManagerOnABadNetwork(t *testing.T) {
	bad := Config{Faults: faults.Faults{Loss: 0.2, Duplicate: 0.2}}
	for range 3 {
		establish(t, openCMSide(t, bad), openCMSide(t, bad))
	}
}

func TestDialsThatFail(t *testing.T) {
	active, passive := openCMSide(t, Config{}), openCMSide(t, Config{})
	listener, dial := passive.listen(verbs.RC)
	connect := func(d verbs.CMDial) verbs.CMID {
		id, err := active.cm.Dial(d)
		require.NoError(t, err)
		active.next(verbs.CMResolved)
		require.NoError(t, id.Connect(active.param("")))
		return id
	}
	failed := func() *verbs.CMError {
		var err *verbs.CMError
		require.ErrorAs(t, active.next(verbs.CMFailed).Err, &err)
		active.next(verbs.CMTimewaitExit)
		return err
	}

	connect(dial)
	require.NoError(t, passive.next(verbs.CMConnectRequest).ID.Reject([]byte("not today")))
	err := failed()
	assert.ErrorIs(t, err, verbs.ErrRejected)
	assert.Equal(t, verbs.CMRejectConsumer, err.Reason)
	assert.Equal(t, "not today", string(err.PrivateData[:9]))
	passive.next(verbs.CMTimewaitExit)

	require.NoError(t, listener.Close())
	connect(dial)
	err = failed()
	assert.ErrorIs(t, err, verbs.ErrNotListening)
	assert.ErrorContains(t, err, "nobody listens on that port")
	assert.NotZero(t, counter(t, passive.dev, "cm_rx_no_service"))

	nobody := dial
	nobody.UDPPort = 9 // discard
	connect(nobody)
	err = failed()
	assert.ErrorIs(t, err, verbs.ErrNotListening)
	assert.ErrorContains(t, err, "no process has the peer's UDP port")

	// Given up before the peer answers.
	_, dial = passive.listen(verbs.RC)
	id := connect(dial)
	request := passive.next(verbs.CMConnectRequest)
	require.NoError(t, id.Close())
	require.ErrorContains(t, passive.next(verbs.CMFailed).Err, "time-out")
	require.Error(t, request.ID.Accept(passive.param("")))

	for _, bad := range []verbs.CMDial{
		{}, {Addr: netip.MustParseAddrPort("0.0.0.0:1")}, {Addr: netip.MustParseAddrPort("127.0.0.1:0")},
		{Addr: netip.MustParseAddrPort("224.0.0.1:1")},
		{Addr: netip.MustParseAddrPort("127.0.0.1:1"), Type: 9},
		{Addr: netip.MustParseAddrPort("127.0.0.1:1"), Local: netip.MustParseAddrPort("192.0.2.1:1")},
		{Addr: netip.MustParseAddrPort("[::1]:1"), Local: netip.MustParseAddrPort("127.0.0.1:1")},
		{Addr: netip.MustParseAddrPort("[2001:db8::1]:1")},
		{Addr: netip.MustParseAddrPort("192.0.2.1:1")},
	} {
		_, err := active.cm.Dial(bad)
		require.Error(t, err, "%+v", bad)
		assert.True(t, errors.Is(err, verbs.ErrInvalid) || errors.Is(err, verbs.ErrNotSupported) || errors.Is(err, verbs.ErrNoRoute), "%v", err)
	}
	_, dial2 := passive.listen(verbs.RC)
	_, e := passive.cm.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), dial2.Addr.Port())})
	require.ErrorIs(t, e, verbs.ErrInUse)
	_, e = passive.cm.Listen(verbs.CMListen{Addr: netip.MustParseAddrPort("192.0.2.1:7")})
	require.ErrorIs(t, e, verbs.ErrInvalid)
}

// Queue pair 1 refuses messages from queue pairs of programs and with other Q_Keys.
func TestQueuePair1IsGuarded(t *testing.T) {
	passive := openCMSide(t, Config{})
	passive.listen(verbs.RC)
	sender := openSide(t, Config{}, 512)
	qp, err := sender.dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.UD, SendCQ: sender.cq, RecvCQ: sender.cq, MaxSendWR: 8, MaxRecvWR: 8})
	require.NoError(t, err)
	defer qp.Close()
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, QKey: cm.QKey}, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPReadyToReceive}, verbs.QPAttrState))
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend}, verbs.QPAttrState|verbs.QPAttrSQPSN))
	gids, err := passive.dev.GIDs(1)
	require.NoError(t, err)
	ah, err := sender.dev.DefaultPD().CreateAH(verbs.AddressAttr{DGID: gids[0].GID, Port: 1, UDPPort: gids[0].UDPPort})
	require.NoError(t, err)
	defer ah.Close()
	before := counter(t, passive.dev, "rx_malformed")
	_, err = qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.FlagSignaled, AH: ah, RemoteQPN: 1, RemoteQKey: cm.QKey, SGL: []verbs.SGE{sender.sge(0, 256)}}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return counter(t, passive.dev, "rx_malformed") == before+1 }, time.Minute, 10*time.Millisecond)
}

// Management messages reach devices whose programs poll all the time. The polls do not look for them,
// since that is a system call.
func TestManagementWhilePolling(t *testing.T) {
	active, passive := openCMSide(t, Config{}), openCMSide(t, Config{})
	var stop atomic.Bool
	var polling sync.WaitGroup
	for _, m := range []*cmSide{active, passive} {
		m.dev.mu.Lock()
		require.False(t, m.dev.endpoints[0].polledFor(m.dev.now()))
		m.dev.mu.Unlock()
		cq := must(m.dev.CreateCQ(verbs.CQInit{Capacity: 1}))
		polling.Go(func() {
			for wcs := make([]verbs.WC, 1); !stop.Load(); runtime.Gosched() {
				_, _ = cq.Poll(wcs)
			}
			assert.NoError(t, cq.Close())
		})
	}
	establish(t, active, passive)
	stop.Store(true)
	polling.Wait()
}
