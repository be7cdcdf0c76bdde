//go:build linux && cgo && verbs

package ibverbs_test

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

func openExtended(t testing.TB) verbs.Device {
	t.Helper()
	requireGuest(t)
	d, err := ibverbs.OpenExtended("rxe0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// bothWays runs a test with ordinary queues and posting, and with extended ones.
func bothWays(t *testing.T, test func(t *testing.T, d verbs.Device)) {
	t.Helper()
	requireGuest(t)
	t.Run("ordinary", func(t *testing.T) { test(t, openAdapter(t)) })
	t.Run("extended", func(t *testing.T) { test(t, openExtended(t)) })
}

// TestGuestExtendedOperations is TestGuestOperations with extended queues and posting at
// one end or both.
func TestGuestExtendedOperations(t *testing.T) {
	extended, adapter, software := openExtended(t), openAdapter(t), openSoft(t, soft.Faults{})
	for _, c := range []struct {
		name string
		a, b verbs.Device
		srq  bool
	}{
		{"extended to extended", extended, extended, false},
		{"extended to ordinary", extended, adapter, true},
		{"extended to soft", extended, software, false},
		{"soft to extended", software, extended, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, c.a, c.b, config{family: "IPv4", srq: c.srq})
			for _, size := range sizes {
				testOperations(t, a, b, size)
			}
			testAtomics(t, a, b)
		})
	}
}

// TestGuestExtendedWindows is TestGuestWindows with extended queues and posting.
func TestGuestExtendedWindows(t *testing.T) {
	d := openExtended(t)
	for _, c := range windowCases {
		if c.rxe == crashes {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, cmp.Or(c.rxe, c.want), c.run(newWindowTest(t, d, d, cmp.Or(c.access, windowAccess))))
		})
	}
}

// rxe has no clock. A queue without fields can be polled for them all the same.
func TestGuestCompletionFields(t *testing.T) {
	bothWays(t, func(t *testing.T, d verbs.Device) {
		attr, err := d.Query()
		require.NoError(t, err)
		assert.Zero(t, attr.CompletionFields)
		assert.Zero(t, attr.ClockFrequency)
		for _, field := range []verbs.WCFields{verbs.WCTimestamp, verbs.WCWallClock, verbs.WCSource, 1 << 30} {
			_, err = d.CreateCQ(verbs.CQInit{Capacity: 1, Fields: field})
			require.ErrorIs(t, err, verbs.ErrNotSupported)
			assert.ErrorContains(t, err, "rxe0")
		}

		a, b := pair(t, d, d, config{})
		a.send(with(writeTo(a, b), func(wr *verbs.SendWR) { wr.ID, wr.Flags = 7, verbs.FlagSignaled }))
		for !a.arm(false) { // it holds the completion then
			extra := []verbs.WCExtra{{Timestamp: 1, SourceAH: 2}}
			wc := make([]verbs.WC, 1)
			n, err := a.cq.(verbs.ExtendedCQ).PollExtended(wc, extra)
			require.NoError(t, err)
			if n > 0 {
				assert.Equal(t, uint64(7), wc[0].ID)
				assert.Equal(t, verbs.WCExtra{}, extra[0])
			}
		}
		_, err = a.cq.(verbs.ExtendedCQ).PollExtended(make([]verbs.WC, 2), make([]verbs.WCExtra, 1))
		require.ErrorIs(t, err, verbs.ErrInvalid)
	})
}

// What does not fit of a batch is refused, and only that: the same whether the library
// takes batches whole or in part.
func TestGuestSendQueueFull(t *testing.T) {
	bothWays(t, func(t *testing.T, d verbs.Device) {
		a, b := pair(t, d, d, config{depth: 8, modify: shortTimeout})
		write := with(writeTo(a, b), func(wr *verbs.SendWR) { wr.Flags = verbs.FlagSignaled })
		require.NoError(t, b.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
		wrs := make([]verbs.SendWR, 40)
		for i := range wrs {
			wrs[i] = write
			wrs[i].ID = uint64(i)
		}
		n, err := a.qp.PostSend(wrs)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		require.GreaterOrEqual(t, n, 8)
		require.LessOrEqual(t, n, 16, "more than its completion queue takes")
		for i := range n {
			want := verbs.StatusFlushed
			if i == 0 {
				want = verbs.StatusRetryExceeded
			}
			wc := a.await(nil)
			require.Equal(t, verbs.WC{ID: uint64(i), Status: want, QPN: a.qp.Num(), VendorError: wc.VendorError}, wc)
		}
		a.poll()
		assert.Empty(t, a.wcs)
	})
}

func TestGuestExtendedBadPosts(t *testing.T) {
	d := openExtended(t)
	a, b := pair(t, d, d, config{depth: 8, sge: 2, inline: 16})
	good := with(writeTo(a, b), func(wr *verbs.SendWR) { wr.Flags = verbs.FlagSignaled })
	for _, bad := range []struct {
		change func(*verbs.SendWR)
		want   string
	}{
		{func(wr *verbs.SendWR) { wr.Op = 99 }, "unknown operation"},
		{func(wr *verbs.SendWR) { wr.SGL = make([]verbs.SGE, 3) }, "3 scatter-gather entries; at most 2 are allowed"},
		{func(wr *verbs.SendWR) { wr.Flags |= verbs.FlagInline; wr.SGL = a.mem.sgl(0, 4096) }, "4096 bytes of inline data"},
	} {
		n, err := a.qp.PostSend([]verbs.SendWR{good, with(good, bad.change), good})
		assert.Equal(t, 1, n, bad.want)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		assert.ErrorContains(t, err, "post send 2 of 3")
		assert.ErrorContains(t, err, bad.want)
		require.Equal(t, verbs.StatusSuccess, a.await(b).Status)
		a.poll()
		require.Empty(t, a.wcs)
	}
}

// A device that is no EFA has no SRD, and says so.
func TestGuestNoSRD(t *testing.T) {
	d := openAdapter(t)
	attr, err := d.Query()
	require.NoError(t, err)
	assert.False(t, attr.Transports.Has(verbs.SRD))
	assert.Zero(t, attr.SRD)
	e := newEnd(t, d, config{})
	_, err = e.pd.CreateQP(verbs.QPInit{Type: verbs.SRD, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 1})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.ErrorContains(t, err, "device rxe0 has no transport service SRD")
	_, err = e.pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 1, UnsolicitedWriteRecv: true})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	ah, err := e.pd.CreateAH(verbs.AddressAttr{DGID: e.gid.GID, SGIDIndex: e.gid.Index})
	require.NoError(t, err)
	_, numbered := ah.(verbs.NumberedAH)
	assert.False(t, numbered)
	require.NoError(t, ah.Close())
}
