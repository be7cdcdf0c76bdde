package roce

import (
	"cmp"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/test/verbstest"
	"github.com/verbena-rdma/verbena/verbs"
)

// side is one end of a connection on a device of its own.
type side struct {
	t   testing.TB
	dev *Device
	cq  verbs.CQ
	qp  verbs.QP
	mr  verbs.MR
	mem []byte
	wcs []verbs.WC
	mtu verbs.MTU

	// What the queue pair is given, where it is not the usual.
	access *verbs.Access
	rnr    *uint8
	sqPSN  *uint32
	path   verbs.AddressAttr // its fields but the address
	// timeout is the code of the time-out; zero: testTimeout.
	timeout uint8
}

func openSide(t testing.TB, cfg Config, memory int) *side {
	t.Helper()
	return openSideWith(t, cfg, memory, verbs.QPInit{})
}

// openAdaptive opens a side whose queue pair waits for a peer that is delayed, and repeats
// soon what is lost.
func openAdaptive(t testing.TB, cfg Config, memory int) *side {
	t.Helper()
	return openSideWith(t, cfg, memory, verbs.QPInit{AdaptiveRetransmission: true})
}

func openSideWith(t testing.TB, cfg Config, memory int, init verbs.QPInit) *side {
	t.Helper()
	cfg.Name = "soft-test"
	if cfg.Addresses == nil {
		cfg.Addresses = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}
	}
	dev, err := Open(cfg)
	require.NoError(t, err)
	return sideOf(t, dev, memory, init)
}

func sideOf(t testing.TB, dev *Device, memory int, init verbs.QPInit) *side {
	t.Helper()
	var err error
	s := &side{t: t, dev: dev, mem: make([]byte, memory), wcs: make([]verbs.WC, 64), mtu: 4096}
	s.cq, err = dev.CreateCQ(verbs.CQInit{Capacity: 4096})
	require.NoError(t, err)
	s.mr, err = dev.DefaultPD().RegMR(s.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	require.NoError(t, err)
	init.SendCQ, init.RecvCQ = s.cq, s.cq
	init.MaxSendWR, init.MaxRecvWR, init.MaxSendSGE, init.MaxRecvSGE, init.MaxInline = 1024, 1024, 4, 4, 64
	s.qp, err = dev.DefaultPD().CreateQP(init)
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s
}

const testTimeout = 14 // 67 ms: a machine busy with other work must not pass for a peer that is gone

func (s *side) connect(peer *side) {
	s.t.Helper()
	gids, err := peer.dev.GIDs(1)
	require.NoError(s.t, err)
	s.connectTo(gids[0], peer.qp.Num())
}

// connectTo connects to a queue pair that need not exist.
func (s *side) connectTo(gid verbs.GIDEntry, qpn uint32) {
	s.t.Helper()
	all, rnr, psn := verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic, uint8(7), uint32(0xfffff0)
	if s.access != nil {
		all = *s.access
	}
	if s.rnr != nil {
		rnr = *s.rnr
	}
	if s.sqPSN != nil {
		psn = *s.sqPSN
	}
	path := s.path
	path.DGID, path.Port, path.UDPPort = gid.GID, 1, gid.UDPPort
	verbstest.ToRTS(s.t, s.qp, verbs.RC, verbs.QPAttr{
		Port: 1, Access: all, Address: path, PathMTU: s.mtu, DestQPN: qpn, RQPSN: 0xfffff0, SQPSN: psn,
		MaxDestReadAtomic: 16, MaxInitReadAtomic: 16, MinRNRTimer: 1,
		Timeout: cmp.Or(s.timeout, testTimeout), RetryCount: 7, RNRRetry: rnr,
	})
}

func openPair(t testing.TB, a, b Config, memory int) (*side, *side) {
	x, y := openSide(t, a, memory), openSide(t, b, memory)
	x.connect(y)
	y.connect(x)
	return x, y
}

// overEachPath runs a test with a connection by each way between two devices of one machine.
func overEachPath(t *testing.T, memory int, test func(t *testing.T, x, y *side)) {
	t.Run("UDP", func(t *testing.T) {
		x, y := openPair(t, Config{DisableLocal: true}, Config{DisableLocal: true}, memory)
		test(t, x, y)
	})
	t.Run("shared memory", func(t *testing.T) {
		x, y := openPair(t, Config{}, Config{}, memory)
		awaitSharedMemory(x, y)
		test(t, x, y)
	})
}

// awaitSharedMemory waits until the packets of two sides go through shared memory, where there
// is such a thing.
func awaitSharedMemory(sides ...*side) {
	for _, s := range sides {
		if runtime.GOOS == "linux" {
			require.Eventually(s.t, func() bool { return s.qp.(optional.CountersQP).Counters().Path == verbs.PathSharedMemory }, 5*time.Minute, time.Millisecond)
		}
	}
}

// close closes all that there is.
func (s *side) close() {
	require.NoError(s.t, s.qp.Close())
	require.NoError(s.t, s.mr.Close())
	require.NoError(s.t, s.cq.Close())
	require.NoError(s.t, s.dev.Close())
}

// sge names a piece of the side's memory.
func (s *side) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}
}

// wait polls until n completions have come.
func (s *side) wait(n int) []verbs.WC {
	s.t.Helper()
	var all []verbs.WC
	deadline := time.Now().Add(5 * time.Minute)
	for len(all) < n {
		k, err := s.cq.Poll(s.wcs)
		require.NoError(s.t, err)
		all = append(all, s.wcs[:k]...)
		if time.Now().After(deadline) { // require.Less takes longer than the rest
			require.Fail(s.t, "the time is over", "%d of %d completions came", len(all), n)
		}
	}
	return all
}

func statuses(wcs []verbs.WC) (all []verbs.Status) {
	for _, wc := range wcs {
		all = append(all, wc.Status)
	}
	return all
}

func (s *side) post(wrs ...verbs.SendWR) {
	s.t.Helper()
	n, err := s.qp.PostSend(wrs)
	require.NoError(s.t, err)
	require.Equal(s.t, len(wrs), n)
}

// addressOfBytes is the address of the first byte.
func addressOfBytes(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
