package roce

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/verbs"
)

// openOnOneDevice connects two queue pairs of one device, on one address.
func openOnOneDevice(t testing.TB, cfg Config, memory int) (x, y *side) {
	t.Helper()
	return openOnOneDeviceTimeout(t, cfg, memory, testTimeout)
}

// openOnOneDeviceTimeout is openOnOneDevice with another code of the time-out.
func openOnOneDeviceTimeout(t testing.TB, cfg Config, memory int, timeout uint8) (x, y *side) {
	t.Helper()
	x = openSide(t, cfg, memory)
	x.timeout = timeout
	y = x.addQueuePair(memory, verbs.QPInit{})
	x.connect(y)
	y.connect(x)
	return x, y
}

// addQueuePair makes another queue pair on the device of a side, with memory of its own.
func (s *side) addQueuePair(memory int, init verbs.QPInit) *side {
	s.t.Helper()
	other := *s
	y := &other
	y.mem = make([]byte, memory)
	y.mr = must(s.dev.DefaultPD().RegMR(y.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))
	y.cq = must(s.dev.CreateCQ(verbs.CQInit{Capacity: 4096}))
	init.SendCQ, init.RecvCQ = y.cq, y.cq
	init.MaxSendWR, init.MaxRecvWR, init.MaxSendSGE, init.MaxRecvSGE, init.MaxInline = 1024, 1024, 4, 4, 64
	y.qp = must(s.dev.DefaultPD().CreateQP(init))
	s.t.Cleanup(func() {
		require.NoError(s.t, y.qp.Close())
		require.NoError(s.t, y.mr.Close())
		require.NoError(s.t, y.cq.Close())
	})
	return y
}

func (s *side) pathKind() verbs.Path { return s.qp.(optional.CountersQP).Counters().Path }

// Queue pairs of one device exchange packets in memory.
func TestOneDevice(t *testing.T) {
	const timeout = 22 // 17 s: nothing is lost, and a slow machine must not pass for a loss
	x, y := openOnOneDeviceTimeout(t, Config{}, 1<<20, timeout)
	require.Equal(t, []verbs.Path{verbs.PathLoopback, verbs.PathLoopback}, []verbs.Path{x.pathKind(), y.pathKind()})
	for _, n := range []int{1, 8, 4097, 65536, 65537, 300_000} {
		x.everyOperation(y, n)
		y.everyOperation(x, n)
	}
	assert.Equal(t, counter(t, x.dev, "sent_pkts"), counter(t, x.dev, "local_sent_pkts"), "none has gone by UDP")
	assert.Zero(t, counter(t, x.dev, "local_peers"), "it is no other device")
	assert.Zero(t, counter(t, x.dev, "completer_retry_err"))
}

// everyOperation does each operation that moves data once.
func (s *side) everyOperation(peer *side, n int) {
	s.t.Helper()
	half := len(s.mem) / 2
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpSend} {
		fill(s.mem[:n], uint64(n))
		fill(peer.mem[half:half+n], uint64(n+1))
		wr := verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{s.sge(0, n)}, RemoteAddr: peer.mr.Addr() + uint64(half), RKey: peer.mr.RKey()}
		if op == verbs.OpSend {
			peer.recv(1, peer.sge(half, half))
		}
		s.post(wr)
		require.Equal(s.t, verbs.StatusSuccess, s.wait(1)[0].Status)
		if op == verbs.OpSend {
			require.Equal(s.t, verbs.StatusSuccess, peer.wait(1)[0].Status)
		}
		require.True(s.t, bytes.Equal(s.mem[:n], peer.mem[half:half+n]), "%v of %d bytes", op, n)
	}
}

// A sleeping program is woken without polls.
func TestOneDeviceSleep(t *testing.T) {
	x, y := openOnOneDevice(t, Config{}, 4096)
	wake := make(chan struct{}, 100)
	y.cq.OnCompletion(func() { wake <- struct{}{} })
	for range 100 {
		y.recv(1, y.sge(0, 8))
		require.True(t, must(y.cq.Arm(false)))
		x.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{x.sge(0, 8)}})
		notified(t, wake)
		require.Equal(t, verbs.StatusSuccess, y.wait(1)[0].Status)
	}
}

// A receiver that is not ready delays only its sender.
func TestOneDeviceNotReady(t *testing.T) {
	x, y := openOnOneDevice(t, Config{}, 4096)
	x.post(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}})
	for counter(t, x.dev, "rcvd_rnr_err") < 3 {
		y.post(y.write(x, 8))
		require.Equal(t, verbs.StatusSuccess, y.wait(1)[0].Status)
	}
	y.recv(1, y.sge(0, 8))
	require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
	require.Equal(t, verbs.StatusSuccess, y.wait(1)[0].Status)
}

// What is refused is refused as on any path.
func TestOneDeviceRefused(t *testing.T) {
	x, y := openOnOneDevice(t, Config{}, 4096)
	wr := x.write(y, 8)
	wr.RKey++
	x.post(wr, wr)
	require.Equal(t, []verbs.Status{verbs.StatusRemoteAccessError, verbs.StatusFlushed}, statuses(x.wait(2)))
}

// Each has far more to send than the memory between them holds.
func TestOneDeviceFull(t *testing.T) {
	const n, size = 50, 1 << 20
	x, y := openOnOneDevice(t, Config{}, size)
	for range n {
		x.post(x.write(y, size))
		y.post(y.write(x, size))
	}
	for _, s := range []*side{x, y} {
		for _, wc := range s.wait(n) {
			require.Equal(t, verbs.StatusSuccess, wc.Status)
		}
	}
}

// Memory that is freed while packets that name it are under way is touched no more.
func TestOneDeviceFree(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has memory that can be shown")
	}
	const size = 1 << 20
	x, y := openOnOneDevice(t, Config{}, size)
	for range 20 {
		mem, free, err := x.dev.AllocMemory(size)
		require.NoError(t, err)
		mr := must(x.dev.DefaultPD().RegMR(mem, verbs.AccessLocalWrite))
		y.recv(1, y.sge(0, size))
		x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{{Addr: mr.Addr(), Length: size, LKey: mr.LKey()}}})
		require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
		require.Equal(t, verbs.StatusSuccess, y.wait(1)[0].Status)
		require.NoError(t, mr.Close())
		require.NoError(t, free())
	}
}

// Faults, captures and DisableLocal keep packets on a socket.
func TestOneDeviceOff(t *testing.T) {
	x, y := openOnOneDevice(t, Config{DisableLocal: true}, 1<<20)
	require.Equal(t, verbs.PathNetwork, x.pathKind())
	x.everyOperation(y, 5000)
	x, y = openOnOneDevice(t, Config{}, 1<<20)
	x.everyOperation(y, 5000)
	require.NoError(t, x.dev.SetFaults(faults.Faults{Loss: 0.05, Seed: 1}))
	require.Equal(t, []verbs.Path{verbs.PathNetwork, verbs.PathNetwork}, []verbs.Path{x.pathKind(), y.pathKind()})
	x.everyOperation(y, 200_000)
	y.everyOperation(x, 200_000)
}

// The memory between two queue pairs of a device exists as long as one of them does.
func TestOneDeviceLeave(t *testing.T) {
	x, y := openOnOneDevice(t, Config{}, 1<<20)
	for range 3 {
		x.everyOperation(y, 100)
		for _, s := range []*side{x, y} {
			require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
		}
		x.dev.mu.Lock()
		require.Empty(t, x.dev.main.mu.local.All())
		require.False(t, x.dev.main.mu.local.Active())
		require.Zero(t, x.dev.endpoints[0].receivers)
		x.dev.mu.Unlock()
		x.connect(y)
		y.connect(x)
	}
}
