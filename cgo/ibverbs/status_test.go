//go:build linux && cgo && verbs

package ibverbs_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// failure is a request that cannot succeed.
type failure struct {
	name   string
	config config
	// do prepares the target, and returns the request of the initiator.
	do func(initiator, target *end) verbs.SendWR
	// What the initiator's request ends with, and the target's receive if there
	// is one (IBTA 9.9, tables 53 to 55; 11.6.2).
	want, received verbs.Status
	// What rxe (kernel 6.1) says instead when it is the end that detects the
	// failure, which is the initiator if local is set, and else the target.
	local                bool
	rxeWant, rxeReceived verbs.Status
	// unpostable says that rxe's provider refuses the request when it is posted, but not
	// by ibv_wr_start.
	unpostable bool
}

// expected returns the statuses of the request and of the receive between the two.
func (f *failure) expected(initiator, target verbs.Device) (want, received verbs.Status) {
	detects := target
	if f.local {
		detects = initiator
	}
	want, received = f.want, f.received
	if detects.Driver() == "ibverbs" {
		if f.rxeWant != 0 {
			want = f.rxeWant
		}
		if f.rxeReceived != 0 {
			received = f.rxeReceived
		}
	}
	return want, received
}

const noReceive = verbs.Status(-1)

func writeTo(a, b *end) verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpWrite, SGL: a.mem.sgl(0, 64), RemoteAddr: b.mem.mr.Addr(), RKey: b.mem.mr.RKey()}
}

func with(wr verbs.SendWR, change func(*verbs.SendWR)) verbs.SendWR {
	change(&wr)
	return wr
}

// fewRNRRetries gives up soon where the peer has no receive, and waits long for its
// answers: a busy guest may be slow.
func fewRNRRetries(a *verbs.QPAttr) { a.RNRRetry, a.MinRNRTimer = 1, 1 }

func shortTimeout(a *verbs.QPAttr) { a.RNRRetry, a.RetryCount, a.Timeout, a.MinRNRTimer = 1, 1, 12, 1 }

var failures = []failure{
	{name: "write, unknown rkey", config: config{}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) { wr.RKey ^= 0xff00 })
	}, want: verbs.StatusRemoteAccessError, received: noReceive},
	{name: "read, unknown rkey", config: config{}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) { wr.Op, wr.RKey = verbs.OpRead, wr.RKey^0xff00 })
	}, want: verbs.StatusRemoteAccessError, received: noReceive},
	{name: "fetch-and-add, unknown rkey", config: config{}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) {
			wr.Op, wr.SGL, wr.RKey = verbs.OpFetchAdd, a.mem.sgl(0, 8), wr.RKey^0xff00
		})
	}, want: verbs.StatusRemoteAccessError, received: noReceive},
	{name: "write past the end", config: config{}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) { wr.RemoteAddr += b.mem.mr.Len() - 63 })
	}, want: verbs.StatusRemoteAccessError, received: noReceive},
	{name: "read before the beginning", config: config{}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) { wr.Op = verbs.OpRead; wr.RemoteAddr-- })
	}, want: verbs.StatusRemoteAccessError, received: noReceive},
	{name: "write without permission", config: config{access: verbs.AccessLocalWrite | verbs.AccessRemoteRead}, do: writeTo,
		want: verbs.StatusRemoteAccessError, received: noReceive},
	{name: "read without permission", config: config{access: verbs.AccessLocalWrite | verbs.AccessRemoteWrite}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) { wr.Op = verbs.OpRead })
	}, want: verbs.StatusRemoteAccessError, received: noReceive},
	{name: "write that the queue pair does not allow", config: config{modify: func(a *verbs.QPAttr) { a.Access = verbs.AccessRemoteRead }}, do: writeTo,
		want: verbs.StatusRemoteInvalidRequest, received: noReceive},
	{name: "atomic that is not aligned", config: config{}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) {
			wr.Op, wr.SGL = verbs.OpCompareSwap, a.mem.sgl(0, 8)
			wr.RemoteAddr += 4
		})
	}, want: verbs.StatusRemoteInvalidRequest, received: noReceive, unpostable: true},
	{name: "send longer than the receive", config: config{}, do: func(a, b *end) verbs.SendWR {
		b.receive(verbs.RecvWR{ID: 5, SGL: b.mem.sgl(0, 63)})
		return verbs.SendWR{Op: verbs.OpSend, SGL: a.mem.sgl(0, 64)}
	}, want: verbs.StatusRemoteInvalidRequest, received: verbs.StatusLocalLengthError,
		rxeWant: verbs.StatusRemoteOperationError, rxeReceived: verbs.StatusLocalQPOperationError},
	{name: "receive into memory that is not registered", config: config{}, do: func(a, b *end) verbs.SendWR {
		sge := b.mem.sge(0, 64)
		sge.LKey ^= 0xff00
		b.receive(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{sge}})
		return verbs.SendWR{Op: verbs.OpSend, SGL: a.mem.sgl(0, 64)}
	}, want: verbs.StatusRemoteOperationError, received: verbs.StatusLocalProtectionError,
		rxeReceived: verbs.StatusLocalQPOperationError},
	{name: "no receive", config: config{modify: fewRNRRetries}, do: func(a, b *end) verbs.SendWR {
		return verbs.SendWR{Op: verbs.OpSend, SGL: a.mem.sgl(0, 64)}
	}, want: verbs.StatusRNRRetryExceeded, received: noReceive},
	{name: "the peer is gone", config: config{modify: shortTimeout}, do: func(a, b *end) verbs.SendWR {
		wr := writeTo(a, b)
		require.NoError(a.t, b.qp.Close())
		return wr
	}, want: verbs.StatusRetryExceeded, received: noReceive},
	{name: "send from memory that is not registered", config: config{}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) { wr.SGL[0].LKey ^= 0xff00 })
	}, want: verbs.StatusLocalProtectionError, received: noReceive, local: true, rxeWant: verbs.StatusLocalQPOperationError},
	{name: "send from past the end", config: config{}, do: func(a, b *end) verbs.SendWR {
		return with(writeTo(a, b), func(wr *verbs.SendWR) { wr.SGL[0].Addr += a.mem.mr.Len() - 63 })
	}, want: verbs.StatusLocalProtectionError, received: noReceive},
	{name: "the target is in error", config: config{modify: shortTimeout}, do: func(a, b *end) verbs.SendWR {
		wr := writeTo(a, b)
		require.NoError(a.t, b.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
		return wr
	}, want: verbs.StatusRetryExceeded, received: noReceive},
}

// TestGuestStatuses wants the same status of a failed request from both drivers,
// whichever answers, and flushes of what was posted behind it.
func TestGuestStatuses(t *testing.T) {
	testStatuses(t, openAdapter(t), openSoft(t, soft.Faults{}), true)
}

func TestGuestExtendedStatuses(t *testing.T) {
	testStatuses(t, openExtended(t), openSoft(t, soft.Faults{}), false)
}

// testStatuses is also told whether the adapter's provider looks at what is posted.
func testStatuses(t *testing.T, adapter, software verbs.Device, looks bool) {
	for _, c := range []struct {
		name string
		a, b verbs.Device
	}{
		{"rxe to rxe", adapter, adapter},
		{"rxe to soft", adapter, software},
		{"soft to rxe", software, adapter},
		{"soft to soft", software, software},
	} {
		if !looks && c.a == c.b && c.a == software {
			continue // the other test has it
		}
		for _, f := range failures {
			t.Run(c.name+", "+f.name, func(t *testing.T) {
				f.config.memory = 4096
				a, b := pair(t, c.a, c.b, f.config)
				wr := f.do(a, b)
				wr.ID, wr.Flags = 1, verbs.FlagSignaled
				next := verbs.SendWR{ID: 2, Op: verbs.OpWrite, RemoteAddr: b.mem.mr.Addr(), RKey: b.mem.mr.RKey()}
				if f.unpostable && looks && c.a.Driver() == "ibverbs" {
					_, err := a.qp.PostSend([]verbs.SendWR{wr})
					require.ErrorIs(t, err, verbs.ErrInvalid)
					return
				}
				a.send(wr, next)
				want, received := f.expected(c.a, c.b)
				wc := a.await(b)
				assert.Equal(t, uint64(1), wc.ID)
				assert.Equal(t, want.String(), wc.Status.String())
				wc = a.await(b)
				assert.Equal(t, uint64(2), wc.ID)
				assert.Equal(t, verbs.StatusFlushed.String(), wc.Status.String())
				attr, err := a.qp.Query()
				require.NoError(t, err)
				assert.Equal(t, verbs.QPError, attr.State)
				if received != noReceive {
					wc = b.await(a)
					assert.Equal(t, uint64(5), wc.ID)
					assert.Equal(t, received.String(), wc.Status.String())
				}
			})
		}
	}
}
