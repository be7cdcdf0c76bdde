//go:build linux && cgo && verbs

package ibverbs

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

// An errno means that a peer is out of reach only where the kernel resolves the peer's address.
func TestErrnosOfUnreachablePeers(t *testing.T) {
	q := &queuePair{pd: &protectionDomain{device: &device{}}}
	for errno, want := range map[syscall.Errno]error{
		syscall.ETIMEDOUT: verbs.ErrUnreachable, syscall.EHOSTUNREACH: verbs.ErrUnreachable, syscall.ENETUNREACH: verbs.ErrNoRoute,
	} {
		const resolved = "the peer's address cannot be resolved"
		connect := q.modifyError(&verbs.QPAttr{State: verbs.QPReadyToReceive}, verbs.RCToRTR, errno, nil)
		assert.ErrorIs(t, connect, want)
		assert.ErrorContains(t, connect, resolved)
		handle := asResolutionError(verbError("ibv_create_ah", "the way to a peer", errno))
		assert.ErrorIs(t, handle, want)
		assert.ErrorContains(t, handle, resolved)
		for _, err := range []error{
			q.modifyError(&verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState, errno, nil),
			verbError("ibv_create_qp", "a queue pair", errno),
		} {
			assert.NotErrorIs(t, err, want)
			assert.ErrorIs(t, err, errno)
			assert.NotContains(t, err.Error(), resolved)
		}
	}
}
