package cm

import (
	"fmt"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The codes of MinRNRTimer that QPAttr returns (IBTA 9.7.5.2.8). A peer that repeats for ever may do
// so soon. With a limit, a busy machine would exceed it while a program is about to post its receive.
const (
	shortRNRTimer = 12 // 0.64 ms
	longRNRTimer  = 20 // 10.24 ms
)

// QPAttr returns the attributes, and the mask of those that apply, that move the connection's
// queue pair to the state Initialized, ReadyToReceive or ReadyToSend, as rdma_init_qp_attr(3)
// does. The caller may change the access rights (remote write, and with responder resources
// remote read and atomics), MinRNRTimer, and the timeouts.
//
// The attributes for Initialized are known from the beginning, the others once the peer has
// named its queue pair. On a passive end the PSN for ReadyToReceive is that of Prepare or
// Accept.
func (c *Conn) QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	reliable := c.kind == verbs.RC
	if to != verbs.QPInitialized && c.remoteQPN == 0 {
		return verbs.QPAttr{}, 0, fmt.Errorf("attributes of the connection with %v for %v: the peer's queue pair is not known in state %v; wait for EventConnectResponse: %w",
			c.peer, to, c.state, verbs.ErrState)
	}
	switch to {
	case verbs.QPInitialized:
		a := verbs.QPAttr{State: to, Port: 1, Access: verbs.AccessRemoteWrite}
		if c.responderResources > 0 {
			a.Access |= verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
		}
		return a, verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess, nil
	case verbs.QPReadyToReceive:
		a := verbs.QPAttr{
			State: to, PathMTU: c.mtu, DestQPN: c.remoteQPN, RQPSN: c.localPSN,
			Address: verbs.AddressAttr{DGID: c.remote, SGIDIndex: c.path.GIDIndex, Port: 1, TrafficClass: c.trafficClass},
		}
		a.Address.SourceUDPPort = c.sourcePort
		if port := c.path.Remote.Port(); port != wire.UDPPort {
			a.Address.UDPPort = port
		}
		mask := verbs.QPAttrState | verbs.QPAttrAddress | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
		if reliable {
			a.MaxDestReadAtomic, a.MinRNRTimer = int(c.responderResources), longRNRTimer
			if c.peerRNRRetry == verbs.InfiniteRNRRetry {
				a.MinRNRTimer = shortRNRTimer
			}
			mask |= verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMinRNRTimer
		}
		return a, mask, nil
	case verbs.QPReadyToSend:
		a := verbs.QPAttr{State: to, SQPSN: c.remotePSN}
		mask := verbs.QPAttrState | verbs.QPAttrSQPSN
		if reliable {
			a.Timeout, a.RetryCount, a.RNRRetry, a.MaxInitReadAtomic = c.ackTimeout, c.retryCount, c.rnrRetry, int(c.initiatorDepth)
			mask |= verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrMaxInitReadAtomic
		}
		return a, mask, nil
	}
	return verbs.QPAttr{}, 0, fmt.Errorf("attributes of the connection with %v for %v: the state must be Initialized, ReadyToReceive or ReadyToSend: %w", c.peer, to, verbs.ErrInvalid)
}
