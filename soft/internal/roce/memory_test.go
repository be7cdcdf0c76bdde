package roce

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// writeBy writes, by a key, n bytes from the start of the side's memory, and returns the status.
func (s *side) writeBy(addr uint64, key uint32, n int) verbs.Status {
	s.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{s.sge(0, n)}, RemoteAddr: addr, RKey: key})
	return s.wait(1)[0].Status
}

// reconnect connects two sides again after one of them has failed.
func reconnect(x, y *side) {
	for _, s := range []*side{x, y} {
		require.NoError(s.t, s.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
	}
	x.connect(y)
	y.connect(x)
}

func TestReregister(t *testing.T) {
	overEachPath(t, 4096, func(t *testing.T, x, y *side) {
		const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
		fill(x.mem, 3)
		pd, err := y.dev.AllocPD()
		require.NoError(t, err)
		first, second := make([]byte, 4096), make([]byte, 8192)
		mr, err := y.dev.DefaultPD().RegMR(first, verbs.AccessLocalWrite)
		require.NoError(t, err)
		key, change := mr.RKey(), mr.(cverbs.MR).Reregister

		require.Equal(t, verbs.StatusRemoteAccessError, x.writeBy(mr.Addr(), key, 4096))
		reconnect(x, y)
		require.NoError(t, change(cverbs.MRChange{ChangeAccess: true, Access: all}))
		require.Equal(t, all, mr.Access())
		require.Equal(t, verbs.StatusSuccess, x.writeBy(mr.Addr(), key, 4096))
		require.Equal(t, x.mem, first)

		require.NoError(t, change(cverbs.MRChange{Mem: second}))
		require.Equal(t, []uint64{addressOfBytes(second), 8192}, []uint64{mr.Addr(), mr.Len()})
		require.Equal(t, []uint32{key, key}, []uint32{mr.RKey(), mr.LKey()})
		require.Equal(t, verbs.StatusSuccess, x.writeBy(mr.Addr()+4096, key, 4096))
		require.Equal(t, x.mem, second[4096:])
		require.Equal(t, verbs.StatusRemoteAccessError, x.writeBy(addressOfBytes(first), key, 8))
		reconnect(x, y)

		require.NoError(t, change(cverbs.MRChange{PD: pd}))
		require.ErrorIs(t, pd.Close(), verbs.ErrInUse)
		require.Equal(t, verbs.StatusRemoteAccessError, x.writeBy(mr.Addr(), key, 8), "its queue pair is in another domain")
		reconnect(x, y)
		require.NoError(t, change(cverbs.MRChange{PD: y.dev.DefaultPD()}))
		require.NoError(t, pd.Close())
		require.Equal(t, verbs.StatusSuccess, x.writeBy(mr.Addr(), key, 8))

		for name, c := range map[string]struct {
			change cverbs.MRChange
			want   error
		}{
			"a closed domain":           {cverbs.MRChange{PD: pd}, verbs.ErrClosed},
			"a domain of another":       {cverbs.MRChange{PD: x.dev.DefaultPD()}, verbs.ErrInvalid},
			"no bytes":                  {cverbs.MRChange{Mem: []byte{}}, verbs.ErrInvalid},
			"rights that do not exist":  {cverbs.MRChange{ChangeAccess: true, Access: 1 << 20}, verbs.ErrInvalid},
			"rights without local ones": {cverbs.MRChange{ChangeAccess: true, Access: verbs.AccessRemoteWrite}, verbs.ErrInvalid},
		} {
			require.ErrorIs(t, change(c.change), c.want, name)
		}
		require.Equal(t, verbs.StatusSuccess, x.writeBy(mr.Addr(), key, 8), "a refused change changes nothing")

		require.NoError(t, change(cverbs.MRChange{NewKey: true}))
		require.NotEqual(t, key, mr.RKey())
		require.Equal(t, verbs.StatusSuccess, x.writeBy(mr.Addr(), mr.RKey(), 8))
		require.Equal(t, verbs.StatusRemoteAccessError, x.writeBy(mr.Addr(), key, 8), "the key is void")
		require.NoError(t, mr.Close())
		require.ErrorIs(t, change(cverbs.MRChange{}), verbs.ErrClosed)
	})
}

func TestReregisterBoundRegion(t *testing.T) {
	x, _ := openPair(t, Config{}, Config{}, 64)
	l := newWindowOwner(x, verbs.MWType2, 64)
	l.bind(0, 64)
	change := l.mr.(cverbs.MR).Reregister
	require.ErrorIs(t, change(cverbs.MRChange{Mem: make([]byte, 64)}), verbs.ErrInUse)
	x.post(verbs.SendWR{ID: 2, Op: verbs.OpLocalInvalidate, Flags: verbs.FlagSignaled, InvalidateRKey: l.mw.RKey()})
	x.wait(1)
	require.NoError(t, change(cverbs.MRChange{Mem: make([]byte, 64)}))
}

// A peer keeps writing while a region gets other memory. After that, no byte is transferred to
// the first.
func TestReregisterUnderABusyPeer(t *testing.T) {
	const size, chunk = 1 << 20, 300_000
	overEachPath(t, size, func(t *testing.T, x, y *side) {
		for i := range x.mem {
			x.mem[i] = 0xff
		}
		for round := range 10 {
			first, second := make([]byte, size), make([]byte, size)
			mr, err := y.dev.DefaultPD().RegMR(first, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			require.NoError(t, err)
			begun, ended := make(chan struct{}), make(chan error, 1)
			addr, key := mr.Addr(), mr.RKey()
			go func() { ended <- x.writeUntilRefused(addr, key, chunk, func() { close(begun) }) }()
			<-begun
			for range round {
				runtime.Gosched() // and changes at another point of what is under way
			}
			require.NoError(t, mr.(cverbs.MR).Reregister(cverbs.MRChange{Mem: second}))
			require.Contains(t, first, byte(0xff))
			clear(first)
			require.NoError(t, <-ended)
			require.Equal(t, make([]byte, size), first, "round %d", round)
			require.NoError(t, mr.Close())
			reconnect(x, y)
		}
	})
}

// TestResetDropsCompletions: completions that were not polled do not turn up in the next
// connection, nor when the queue pair is closed, and those of other queue pairs stay.
func TestResetDropsCompletions(t *testing.T) {
	reset := func(qp verbs.QP) error {
		return qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState)
	}
	for _, c := range []struct {
		name   string
		kind   verbs.QPType
		fields verbs.WCFields
		drop   func(verbs.QP) error
	}{
		{"plain", verbs.RC, 0, reset}, {"extended", verbs.RC, verbs.WCTimestamp, reset},
		{"plain, closed", verbs.RC, 0, verbs.QP.Close}, {"extended, closed", verbs.RC, verbs.WCTimestamp, verbs.QP.Close},
		{"SRD, closed", verbs.SRD, 0, verbs.QP.Close},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := openSide(t, Config{}, 64).dev
			cq, err := dev.CreateCQ(verbs.CQInit{Capacity: 8, Fields: c.fields})
			require.NoError(t, err)
			var qps []verbs.QP
			for range 2 {
				qp, err := dev.DefaultPD().CreateQP(verbs.QPInit{Type: c.kind, SendCQ: cq, RecvCQ: cq, MaxRecvWR: 4})
				require.NoError(t, err)
				mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
				if c.kind == verbs.SRD {
					mask ^= verbs.QPAttrAccess | verbs.QPAttrQKey
				}
				require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1}, mask))
				qps = append(qps, qp)
			}
			flush := func() {
				for i := range 4 {
					for _, qp := range qps {
						_, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(i)}})
						require.NoError(t, err)
					}
				}
				for _, qp := range qps {
					require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
				}
			}
			flush()
			require.Equal(t, 8, cq.(cverbs.CQ).Pending())
			require.NoError(t, c.drop(qps[0]))
			require.Equal(t, 4, cq.(cverbs.CQ).Pending())
			wcs := make([]verbs.WC, 8)
			n, err := cq.Poll(wcs)
			require.NoError(t, err)
			require.Equal(t, 4, n)
			for i, wc := range wcs[:n] {
				require.Equal(t, verbs.WC{ID: uint64(i), Status: verbs.StatusFlushed, Opcode: verbs.WCRecv, QPN: qps[1].Num()}, wc)
			}
			for _, qp := range qps {
				require.NoError(t, qp.Close())
			}
			require.NoError(t, cq.Close())
		})
	}
}
