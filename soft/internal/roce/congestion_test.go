package roce

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The receiver of marked packets notifies their sender, whichever end is the requester.
func TestMarkedPacketsAreNotified(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems do not show the marks")
	}
	for _, v := range variants {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
			t.Run(v.name+"/"+op.String(), func(t *testing.T) {
				const n = 300_000
				plain, marking := v.cfg, v.cfg
				plain.DisableLocal, marking.Faults = true, faults.Faults{Mark: 1}
				plain.CongestionControl, marking.CongestionControl = true, true
				from, to := openSide(t, plain, n), openSide(t, marking, n)
				from.connect(to)
				to.connect(from)
				requester, responder := from, to
				if op == verbs.OpRead {
					requester, responder = to, from
				}
				fill(from.mem, 1)
				requester.post(verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{requester.sge(0, n)}, RemoteAddr: responder.mr.Addr(), RKey: responder.mr.RKey()})
				require.Equal(t, verbs.StatusSuccess, requester.wait(1)[0].Status)
				require.Equal(t, from.mem, to.mem)
				assert.NotZero(t, counter(t, to.dev, "np_ecn_marked_roce_packets"))
				assert.NotZero(t, counter(t, to.dev, "np_cnp_sent"))
				assert.Zero(t, counter(t, from.dev, "np_ecn_marked_roce_packets"))
				assert.Zero(t, counter(t, from.dev, "rx_malformed"))
				if op == verbs.OpWrite { // before the last acknowledgement
					assert.NotZero(t, counter(t, from.dev, "rp_cnp_handled"))
				}
			})
		}
	}
}

// The sender of an unreliable connection is notified too.
func TestMarkedUnreliablePackets(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems do not show the marks")
	}
	x, y := openSide(t, Config{CongestionControl: true}, 4096), openSide(t, Config{CongestionControl: true, Faults: faults.Faults{Mark: 1}}, 4096)
	x.use(verbs.UC)
	y.use(verbs.UC)
	x.connectUC(y)
	y.connectUC(x)
	y.postRecv(verbs.RecvWR{SGL: []verbs.SGE{y.sge(0, 4096)}})
	x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 4096)}})
	x.wait(1)
	y.wait(1)
	assert.NotZero(t, counter(t, y.dev, "np_cnp_sent"))
}

// Without congestion control, packets are not ECN-capable, and marks are ignored.
func TestNoCongestionControl(t *testing.T) {
	for _, on := range [][2]bool{{false, false}, {false, true}} {
		x := openSide(t, Config{CongestionControl: on[0], DisableLocal: true}, 4096)
		y := openSide(t, Config{CongestionControl: on[1], Faults: faults.Faults{Mark: 1}}, 4096)
		x.connect(y)
		y.connect(x)
		x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 4096)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
		x.wait(1)
		assert.Zero(t, counter(t, y.dev, "np_ecn_marked_roce_packets"))
		assert.Zero(t, counter(t, y.dev, "np_cnp_sent"))
	}
}

// Congestion notifications of adapters do not count as malformed, whether their queue pair
// reacts to them, does not, or does not exist.
func TestNotificationsOfAdapters(t *testing.T) {
	cnp := func(qpn uint32) *wire.Packet {
		return &wire.Packet{Opcode: wire.CNP, MigReq: true, PKey: 0xffff, BECN: true, DestQP: qpn}
	}
	count := func(d *Device) (counts [4]uint64) {
		for i, name := range []string{"rp_cnp_ignored", "rp_cnp_handled", "rx_wrong_peer", "rx_malformed"} {
			counts[i] = counter(t, d, name)
		}
		return counts
	}
	for _, on := range []bool{false, true} {
		s := openSide(t, Config{DisableLocal: true, CongestionControl: on}, 4096)
		s.connectForeign()
		arrive(s.dev, cnp(s.qp.Num()), nil)
		taken := count(s.dev)
		require.Equal(t, []uint64{1, 0, 0}, []uint64{taken[0] + taken[1], taken[2], taken[3]})
		arrive(s.dev, cnp(s.qp.Num()^1), nil)
		require.Equal(t, [4]uint64{taken[0], taken[1], 1, 0}, count(s.dev), "for no queue pair")
		other := cnp(s.qp.Num())
		other.PKey = 0x8001
		before := counter(t, s.dev, "rx_wrong_peer") + counter(t, s.dev, "rx_wrong_source")
		arrive(s.dev, other, nil)
		require.Equal(t, before+1, counter(t, s.dev, "rx_wrong_peer")+counter(t, s.dev, "rx_wrong_source"), "of another partition")
	}
	ud := openUD(t, Config{})
	arrive(ud.dev, cnp(ud.qp.Num()), nil)
	require.Equal(t, [4]uint64{1, 0, 0, 0}, count(ud.dev), "for datagrams, which nothing slows down")
	managed := openCMSide(t, Config{})
	arrive(managed.dev, cnp(wire.ManagementQPN), nil)
	require.Equal(t, [4]uint64{1, 0, 0, 0}, count(managed.dev), "for queue pair 1")
}
