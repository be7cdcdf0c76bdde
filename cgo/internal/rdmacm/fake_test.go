//go:build linux && cgo && verbs

package rdmacm

import (
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs"
)

// fakeDevice has one port with two addresses.
type fakeDevice struct {
	verbs.Device
	layer verbs.LinkLayer
}

func (d fakeDevice) QueryPort(int) (verbs.PortAttr, error) {
	return verbs.PortAttr{State: verbs.PortActive, LinkLayer: d.layer}, nil
}

var ownAddr = netip.MustParseAddr("10.0.0.1")

func (fakeDevice) Name() string   { return "rxe0" }
func (fakeDevice) Driver() string { return "ibverbs" }
func (fakeDevice) Query() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{Ports: 1, MaxQPReadAtomic: 8, MaxInitReadAtomic: 8}, nil
}

func (fakeDevice) GIDs(int) ([]verbs.GIDEntry, error) {
	gid := verbs.GIDFromAddr(ownAddr)
	return []verbs.GIDEntry{
		{Index: 0, GID: verbs.GIDFromAddr(netip.MustParseAddr("fe80::1")), Type: verbs.GIDRoCEv2, Interface: "lo"},
		{Index: 1, GID: gid, Type: verbs.GIDRoCEv1},
		{Index: 2, GID: gid, Type: verbs.GIDRoCEv2},
	}, nil
}

// fakeLibrary stands for librdmacm: it keeps what it is asked, and reports what a test
// has it report.
type fakeLibrary struct {
	mu       sync.Mutex
	channels []*fakeChannel
	calls    []string
	fails    map[string]error
}

func (l *fakeLibrary) call(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, name)
	return l.fails[name]
}

// fail has a function fail from now on; nil: it succeeds.
func (l *fakeLibrary) fail(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fails[name] = err
}

// last is the functions that were called last.
func (l *fakeLibrary) last(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls[len(l.calls)-n:])
}

// wait waits until a function has been called so many times.
func (l *fakeLibrary) wait(t *testing.T, name string, times int) {
	t.Helper()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		n := 0
		for _, c := range l.calls {
			if c == name {
				n++
			}
		}
		return n == times
	}, time.Minute, time.Millisecond)
}

func (l *fakeLibrary) newChannel() (channel, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	ch := &fakeChannel{lib: l, event: fd}
	l.channels = append(l.channels, ch)
	return ch, l.call("channel")
}

type fakeChannel struct {
	lib    *fakeLibrary
	event  int
	mu     sync.Mutex
	events []rawEvent
	ids    []*fakeID
}

func (ch *fakeChannel) fd() int { return ch.event }

func (ch *fakeChannel) destroy() {
	unix.Close(ch.event)
	_ = ch.lib.call("destroy channel")
}

func (ch *fakeChannel) newID(verbs.QPType) (rawID, error) {
	id := &fakeID{lib: ch.lib, path: route{
		device: "rxe0", port: 1, sgid: verbs.GIDFromAddr(ownAddr),
		local: netip.AddrPortFrom(ownAddr, 50_000), remote: netip.MustParseAddrPort("10.0.0.2:7"),
	}}
	ch.ids = append(ch.ids, id)
	return id, ch.lib.call("create")
}

func (ch *fakeChannel) next(e *rawEvent) (bool, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.events) == 0 {
		return false, nil
	}
	*e, ch.events = ch.events[0], ch.events[1:]
	return true, nil
}

// report has the library report events.
func (ch *fakeChannel) report(t testing.TB, events ...rawEvent) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.events = append(ch.events, events...)
	_, err := unix.Write(ch.event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
}

type fakeID struct {
	lib    *fakeLibrary
	path   route
	with   verbs.CMParam   // of Connect or Accept
	silent <-chan struct{} // its peer does not answer until this is closed; or nil
}

func (id *fakeID) bind(netip.AddrPort) error { return id.lib.call("bind") }
func (id *fakeID) listen(int) error          { return id.lib.call("listen") }
func (id *fakeID) resolveAddr(_, _ netip.AddrPort, _ time.Duration) error {
	return id.lib.call("resolve address")
}
func (id *fakeID) resolveRoute() error         { return id.lib.call("resolve route") }
func (id *fakeID) route() route                { return id.path }
func (id *fakeID) reject([]byte) error         { return id.lib.call("reject") }
func (id *fakeID) establish() error            { return id.lib.call("establish") }
func (id *fakeID) received() error             { return id.lib.call("received") }
func (id *fakeID) join(netip.Addr, bool) error { return id.lib.call("join") }
func (id *fakeID) leave(netip.Addr) error      { return id.lib.call("leave") }
func (id *fakeID) disconnect() error           { return id.lib.call("disconnect") }
func (id *fakeID) migrate(channel) error       { return id.lib.call("migrate") }

func (id *fakeID) destroy() {
	_ = id.lib.call("destroy")
	if id.silent != nil {
		<-id.silent
	}
}

func (id *fakeID) connect(p *verbs.CMParam) error {
	id.with = *p
	return id.lib.call("connect")
}

func (id *fakeID) accept(p *verbs.CMParam) error {
	id.with = *p
	return id.lib.call("accept")
}

func (id *fakeID) attr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	return verbs.QPAttr{MaxDestReadAtomic: 200, MaxInitReadAtomic: 200},
		verbs.QPAttrState | verbs.QPAttrMinRNRTimer | verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMaxInitReadAtomic, id.lib.call("attr")
}

// rig is a manager on a fake library.
type rig struct {
	t      *testing.T
	lib    *fakeLibrary
	cm     verbs.CM
	events chan verbs.CMEvent
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, lib: &fakeLibrary{fails: map[string]error{}}, events: make(chan verbs.CMEvent, 100)}
	var err error
	r.cm, err = open(fakeDevice{}, func(e verbs.CMEvent) { r.events <- e }, r.lib)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.cm.Close()) })
	return r
}

// main reports events on the main channel.
func (r *rig) main(events ...rawEvent) { r.lib.channels[0].report(r.t, events...) }

func (r *rig) next(want verbs.CMEventType) verbs.CMEvent {
	r.t.Helper()
	select {
	case e := <-r.events:
		require.Equal(r.t, want, e.Type, "%v", e.Err)
		return e
	case <-time.After(time.Minute):
		require.Fail(r.t, "no event", "%v", want)
		return verbs.CMEvent{}
	}
}

// sync waits until all that was reported has been handled.
func (r *rig) sync() {
	r.t.Helper()
	for _, ch := range r.lib.channels {
		require.Eventually(r.t, func() bool {
			ch.mu.Lock()
			defer ch.mu.Unlock()
			return len(ch.events) == 0
		}, time.Minute, time.Millisecond)
	}
	// What was taken last is handled under the lock.
	m := r.cm.(*manager)
	m.mu.Lock()
	defer m.mu.Unlock()
}

// dial makes an ID that has been resolved, and connected if wanted.
func (r *rig) dial(kind verbs.QPType, connect bool) (verbs.CMID, *fakeID) {
	r.t.Helper()
	id, err := r.cm.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort("10.0.0.2:7"), Type: kind})
	require.NoError(r.t, err)
	ids := r.lib.channels[0].ids
	raw := ids[len(ids)-1]
	r.main(rawEvent{kind: eventAddrResolved, id: raw}, rawEvent{kind: eventRouteResolved, id: raw})
	require.Same(r.t, id, r.next(verbs.CMResolved).ID)
	if connect {
		require.NoError(r.t, id.Connect(verbs.CMParam{QPN: 17, ResponderResources: 5, InitiatorDepth: 100}))
	}
	return id, raw
}

var errTimedOut = -int(syscall.ETIMEDOUT)
