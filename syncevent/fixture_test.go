package syncevent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/verbstest"
	"github.com/verbena-rdma/verbena/verbs"
)

const all = ^uint64(0)

func open(t testing.TB, dev verbs.Device, cfg Config) *Event {
	t.Helper()
	e, err := New(dev, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func openSoft(t testing.TB) *soft.Device {
	t.Helper()
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// adapter makes the software device look like an adapter: it does not report
// what peers write, and its atomics are not atomic to the processor.
type adapter struct {
	verbs.Device
	pd   *adapterPD
	attr verbs.DeviceAttr
	err  error
}

type adapterPD struct {
	verbs.PD
	dev     *adapter
	refuse  error
	closing func() // called when a registration is to end
	watches *int   // nil: it does not report writes
}

type adapterMR struct {
	verbs.MR
	pd *adapterPD
}

func newAdapter(dev verbs.Device) *adapter {
	a := &adapter{Device: dev, attr: verbs.DeviceAttr{Atomics: true}}
	a.pd = &adapterPD{PD: dev.DefaultPD(), dev: a}
	return a
}

func (a *adapter) Query() (verbs.DeviceAttr, error) { return a.attr, a.err }
func (a *adapter) DefaultPD() verbs.PD              { return a.pd }
func (p *adapterPD) Device() verbs.Device           { return p.dev }

func (p *adapterPD) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegMR(mem, access)
	if p.watches != nil {
		return watchedMR{adapterMR{mr, p}}, err
	}
	return adapterMR{mr, p}, err
}

// watchedMR counts who watches.
type watchedMR struct{ adapterMR }

func (r watchedMR) Watch(uint64, uint64, func()) (cancel func(), err error) {
	*r.pd.watches++
	return func() { *r.pd.watches-- }, nil
}

// RegDMABufMR stands in for memory that the processor does not see.
func (p *adapterPD) RegDMABufMR(buf verbs.DMABuf, access verbs.Access) (verbs.MR, error) {
	return p.RegMR(make([]byte, buf.Length), access)
}

func (r adapterMR) Close() error {
	if r.pd.closing != nil {
		r.pd.closing()
	}
	if r.pd.refuse != nil {
		return r.pd.refuse
	}
	return r.MR.Close()
}

// peer is the end of a connection that reaches a device's memory.
type peer struct {
	t     testing.TB
	dev   *soft.Device
	cq    verbs.CQ
	qp    verbs.QP
	mr    verbs.MR
	mem   []byte
	wcs   [8]verbs.WC
	wr    [1]verbs.SendWR
	sge   [1]verbs.SGE
	ready chan struct{}
	late  *time.Timer
}

const remoteRights = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

func newPeer(t testing.TB, dev *soft.Device) *peer {
	t.Helper()
	p := &peer{t: t, dev: dev, mem: words(8), ready: make(chan struct{}, 1), late: time.NewTimer(time.Hour)}
	var err error
	p.cq, err = dev.CreateCQ(verbs.CQInit{Capacity: 64})
	require.NoError(t, err)
	p.cq.OnCompletion(func() {
		select {
		case p.ready <- struct{}{}:
		default:
		}
	})
	p.mr, err = dev.DefaultPD().RegMR(p.mem, verbs.AccessLocalWrite)
	require.NoError(t, err)
	p.qp, err = dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: 16, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	require.NoError(t, err)
	t.Cleanup(func() {
		p.late.Stop()
		require.NoError(t, p.qp.Close())
		require.NoError(t, p.mr.Close())
		require.NoError(t, p.cq.Close())
	})
	return p
}

func (p *peer) connect(to *peer) {
	gids, err := to.dev.GIDs(1)
	require.NoError(p.t, err)
	verbstest.ToRTS(p.t, p.qp, verbs.RC, verbs.QPAttr{
		Port: 1, Access: remoteRights, PathMTU: 1024, DestQPN: to.qp.Num(), MaxDestReadAtomic: 4, MinRNRTimer: 1,
		Address: verbs.AddressAttr{DGID: gids[0].GID, Port: 1, UDPPort: gids[0].UDPPort},
		Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxInitReadAtomic: 4,
	})
}

// newPeers makes a connection between two devices.
func newPeers(t testing.TB) (a, b *peer) {
	a, b = newPeer(t, openSoft(t)), newPeer(t, openSoft(t))
	a.connect(b)
	b.connect(a)
	return a, b
}

// post sends one request and leaves its completion for later. It may be called
// as often as the one before has completed.
func (p *peer) post(op verbs.Opcode, e *Event, v uint64) {
	*word(p.mem) = v
	p.sge[0] = verbs.SGE{Addr: p.mr.Addr(), Length: 8, LKey: p.mr.LKey()}
	if op == verbs.OpFetchAdd {
		p.sge[0].Addr += 8
	}
	p.wr[0] = verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: p.sge[:], RemoteAddr: forFriends{e}.Addr(), RKey: forFriends{e}.RKey(), CompareAdd: v}
	if _, err := p.qp.PostSend(p.wr[:]); err != nil {
		p.t.Error(err)
	}
}

// finish sleeps until the request has completed.
func (p *peer) finish() {
	for {
		n, err := p.cq.Poll(p.wcs[:])
		if err != nil {
			p.t.Error(err)
			return
		}
		if n > 0 {
			if s := p.wcs[0].Status; s != verbs.StatusSuccess {
				p.t.Errorf("a request failed: %v", s)
			}
			_, _ = p.cq.Arm(false) // so that the device does not wait to be polled
			return
		}
		if armed, _ := p.cq.Arm(false); armed {
			p.late.Reset(5 * time.Minute)
			select {
			case <-p.ready:
			case <-p.late.C:
				p.t.Error("a request never completed")
				return
			}
		}
	}
}

func (p *peer) write(e *Event, v uint64) {
	p.post(verbs.OpWrite, e, v)
	p.finish()
}

func (p *peer) add(e *Event, v uint64) (old uint64) {
	p.post(verbs.OpFetchAdd, e, v)
	p.finish()
	return *word(p.mem[8:])
}

// imported is the event as a peer sees it.
func imported(t testing.TB, p *peer, e *Event) *Event {
	t.Helper()
	desc, err := e.Export()
	require.NoError(t, err)
	r, err := Import(p.dev, desc)
	require.NoError(t, err)
	return r
}
