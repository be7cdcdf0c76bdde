//go:build linux && cgo && verbs

package ibverbs_test

import (
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/test/verbstest"
	"github.com/verbena-rdma/verbena/verbs"
)

// requireGuest skips tests that TestRig of test/rig runs in its guest.
func requireGuest(t testing.TB) {
	t.Helper()
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
}

func openAdapter(t testing.TB) verbs.Device {
	t.Helper()
	requireGuest(t)
	d, err := ibverbs.Driver{}.Open("rxe0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// openSoft opens a software device in the second network namespace, on the other
// end of the cable of rxe0.
func openSoft(t testing.TB, faults soft.Faults) verbs.Device {
	t.Helper()
	requireGuest(t)
	var d *soft.Device
	require.NoError(t, rig.InNamespace("s", func() (err error) {
		d, err = soft.Open(soft.Config{Interface: "v1", Faults: faults})
		return err
	}))
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// memory is registered memory outside the Go heap.
type memory struct {
	bytes []byte
	mr    verbs.MR
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

func register(t testing.TB, pd verbs.PD, size int, access verbs.Access) memory {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	mr, err := pd.RegMR(b, access)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, mr.Close())
		require.NoError(t, unix.Munmap(b))
	})
	return memory{b, mr}
}

func (m memory) sge(offset, n int) verbs.SGE {
	return verbs.SGE{Addr: m.mr.Addr() + uint64(offset), Length: uint32(n), LKey: m.mr.LKey()}
}

func (m memory) sgl(offset, n int) []verbs.SGE {
	if n == 0 {
		return nil
	}
	return []verbs.SGE{m.sge(offset, n)}
}

// end is one end of a connection.
type end struct {
	t   testing.TB
	dev verbs.Device
	pd  verbs.PD
	cq  verbs.CQ
	qp  verbs.QP
	srq verbs.SRQ
	gid verbs.GIDEntry
	mem memory
	wcs []verbs.WC // polled and not asked for yet
}

// config says what a test wants of an end; zero values have defaults.
type config struct {
	family  string // "IPv4" or "IPv6"
	service verbs.QPType
	srq     bool
	depth   int
	sge     int
	memory  int
	access  verbs.Access
	inline  int
	modify  func(*verbs.QPAttr) // changes the attributes of the way to RTS
}

const qkey = 0x11111111

func gidOf(t testing.TB, dev verbs.Device, family string) verbs.GIDEntry {
	t.Helper()
	table, err := dev.GIDs(1)
	require.NoError(t, err)
	i := slices.IndexFunc(table, func(e verbs.GIDEntry) bool {
		a := e.GID.Addr()
		return e.Type == verbs.GIDRoCEv2 && !a.IsLinkLocalUnicast() && a.Is4() == (family != "IPv6")
	})
	require.NotEqual(t, -1, i, "no GID of the family %s in %v", family, table)
	return table[i]
}

func newEnd(t testing.TB, dev verbs.Device, c config) *end {
	t.Helper()
	if c.depth == 0 {
		c.depth = 64
	}
	if c.memory == 0 {
		c.memory = 4 << 20
	}
	if c.access == 0 {
		c.access = allAccess
	}
	e := &end{t: t, dev: dev, pd: dev.DefaultPD(), gid: gidOf(t, dev, c.family)}
	var err error
	e.cq, err = dev.CreateCQ(verbs.CQInit{Capacity: 2 * c.depth})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.cq.Close()) })
	init := verbs.QPInit{
		Type: c.service, SendCQ: e.cq, RecvCQ: e.cq,
		MaxSendWR: c.depth, MaxRecvWR: c.depth, MaxSendSGE: c.sge, MaxRecvSGE: c.sge, MaxInline: c.inline,
	}
	if c.srq {
		e.srq, err = e.pd.CreateSRQ(verbs.SRQInit{MaxWR: c.depth, MaxSGE: c.sge})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.srq.Close()) })
		init.SRQ = e.srq
	}
	e.qp, err = e.pd.CreateQP(init)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.qp.Close()) })
	e.mem = register(t, e.pd, c.memory, c.access)
	return e
}

// connect takes both ends to RTS.
func connect(t testing.TB, a, b *end, c config) {
	t.Helper()
	mtu := verbs.MTU(4096)
	for _, e := range []*end{a, b} {
		port, err := e.dev.QueryPort(1)
		require.NoError(t, err)
		mtu = min(mtu, port.ActiveMTU)
	}
	for _, e := range []struct{ own, peer *end }{{a, b}, {b, a}} {
		attr := verbs.QPAttr{
			Port: 1, Access: allAccess, QKey: qkey,
			Address: verbs.AddressAttr{DGID: e.peer.gid.GID, SGIDIndex: e.own.gid.Index, Port: 1},
			PathMTU: mtu, DestQPN: e.peer.qp.Num(), RQPSN: e.peer.qp.Num() & 0xfff, SQPSN: e.own.qp.Num() & 0xfff,
			Timeout: 17, RetryCount: 7, RNRRetry: 7, MinRNRTimer: 12,
			MaxInitReadAtomic: 4, MaxDestReadAtomic: 4,
		}
		if c.modify != nil {
			c.modify(&attr)
		}
		verbstest.ToRTS(t, e.own.qp, c.service, attr)
	}
}

// pair makes two connected ends.
func pair(t testing.TB, a, b verbs.Device, c config) (*end, *end) {
	t.Helper()
	x, y := newEnd(t, a, c), newEnd(t, b, c)
	connect(t, x, y, c)
	return x, y
}

const patience = 5 * time.Minute

// await polls both ends of a connection until this one has a completion.
func (e *end) await(peer *end) verbs.WC {
	e.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		e.poll()
		if peer != nil {
			peer.poll()
		}
		if len(e.wcs) > 0 {
			wc := e.wcs[0]
			e.wcs = e.wcs[1:]
			return wc
		}
		require.True(e.t, time.Now().Before(deadline), "no completion within %v on %s", patience, e.dev.Name())
		runtime.Gosched()
	}
}

func (e *end) poll() {
	e.t.Helper()
	var wc [16]verbs.WC
	n, err := e.cq.Poll(wc[:])
	require.NoError(e.t, err)
	e.wcs = append(e.wcs, wc[:n]...)
}

func (e *end) send(wrs ...verbs.SendWR) {
	e.t.Helper()
	n, err := e.qp.PostSend(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

func (e *end) receive(wrs ...verbs.RecvWR) {
	e.t.Helper()
	post := e.qp.PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	n, err := post(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

// fill writes a pattern that differs for each seed.
func fill(b []byte, seed int) {
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
