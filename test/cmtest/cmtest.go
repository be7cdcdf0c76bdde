// Package cmtest has the tests that every connection manager behind package verbs passes, with
// any other connection manager at the other end.
package cmtest

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// Side is one device of a test. Both sides may have the same device.
type Side struct {
	Device verbs.Device
	GID    verbs.GIDEntry // the address that peers use
	// Kernel: the connection manager is the kernel's, which reports no event of a request
	// before it is accepted, and does not support UC.
	Kernel bool
}

// SideOf returns a Side with the device's first GID of RoCEv2 that is not link-local: of IPv4
// if ipv4 is set, otherwise of IPv6.
func SideOf(t testing.TB, dev verbs.Device, ipv4, kernel bool) Side {
	t.Helper()
	table, err := dev.GIDs(1)
	require.NoError(t, err)
	i := slices.IndexFunc(table, func(e verbs.GIDEntry) bool {
		a := e.GID.Addr()
		return a.Is4() == ipv4 && !a.IsLinkLocalUnicast() && e.Type == verbs.GIDRoCEv2
	})
	require.NotEqual(t, -1, i, "%v", table)
	return Side{Device: dev, GID: table[i], Kernel: kernel}
}

// patience ends a test that hangs.
const patience = 5 * time.Minute

const (
	size   = 256 // bytes of an end's memory; the second half is for receives
	access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
)

// End is one side of a connection: a connection manager, a queue of its events, and a queue
// pair.
type End struct {
	t      testing.TB
	Side   Side
	CM     verbs.CM
	QP     verbs.QP
	events chan verbs.CMEvent
	quick  bool
	kind   verbs.QPType
	cq     verbs.CQ
	mr     verbs.MR
	mem    []byte
}

// NewEnd makes an end. The end of the test closes it.
func NewEnd(t testing.TB, s Side, kind verbs.QPType) *End {
	t.Helper()
	return newEnd(t, s, kind, size)
}

func newEnd(t testing.TB, s Side, kind verbs.QPType, memory int) *End {
	t.Helper()
	e := &End{t: t, Side: s, events: make(chan verbs.CMEvent, 1024)}
	cleanup := func(f func() error) { t.Cleanup(func() { require.NoError(t, f()) }) }
	mem, free, err := mmap.AllocBytes(memory)
	require.NoError(t, err)
	cleanup(free)
	e.mem = mem
	e.mr, err = s.Device.DefaultPD().RegMR(e.mem, access)
	require.NoError(t, err)
	cleanup(e.mr.Close)
	e.cq, err = s.Device.CreateCQ(verbs.CQInit{Capacity: 16})
	require.NoError(t, err)
	cleanup(e.cq.Close)
	e.kind = kind
	e.newQP()
	cleanup(func() error { return e.QP.Close() })
	e.CM, err = s.Device.(verbs.CMDevice).OpenCM(func(event verbs.CMEvent) { e.events <- event })
	require.NoError(t, err)
	cleanup(e.CM.Close)
	return e
}

func (e *End) newQP() {
	e.t.Helper()
	var err error
	e.QP, err = e.Side.Device.DefaultPD().CreateQP(verbs.QPInit{Type: e.kind, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 8, MaxRecvWR: 8})
	require.NoError(e.t, err)
}

// Renew replaces the end's queue pair by a new one.
func (e *End) Renew() {
	e.t.Helper()
	require.NoError(e.t, e.QP.Close())
	e.newQP()
}

// Events returns the channel of pending events, for tests in which either of two ends may get
// an event first.
func (e *End) Events() <-chan verbs.CMEvent { return e.events }

// Next waits for the next event, which has to be of the given type.
func (e *End) Next(want verbs.CMEventType) verbs.CMEvent {
	e.t.Helper()
	select {
	case event := <-e.events:
		require.Equal(e.t, want, event.Type, "%v: %v", event.Type, event.Err)
		return event
	case <-time.After(patience):
		require.Fail(e.t, "no event", "%v is waited for", want)
		return verbs.CMEvent{}
	}
}

// EndOfTimewait waits until the number of the queue pair may be used again, which takes
// seconds. A quick test skips the wait.
func (e *End) EndOfTimewait(id verbs.CMID) {
	e.t.Helper()
	if !e.quick {
		require.Same(e.t, id, e.Next(verbs.CMTimewaitExit).ID)
	}
}

// Failed waits for a failure, which has to match want.
func (e *End) Failed(step verbs.CMStep, want error) *verbs.CMError {
	e.t.Helper()
	event := e.Next(verbs.CMFailed)
	require.ErrorIs(e.t, event.Err, want)
	var err *verbs.CMError
	require.ErrorAs(e.t, event.Err, &err)
	assert.Equal(e.t, step, err.Step)
	assert.Equal(e.t, event.ID.LocalAddr(), err.Local)
	assert.Equal(e.t, event.ID.RemoteAddr(), err.Remote)
	return err
}

// Quiet checks that no event is pending.
func (e *End) Quiet() {
	e.t.Helper()
	select {
	case event := <-e.events:
		require.Fail(e.t, "an unexpected event", "%v: %v", event.Type, event.Err)
	default:
	}
}

// Listen listens on a port of the manager's choice, and returns the parameters to dial it.
func (e *End) Listen(p verbs.CMListen) (verbs.CMListener, verbs.CMDial) {
	e.t.Helper()
	l, err := e.CM.Listen(p)
	require.NoError(e.t, err)
	require.NotZero(e.t, l.Addr().Port())
	gid := e.Side.GID
	// A given UDP port avoids the query for it, which could find out that a listener is
	// closed.
	return l, verbs.CMDial{Addr: netip.AddrPortFrom(gid.GID.Addr(), l.Addr().Port()), UDPPort: gid.UDPPort, Type: p.Type}
}

// Dial dials, and waits until address and route are resolved.
func (e *End) Dial(d verbs.CMDial) verbs.CMID {
	e.t.Helper()
	id, err := e.CM.Dial(d)
	require.NoError(e.t, err)
	event := e.Next(verbs.CMResolved)
	require.Same(e.t, id, event.ID)
	assert.Equal(e.t, d.Addr, id.RemoteAddr())
	assert.Equal(e.t, e.Side.GID.GID.Addr(), id.LocalAddr().Addr())
	port, index := id.PortGID()
	assert.Equal(e.t, 1, port)
	assert.Equal(e.t, e.Side.GID.Index, index)
	return id
}

// Connect dials, and sends the connection request.
func (e *End) Connect(d verbs.CMDial, private string) verbs.CMID {
	e.t.Helper()
	id := e.Dial(d)
	require.NoError(e.t, id.Connect(e.Param(private)))
	return id
}

// Param returns the connection parameters, with the number of the queue pair.
func (e *End) Param(private string) verbs.CMParam {
	return verbs.CMParam{
		QPN: e.QP.Num(), PrivateData: []byte(private),
		ResponderResources: 4, InitiatorDepth: 3, RetryCount: 6, RNRRetryCount: 6,
	}
}

// Move takes the queue pair through the states, with the attributes from the ID.
func (e *End) Move(id verbs.CMID, states ...verbs.QPState) {
	e.t.Helper()
	for _, state := range states {
		attr, mask, err := id.Attr(state)
		require.NoError(e.t, err, "%v", state)
		require.Equal(e.t, state, attr.State)
		if mask&verbs.QPAttrAccess != 0 {
			attr.Access |= access &^ verbs.AccessLocalWrite
		}
		require.NoError(e.t, e.QP.Modify(attr, mask))
	}
}

// Accept accepts a request with the queue pair, which can send from then on.
func (e *End) Accept(id verbs.CMID, private string) {
	e.t.Helper()
	e.Move(id, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(e.t, id.Accept(e.Param(private)))
}

// Respond connects two ends up to the active end's CMConnectResponse.
func Respond(active, passive *End) (a, b verbs.CMID) {
	active.t.Helper()
	_, dial := passive.Listen(verbs.CMListen{})
	a = active.Connect(dial, "hello")
	b = passive.Next(verbs.CMConnectRequest).ID
	passive.Accept(b, "welcome")
	event := active.Next(verbs.CMConnectResponse)
	require.Same(active.t, a, event.ID)
	require.Equal(active.t, "welcome", string(event.Param.PrivateData[:7]))
	return a, b
}

// Establish connects two ends completely.
func Establish(active, passive *End) (a, b verbs.CMID) {
	active.t.Helper()
	a, b = Respond(active, passive)
	active.Move(a, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(active.t, a.Establish())
	require.Same(active.t, b, passive.Next(verbs.CMEstablished).ID)
	return a, b
}

// send sends the first half of e's memory. The peer receives it into the second half of its
// own.
func (e *End) send(to *End, text string) {
	e.t.Helper()
	half := func(e *End, offset int) []verbs.SGE {
		return []verbs.SGE{{Addr: e.mr.Addr() + uint64(offset), Length: size / 2, LKey: e.mr.LKey()}}
	}
	copy(e.mem, text)
	_, err := to.QP.PostRecv([]verbs.RecvWR{{SGL: half(to, size/2)}})
	require.NoError(e.t, err)
	_, err = e.QP.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: half(e, 0)}})
	require.NoError(e.t, err)
	for _, x := range []*End{to, e} {
		x.complete()
	}
	require.Equal(e.t, text, string(to.mem[size/2:size/2+len(text)]))
}

// complete waits for one completion, which has to be successful.
func (e *End) complete() {
	e.t.Helper()
	var wc [1]verbs.WC
	for deadline := time.Now().Add(patience); ; {
		n, err := e.cq.Poll(wc[:])
		require.NoError(e.t, err)
		if n == 1 {
			require.Equal(e.t, verbs.StatusSuccess, wc[0].Status)
			return
		}
		require.Less(e.t, time.Now(), deadline, "no completion")
		time.Sleep(time.Millisecond)
	}
}
