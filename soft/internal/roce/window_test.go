package roce

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

const windowRights = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// windowOwner is a side with a region that itself grants nothing, and a window.
type windowOwner struct {
	*side
	mr  verbs.MR
	mem []byte
	mw  verbs.MW
}

func newWindowOwner(s *side, t verbs.MWType, size int) *windowOwner {
	s.t.Helper()
	l := &windowOwner{side: s, mem: make([]byte, size)}
	var err error
	l.mr, err = s.dev.DefaultPD().RegMR(l.mem, verbs.AccessLocalWrite|verbs.AccessMWBind)
	require.NoError(s.t, err)
	l.mw, err = s.dev.DefaultPD().(verbs.WindowPD).AllocMW(t)
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		require.NoError(s.t, l.mw.Close())
		require.NoError(s.t, l.mr.Close())
	})
	return l
}

func (l *windowOwner) bindWR(id uint64, off, n int) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpBindMW, Flags: verbs.FlagSignaled, Bind: &verbs.MWBind{
		MW: l.mw, RKey: verbs.NextRKey(l.mw.RKey()), MR: l.mr, Addr: l.mr.Addr() + uint64(off), Length: uint64(n), Access: windowRights,
	}}
}

func (l *windowOwner) bind(off, n int) {
	l.t.Helper()
	l.post(l.bindWR(1, off, n))
	require.Equal(l.t, []verbs.WC{{ID: 1, Opcode: verbs.WCBindMW, QPN: l.qp.Num()}}, l.wait(1))
}

// TestWindowOnItself uses windows on the path of a queue pair to itself, with and without a
// socket.
func TestWindowOnItself(t *testing.T) {
	for _, path := range loopbackPaths {
		t.Run(path.name, func(t *testing.T) {
			x := newWindowOwner(openLoopback(t, path.cfg(), 4096), verbs.MWType2, 8192)
			assert.Equal(t, path.self, x.isLoopback())
			fill(x.side.mem, 5)
			x.recv(100, x.sge(0, 16))
			x.post(
				x.bindWR(1, 1000, 4096),
				verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 4096)}, RemoteAddr: x.mr.Addr() + 1000, RKey: verbs.NextRKey(x.mw.RKey())},
				verbs.SendWR{ID: 3, Op: verbs.OpSendInvalidate, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 16)}, InvalidateRKey: verbs.NextRKey(x.mw.RKey())},
			)
			got := byID(x.wait(4))
			assert.Equal(t, verbs.WC{ID: 1, Opcode: verbs.WCBindMW}, got[1])
			assert.Equal(t, verbs.WC{ID: 100, Opcode: verbs.WCRecv, Bytes: 16, InvalidatedRKey: x.mw.RKey()}, got[100])
			assert.True(t, bytes.Equal(x.side.mem, x.mem[1000:5096]))
			x.post(
				x.bindWR(4, 0, 8),
				verbs.SendWR{ID: 5, Op: verbs.OpLocalInvalidate, Flags: verbs.FlagSignaled, InvalidateRKey: verbs.NextRKey(x.mw.RKey())},
				verbs.SendWR{ID: 6, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: x.mr.Addr(), RKey: verbs.NextRKey(x.mw.RKey())},
			)
			got = byID(x.wait(3))
			assert.Equal(t, verbs.StatusSuccess, got[5].Status)
			assert.Contains(t, []verbs.Status{verbs.StatusRemoteAccessError, verbs.StatusFlushed}, got[6].Status) // it is its own responder
			assert.Equal(t, make([]byte, 8), x.mem[:8])
		})
	}
}

// A peer keeps writing and reading while its window is revoked. After that, no byte is
// transferred.
func TestWindowTakenFromABusyPeer(t *testing.T) {
	const size, chunk = 1 << 20, 300_000
	for name, take := range map[string]func(l *windowOwner){
		"closed": func(l *windowOwner) { require.NoError(l.t, l.mw.Close()) },
		"invalidated": func(l *windowOwner) {
			l.post(verbs.SendWR{ID: 7, Op: verbs.OpLocalInvalidate, Flags: verbs.FlagSignaled, InvalidateRKey: l.mw.RKey()})
			require.Equal(l.t, verbs.StatusSuccess, l.wait(1)[0].Status)
		},
	} {
		test := func(t *testing.T, x, y *side) {
			for i := range x.mem {
				x.mem[i] = 0xff
			}
			for round := range 10 {
				l := newWindowOwner(y, verbs.MWType2, size)
				l.bind(0, size)
				begun, ended := make(chan struct{}), make(chan error, 1)
				go func() { ended <- x.writeUntilRefused(l.mr.Addr(), l.mw.RKey(), chunk, func() { close(begun) }) }()
				<-begun
				for range round {
					runtime.Gosched() // and is taken at another point of what is under way
				}
				take(l)
				require.Contains(t, l.mem, byte(0xff))
				clear(l.mem)
				require.NoError(t, <-ended)
				require.Equal(t, make([]byte, size), l.mem, "round %d", round)
				for _, s := range []*side{x, y} {
					require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
				}
				x.connect(y)
				y.connect(x)
			}
		}
		t.Run(name, func(t *testing.T) { overEachPath(t, size, test) })
	}
}

// writeUntilRefused writes from the start of the side's memory, several requests at a
// time, until one of them fails. It calls begun when the first has completed.
func (s *side) writeUntilRefused(addr uint64, key uint32, n int, begun func()) error {
	const depth = 4
	wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{s.sge(0, n)}, RKey: key}
	posted, completed, refused := 0, 0, false
	for wcs := make([]verbs.WC, depth); !refused || completed < posted; {
		for ; !refused && posted-completed < depth; posted++ {
			wr.RemoteAddr = addr + uint64(posted%3*n)
			if _, err := s.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				return err
			}
		}
		k, err := s.cq.Poll(wcs)
		if err != nil {
			return err
		}
		for _, wc := range wcs[:k] {
			switch wc.Status {
			case verbs.StatusSuccess:
				if completed == 0 {
					begun()
				}
			case verbs.StatusRemoteAccessError, verbs.StatusFlushed:
				refused = true
			default:
				return fmt.Errorf("status %v", wc.Status)
			}
			completed++
		}
		runtime.Gosched()
	}
	return nil
}

func TestWindowObjects(t *testing.T) {
	x, y := openPair(t, Config{}, Config{}, 64)
	l := newWindowOwner(x, verbs.MWType2, 64)
	attr, err := x.dev.Query()
	require.NoError(t, err)
	assert.True(t, attr.MWTypes.Has(verbs.MWType1) && attr.MWTypes.Has(verbs.MWType2) && attr.Invalidation && attr.MaxMW > 0)
	assert.Equal(t, verbs.MWType2, l.mw.Type())

	l.bind(0, 64)
	require.ErrorIs(t, l.mr.Close(), verbs.ErrInUse)
	x.post(verbs.SendWR{ID: 2, Op: verbs.OpLocalInvalidate, Flags: verbs.FlagSignaled, InvalidateRKey: l.mw.RKey()})
	x.wait(1)
	require.NoError(t, l.mr.Close())
	require.NoError(t, l.mr.Close())

	pd, err := x.dev.AllocPD()
	require.NoError(t, err)
	mw, err := pd.(verbs.WindowPD).AllocMW(verbs.MWType1)
	require.NoError(t, err)
	require.ErrorIs(t, pd.Close(), verbs.ErrInUse)
	_, err = pd.(verbs.WindowPD).AllocMW(3)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.NoError(t, mw.Close())
	require.NoError(t, mw.Close())
	require.NoError(t, pd.Close())
	_, err = pd.(verbs.WindowPD).AllocMW(verbs.MWType1)
	require.ErrorIs(t, err, verbs.ErrClosed)

	foreign := newWindowOwner(y, verbs.MWType1, 64)
	l = newWindowOwner(x, verbs.MWType2, 64)
	own1 := newWindowOwner(x, verbs.MWType1, 64).mw
	for name, b := range map[string]*verbs.MWBind{
		"none":                          nil,
		"no window":                     {MR: x.mr, Length: 1},
		"a window of another":           {MW: foreign.mw, MR: x.mr, Length: 1},
		"a region of another":           {MW: l.mw, MR: foreign.mr, Length: 1, RKey: l.mw.RKey()},
		"a region without AccessMWBind": {MW: l.mw, MR: x.mr, Length: 1, RKey: l.mw.RKey()},
		"a key of another window":       {MW: l.mw, MR: l.mr, Length: 1, RKey: l.mw.RKey() ^ 1<<8},
		"type 1, zero-based":            {MW: own1, MR: l.mr, Length: 1, Access: verbs.AccessZeroBased},
		"no region":                     {MW: l.mw},
		"rights that no window has":     {MW: l.mw, MR: l.mr, Length: 1, RKey: l.mw.RKey(), Access: verbs.AccessLocalWrite},
	} {
		_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpBindMW, Bind: b}})
		require.ErrorIs(t, err, verbs.ErrInvalid, name)
	}
}
