package roce

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// A device whose port is not 4791 reaches its own queue pairs at its own GID without naming a port.
func TestOwnGIDIsOwnPort(t *testing.T) {
	for _, kind := range []verbs.QPType{verbs.RC, verbs.UC} {
		for _, noMemory := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, by UDP %v", kind, noMemory), func(t *testing.T) {
				openSide(t, Config{}, 4096) // has port 4791, unless another process has
				x := openSideWith(t, Config{DisableLocal: noMemory}, 4096, verbs.QPInit{Type: kind})
				y := *x
				y.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{Type: kind, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4}))
				defer func() { require.NoError(t, y.qp.Close()) }()
				gid := must(x.dev.GIDs(1))[0]
				require.NotEqualValues(t, 4791, x.dev.endpoints[0].socket.Addr().Port())
				gid.UDPPort = 0
				for _, ends := range [][2]*side{{x, &y}, {&y, x}} {
					attr := verbs.QPAttr{DestQPN: ends[1].qp.Num(), Address: verbs.AddressAttr{DGID: gid.GID, Port: 1}}
					p, _, err := ends[0].qp.(*queuePair).choosePath(&attr)
					require.NoError(t, err)
					require.Equal(t, x.dev.endpoints[0].socket.Addr(), udpPeer(p))
				}
				attr := verbs.QPAttr{DestQPN: 2, Address: verbs.AddressAttr{DGID: gid.GID, Port: 1}}
				p, _, err := x.qp.(*queuePair).choosePath(&attr)
				require.NoError(t, err)
				require.EqualValues(t, 4791, udpPeer(p).Port(), "of another process")

				if kind != verbs.RC {
					return // connectTo has attributes of RC
				}
				for num, own := range map[uint32]bool{x.qp.Num(): true, 2: false} {
					require.NoError(t, y.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
					y.connectTo(must(x.dev.GIDs(1))[0], num)
					attr.DestQPN = y.qp.Num()
					p, _, err := x.qp.(*queuePair).choosePath(&attr)
					require.NoError(t, err)
					require.Equal(t, own, udpPeer(p) == x.dev.endpoints[0].socket.Addr(), "connected to %#x", num)
				}
			})
		}
	}
}

// Datagrams and SRD requests to a device's own GID without a port reach its own queue pairs, and
// those to other queue pairs go to port 4791.
func TestOwnGIDIsOwnPortForHandles(t *testing.T) {
	for _, service := range []verbs.QPType{verbs.UD, verbs.SRD} {
		t.Run(service.String(), func(t *testing.T) {
			first := openSide(t, Config{}, 4096) // has port 4791, unless another process has
			x := openSide(t, Config{}, 4096)
			require.NotEqualValues(t, 4791, x.dev.endpoints[0].socket.Addr().Port())
			for _, s := range []*side{first, x} {
				require.NoError(t, s.qp.Close())
				s.qp = must(s.dev.DefaultPD().CreateQP(verbs.QPInit{Type: service, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}))
				s.readyUD()
			}
			peers := []*side{x}
			if first.dev.endpoints[0].socket.Addr().Port() == 4791 {
				peers = append(peers, first)
			}
			ah := x.handle(x.dev.DefaultPD(), verbs.AddressAttr{DGID: must(x.dev.GIDs(1))[0].GID, Port: 1})
			for _, to := range peers {
				to.recv(1, to.sge(0, 1024))
				x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(2048, 8)}, AH: ah, RemoteQPN: to.qp.Num(), RemoteQKey: testKey})
				n := 1
				if to == x {
					n = 2 // the request's and the receive's
				} else {
					require.Equal(t, []verbs.Status{verbs.StatusSuccess}, statuses(to.wait(1)))
				}
				for _, wc := range x.wait(n) {
					require.Equal(t, verbs.StatusSuccess, wc.Status)
				}
			}
		})
	}
}

// udpPeer returns the UDP address that a path leads to, if it does not stay in the device.
func udpPeer(p path) netip.AddrPort {
	switch p := p.(type) {
	case *udpPath:
		return p.peer
	case *localPath:
		return p.peer
	}
	return netip.AddrPort{}
}
