package faultydevice_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Whatever a device has refused to destroy, its Close destroys; what was left open by mistake
// it does not.
func TestCloseDestroysWhatWasRefused(t *testing.T) {
	d, err := faultydevice.Open(soft.Config{})
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQInit{Capacity: 4})
	require.NoError(t, err)
	srq, err := d.DefaultPD().CreateSRQ(verbs.SRQInit{MaxWR: 1})
	require.NoError(t, err)
	qp, err := d.DefaultPD().CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 1})
	require.NoError(t, err)
	d.Set(func(h *faultydevice.Hooks) {
		h.DestroyQP = func(verbs.QP) error { return faultydevice.ErrGone }
		h.DestroySRQ = func(verbs.SRQ) error { return faultydevice.ErrGone }
	})
	require.ErrorIs(t, qp.Close(), verbs.ErrNoDevice)
	require.ErrorIs(t, srq.Close(), verbs.ErrNoDevice)
	require.ErrorIs(t, cq.Close(), verbs.ErrInUse)
	left, err := d.CreateCQ(verbs.CQInit{Capacity: 4})
	require.NoError(t, err)
	require.ErrorIs(t, d.Close(), verbs.ErrInUse)
	require.NoError(t, left.Close())
	require.NoError(t, d.Close())
}

// Faults of several kinds are there together, and events name the device's own queues.
func TestFaultsTogether(t *testing.T) {
	d, err := faultydevice.Open(soft.Config{})
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQInit{Capacity: 4})
	require.NoError(t, err)
	qp, err := d.DefaultPD().CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	require.NoError(t, err)
	resolved, handles := 0, 0
	d.KernelCM()
	d.Set(func(h *faultydevice.Hooks) {
		h.CreateAH = func(*verbs.AddressAttr) error { handles++; return nil }
	})
	d.RefuseError(faultydevice.ErrBroken)
	d.Neighbours(func(verbs.AddressAttr) error { resolved++; return nil })
	d.NoSharedReceiveQueues()
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1}, verbs.RCToInit))
	require.ErrorIs(t, qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState), faultydevice.ErrBroken)
	gids, err := d.GIDs(1)
	require.NoError(t, err)
	attr := verbs.QPAttr{
		State: verbs.QPReadyToReceive, Address: verbs.AddressAttr{DGID: gids[0].GID, UDPPort: gids[0].UDPPort}, PathMTU: 1024, DestQPN: qp.Num(),
	}
	require.NoError(t, qp.Modify(attr, verbs.RCToRTR))
	assert.Equal(t, 1, resolved)
	ah, err := d.DefaultPD().CreateAH(attr.Address)
	require.NoError(t, err)
	require.NoError(t, ah.Close())
	assert.Equal(t, [2]int{2, 1}, [2]int{resolved, handles})
	limits, err := d.Query()
	require.NoError(t, err)
	assert.Zero(t, limits.MaxSRQ)
	assert.False(t, limits.CMPathMTU)
	_, err = d.DefaultPD().CreateSRQ(verbs.SRQInit{MaxWR: 1})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	var events []verbs.Event
	cancel := d.SubscribeEvents(func(e verbs.Event) { events = append(events, e) })
	d.Report(verbs.Event{Type: verbs.EventCQError, CQ: cq})
	cancel()
	d.Report(verbs.Event{Type: verbs.EventDeviceFatal})
	assert.Equal(t, []verbs.Event{{Type: verbs.EventCQError, CQ: cq}}, events)
	d.Heal()
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
	require.NoError(t, qp.Close())
	require.NoError(t, cq.Close())
	require.NoError(t, d.Close())
}
