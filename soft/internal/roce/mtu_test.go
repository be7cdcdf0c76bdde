package roce

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// Ends whose path MTUs differ take each other's messages of one packet that fits both, and refuse
// all others, in the same way by each path.
func TestDifferentPathMTUs(t *testing.T) {
	for _, path := range []struct {
		name string
		open func(*testing.T) (x, y *side)
	}{
		{"UDP", func(t *testing.T) (x, y *side) {
			off := Config{DisableLocal: true}
			return openSide(t, off, 1<<18), openSide(t, off, 1<<18)
		}},
		{"shared memory", func(t *testing.T) (x, y *side) {
			return openSide(t, Config{}, 1<<18), openSide(t, Config{}, 1<<18)
		}},
		{"one device", func(t *testing.T) (x, y *side) {
			x = openSide(t, Config{}, 1<<18)
			return x, x.addQueuePair(1<<18, verbs.QPInit{})
		}},
		{"one device by UDP", func(t *testing.T) (x, y *side) {
			x = openSide(t, Config{DisableLocal: true}, 1<<18)
			return x, x.addQueuePair(1<<18, verbs.QPInit{})
		}},
	} {
		for _, c := range []struct {
			name           string
			op             verbs.Opcode
			own, peer      verbs.MTU
			n              int
			status, atPeer verbs.Status // at the peer: of the receive
		}{
			{"send fits", verbs.OpSend, 4096, 1024, 1024, verbs.StatusSuccess, verbs.StatusSuccess},
			{"send fits the smaller", verbs.OpSend, 1024, 4096, 1024, verbs.StatusSuccess, verbs.StatusSuccess},
			{"send of one packet", verbs.OpSend, 4096, 1024, 1025, verbs.StatusRemoteInvalidRequest, verbs.StatusFlushed},
			{"send of two packets", verbs.OpSend, 1024, 4096, 1025, verbs.StatusRemoteInvalidRequest, verbs.StatusFlushed},
			{"long send", verbs.OpSend, 4096, 1024, 100_000, verbs.StatusRemoteInvalidRequest, verbs.StatusFlushed},
			{"long send from the smaller", verbs.OpSend, 1024, 4096, 100_000, verbs.StatusRemoteInvalidRequest, verbs.StatusFlushed},
			{"long write", verbs.OpWrite, 4096, 1024, 100_000, verbs.StatusRemoteInvalidRequest, verbs.StatusFlushed},
			{"long write from the smaller", verbs.OpWrite, 1024, 4096, 100_000, verbs.StatusRemoteInvalidRequest, verbs.StatusFlushed},
			{"read fits", verbs.OpRead, 4096, 1024, 1024, verbs.StatusSuccess, 0},
			{"read of two packets", verbs.OpRead, 4096, 1024, 1025, verbs.StatusBadResponse, 0},
			{"read of one packet", verbs.OpRead, 1024, 4096, 1025, verbs.StatusBadResponse, 0},
			{"long read", verbs.OpRead, 4096, 1024, 100_000, verbs.StatusBadResponse, 0},
			{"long read to the smaller", verbs.OpRead, 1024, 4096, 100_000, verbs.StatusBadResponse, 0},
		} {
			t.Run(path.name+"/"+c.name, func(t *testing.T) {
				x, y := path.open(t)
				x.mtu, y.mtu = c.own, c.peer
				x.timeout, y.timeout = 20, 20 // 4 s: a slow machine must not pass for a loss
				x.connect(y)
				y.connect(x)
				if path.name == "shared memory" {
					awaitSharedMemory(x, y)
				}
				if c.op != verbs.OpRead {
					y.recv(1, y.sge(0, 1<<18))
				}
				x.post(verbs.SendWR{Op: c.op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, c.n)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
				require.Equal(t, []verbs.Status{c.status}, statuses(x.wait(1)))
				if c.op != verbs.OpRead {
					require.Equal(t, []verbs.Status{c.atPeer}, statuses(y.wait(1)))
				}
			})
		}
	}
}

// An unreliable connection drops what does not fit, without a word, and goes on.
func TestDifferentPathMTUsUnreliable(t *testing.T) {
	for _, mtus := range [][2]verbs.MTU{{4096, 1024}, {1024, 4096}} {
		x, y := openSide(t, Config{}, 1<<18), openSide(t, Config{}, 1<<18)
		for i, s := range []*side{x, y} {
			s.use(verbs.UC)
			s.mtu = mtus[i]
		}
		x.connectUCWith(y, x.mtu)
		y.connectUCWith(x, y.mtu)
		y.recv(1, y.sge(0, 1<<18))
		for _, n := range []int{1025, 100_000, 1024} {
			x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}})
			require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
		}
		wc := y.wait(1)[0]
		require.Equal(t, verbs.StatusSuccess, wc.Status)
		require.EqualValues(t, 1024, wc.Bytes)
	}
}
