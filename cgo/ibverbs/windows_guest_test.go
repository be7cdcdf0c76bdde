//go:build linux && cgo && verbs

package ibverbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	regionLength = 64 << 10 // bytes of the responder's region
	windowOffset = 8 << 10  // of the window in the region
	windowLength = 16 << 10
	peerRights   = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
)

// windowTest has a requester, and a responder with a region that itself grants nothing.
type windowTest struct {
	t                    *testing.T
	requester, responder *end
	region               memory
}

func newWindowTest(t *testing.T, requester, lender verbs.Device, access verbs.Access) *windowTest {
	t.Helper()
	l := &windowTest{t: t}
	l.requester, l.responder = pair(t, requester, lender, config{memory: regionLength})
	l.region = register(t, l.responder.pd, regionLength, access)
	fill(l.requester.mem.bytes, 3)
	return l
}

func (l *windowTest) window(t verbs.MWType) verbs.MW {
	l.t.Helper()
	w, err := l.responder.pd.(verbs.WindowPD).AllocMW(t)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { assert.NoError(l.t, w.Close()) })
	return w
}

// binding binds the usual part of the region.
func (l *windowTest) binding(w verbs.MW, access verbs.Access) *verbs.MWBind {
	return &verbs.MWBind{
		MW: w, RKey: verbs.NextRKey(w.RKey()), MR: l.region.mr,
		Addr: l.region.mr.Addr() + windowOffset, Length: windowLength, Access: access,
	}
}

// status posts one request on an end and returns how it ends.
func (l *windowTest) status(on *end, wr verbs.SendWR) string {
	l.t.Helper()
	other := l.requester
	if on == l.requester {
		other = l.responder
	}
	wr.ID, wr.Flags = 1, wr.Flags|verbs.FlagSignaled
	on.send(wr)
	wc := on.await(other)
	for wc.ID != 1 { // a receive that was flushed
		wc = on.await(other)
	}
	if wc.Status == verbs.StatusSuccess {
		want := map[verbs.Opcode]verbs.WCOpcode{
			verbs.OpWrite: verbs.WCWrite, verbs.OpRead: verbs.WCRead, verbs.OpFetchAdd: verbs.WCFetchAdd,
			verbs.OpBindMW: verbs.WCBindMW, verbs.OpLocalInvalidate: verbs.WCLocalInvalidate, verbs.OpSendInvalidate: verbs.WCSend,
		}[wr.Op]
		assert.Equal(l.t, want, wc.Opcode)
	}
	return wc.Status.String()
}

func (l *windowTest) bind(b *verbs.MWBind) string {
	return l.status(l.responder, verbs.SendWR{Op: verbs.OpBindMW, Bind: b})
}

// post has a bind refused.
func (l *windowTest) post(b *verbs.MWBind) string {
	l.t.Helper()
	_, err := l.responder.qp.PostSend([]verbs.SendWR{{Op: verbs.OpBindMW, Bind: b}})
	return text(err, verbs.ErrInvalid, "not posted")
}

// lend binds a new window and returns its key.
func (l *windowTest) lend(t verbs.MWType, access verbs.Access) verbs.MW {
	l.t.Helper()
	w := l.window(t)
	require.Equal(l.t, "success", l.bind(l.binding(w, access)))
	return w
}

func (l *windowTest) invalidate(key uint32) string {
	return l.status(l.responder, verbs.SendWR{Op: verbs.OpLocalInvalidate, InvalidateRKey: key})
}

// access has the requester use n bytes from an offset of the window on.
func (l *windowTest) access(op verbs.Opcode, key uint32, off, n int) string {
	l.t.Helper()
	before := bytes.Clone(l.region.bytes)
	status := l.status(l.requester, verbs.SendWR{
		Op: op, SGL: l.requester.mem.sgl(0, n), RemoteAddr: l.region.mr.Addr() + uint64(windowOffset+off), RKey: key, CompareAdd: 1,
	})
	changed := !bytes.Equal(before, l.region.bytes)
	assert.Equal(l.t, status == "success" && op != verbs.OpRead, changed, "memory has changed")
	return status
}

// sendInvalidate returns what the sender is told, and the receiver.
func (l *windowTest) sendInvalidate(key uint32) string {
	l.t.Helper()
	l.responder.receive(verbs.RecvWR{ID: 5, SGL: l.responder.mem.sgl(0, 64)})
	sender := l.status(l.requester, verbs.SendWR{Op: verbs.OpSendInvalidate, SGL: l.requester.mem.sgl(0, 13), InvalidateRKey: key})
	wc := l.responder.await(l.requester)
	receiver := wc.Status.String()
	if wc.Status == verbs.StatusSuccess {
		receiver += ", with the key"
		if wc.InvalidatedRKey == 0 {
			receiver = "success, without the key"
		} else {
			assert.Equal(l.t, key, wc.InvalidatedRKey)
		}
	}
	return "sender: " + sender + "; receive: " + receiver
}

// windowOnOtherQP binds a window on another queue pair of the responder.
func (l *windowTest) windowOnOtherQP() uint32 {
	l.t.Helper()
	a, b := pair(l.t, l.requester.dev, l.responder.dev, config{memory: 4096})
	w := l.window(verbs.MWType2)
	b.send(verbs.SendWR{ID: 1, Op: verbs.OpBindMW, Flags: verbs.FlagSignaled, Bind: l.binding(w, peerRights)})
	require.Equal(l.t, verbs.StatusSuccess, b.await(a).Status)
	return w.RKey()
}

const (
	windowAccess = verbs.AccessLocalWrite | verbs.AccessMWBind
	success      = "success"
	accessError  = "remote access error"
	bindError    = "memory window bind error"

	invalidatedKeyMissing = "sender: success; receive: success, without the key"
	operationError        = "local queue pair operation error"
	acknowledged          = "sender: success; receive: remote invalid request"
)

// windowCases are what can be done with memory windows. want has what IBTA wants, which
// the software device does, and rxe what the kernel's driver does where that is something
// else.
var windowCases = []struct {
	name      string
	access    verbs.Access // of the region; zero: windowAccess
	run       func(l *windowTest) string
	want, rxe string
}{
	{"write in a window of type 1", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.lend(verbs.MWType1, peerRights).RKey(), 0, windowLength)
	}, success, ""},
	{"write in a window of type 2", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.lend(verbs.MWType2, peerRights).RKey(), 0, windowLength)
	}, success, ""},
	{"read in it", 0, func(l *windowTest) string {
		return l.access(verbs.OpRead, l.lend(verbs.MWType2, peerRights).RKey(), 0, windowLength)
	}, success, ""},
	{"fetch-and-add in it", 0, func(l *windowTest) string {
		return l.access(verbs.OpFetchAdd, l.lend(verbs.MWType2, peerRights).RKey(), 8, 8)
	}, success, ""},
	{"write before the window, in the region", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.lend(verbs.MWType2, peerRights).RKey(), -8, 8)
	}, accessError, success},
	{"write over the end of the window, in the region", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.lend(verbs.MWType2, peerRights).RKey(), windowLength-4, 8)
	}, accessError, success},
	{"write behind the region", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.lend(verbs.MWType2, peerRights).RKey(), regionLength-windowOffset, 8)
	}, accessError, ""},
	{"write, the window grants reads", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.lend(verbs.MWType2, verbs.AccessRemoteRead).RKey(), 0, 8)
	}, accessError, ""},
	{"read, the window grants writes", 0, func(l *windowTest) string {
		return l.access(verbs.OpRead, l.lend(verbs.MWType2, verbs.AccessRemoteWrite).RKey(), 0, 8)
	}, accessError, ""},
	{"read, the region has no local write", verbs.AccessMWBind, func(l *windowTest) string {
		return l.access(verbs.OpRead, l.lend(verbs.MWType2, verbs.AccessRemoteRead).RKey(), 0, 8)
	}, success, ""},
	{"write at offset 0 of a zero-based window", 0, func(l *windowTest) string {
		w := l.lend(verbs.MWType2, peerRights|verbs.AccessZeroBased)
		return l.status(l.requester, verbs.SendWR{Op: verbs.OpWrite, SGL: l.requester.mem.sgl(0, 8), RKey: w.RKey()})
	}, success, ""},
	{"write, window bound on another queue pair, type 2", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.windowOnOtherQP(), 0, 8)
	}, accessError, ""},
	{"write, a guess of the lower 8 bits of the key", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.lend(verbs.MWType2, peerRights).RKey()^0x80, 0, 8)
	}, accessError, ""},
	{"write, window that was never bound", 0, func(l *windowTest) string {
		return l.access(verbs.OpWrite, l.window(verbs.MWType2).RKey(), 0, 8)
	}, accessError, ""},
	{"write with the last key of type 1, after another bind", 0, func(l *windowTest) string {
		w := l.lend(verbs.MWType1, peerRights)
		last := w.RKey()
		require.Equal(l.t, success, l.bind(l.binding(w, peerRights)))
		return l.access(verbs.OpWrite, last, 0, 8)
	}, accessError, ""},
	{"write, type 1 bound to no bytes", 0, func(l *windowTest) string {
		w := l.lend(verbs.MWType1, peerRights)
		require.Equal(l.t, success, l.bind(&verbs.MWBind{MW: w, MR: l.region.mr}))
		return l.access(verbs.OpWrite, w.RKey(), 0, 8)
	}, accessError, ""},
	{"write, window closed", 0, func(l *windowTest) string {
		w := l.lend(verbs.MWType2, peerRights)
		require.NoError(l.t, w.Close())
		return l.access(verbs.OpWrite, w.RKey(), 0, 8)
	}, accessError, ""},
	{"write after local invalidate", 0, func(l *windowTest) string {
		w := l.lend(verbs.MWType2, peerRights)
		require.Equal(l.t, success, l.invalidate(w.RKey()))
		return l.access(verbs.OpWrite, w.RKey(), 0, 8)
	}, accessError, ""},
	{"write with the key of a bind after local invalidate", 0, func(l *windowTest) string {
		w := l.lend(verbs.MWType2, peerRights)
		require.Equal(l.t, success, l.invalidate(w.RKey()))
		require.Equal(l.t, success, l.bind(l.binding(w, peerRights)))
		return l.access(verbs.OpWrite, w.RKey(), 0, 8)
	}, success, ""},

	{"bind: type 2, bound already", 0, func(l *windowTest) string {
		return l.bind(l.binding(l.lend(verbs.MWType2, peerRights), peerRights))
	}, bindError, ""},
	{"bind: type 2, no bytes", 0, func(l *windowTest) string {
		b := l.binding(l.window(verbs.MWType2), peerRights)
		b.Length = 0
		return l.bind(b)
	}, bindError, ""},
	{"bind: type 2, key with other upper 24 bits", 0, func(l *windowTest) string {
		b := l.binding(l.window(verbs.MWType2), peerRights)
		b.RKey ^= 1 << 20
		return l.post(b)
	}, "not posted", ""},
	{"bind: type 1, zero-based", 0, func(l *windowTest) string {
		return l.post(l.binding(l.window(verbs.MWType1), peerRights|verbs.AccessZeroBased))
	}, "not posted", ""},
	{"bind: beyond the region", 0, func(l *windowTest) string {
		b := l.binding(l.window(verbs.MWType2), peerRights)
		b.Length = regionLength
		return l.bind(b)
	}, bindError, ""},
	{"bind: writes, the region has no local write", verbs.AccessMWBind, func(l *windowTest) string {
		return l.bind(l.binding(l.window(verbs.MWType2), verbs.AccessRemoteWrite))
	}, bindError, ""},
	{"bind: region without AccessMWBind", verbs.AccessLocalWrite, func(l *windowTest) string {
		return l.post(l.binding(l.window(verbs.MWType2), peerRights))
	}, "not posted", ""},
	{"close the region, a window is bound to it", 0, func(l *windowTest) string {
		l.lend(verbs.MWType2, peerRights)
		return text(l.region.mr.Close(), verbs.ErrInUse, "in use")
	}, "in use", ""},

	{"local invalidate: type 2", 0, func(l *windowTest) string {
		return l.invalidate(l.lend(verbs.MWType2, peerRights).RKey())
	}, success, ""},
	{"local invalidate: type 1", 0, func(l *windowTest) string {
		return l.invalidate(l.lend(verbs.MWType1, peerRights).RKey())
	}, bindError, operationError},
	{"local invalidate: bound to nothing", 0, func(l *windowTest) string {
		return l.invalidate(l.window(verbs.MWType2).RKey())
	}, bindError, crashes},
	{"local invalidate: bound on another queue pair", 0, func(l *windowTest) string {
		return l.invalidate(l.windowOnOtherQP())
	}, bindError, success},
	{"local invalidate: key of the region", 0, func(l *windowTest) string {
		return l.invalidate(l.region.mr.RKey())
	}, bindError, operationError},

	{"send with invalidate: type 2", 0, func(l *windowTest) string {
		return l.sendInvalidate(l.lend(verbs.MWType2, peerRights).RKey())
	}, "sender: success; receive: success, with the key", invalidatedKeyMissing},
	{"write after send with invalidate", 0, func(l *windowTest) string {
		w := l.lend(verbs.MWType2, peerRights)
		l.sendInvalidate(w.RKey())
		return l.access(verbs.OpWrite, w.RKey(), 0, 8)
	}, accessError, ""},
	{"send with invalidate: type 1", 0, func(l *windowTest) string {
		return l.sendInvalidate(l.lend(verbs.MWType1, peerRights).RKey())
	}, invalidateRefused, acknowledged},
	{"send with invalidate: bound to nothing", 0, func(l *windowTest) string {
		return l.sendInvalidate(l.window(verbs.MWType2).RKey())
	}, invalidateRefused, crashes},
	{"send with invalidate: bound on another queue pair", 0, func(l *windowTest) string {
		return l.sendInvalidate(l.windowOnOtherQP())
	}, invalidateRefused, invalidatedKeyMissing},
	{"send with invalidate: key of the region", 0, func(l *windowTest) string {
		return l.sendInvalidate(l.region.mr.RKey())
	}, invalidateRefused, acknowledged},
	{"send with invalidate: no such key", 0, func(l *windowTest) string {
		return l.sendInvalidate(0x12345678)
	}, invalidateRefused, acknowledged},
}

// crashes: the kernel's driver follows a null pointer (rxe_invalidate_mw of Linux 6.1), so
// that it is not tried.
const crashes = "the kernel crashes"

const invalidateRefused = "sender: remote access error; receive: flushed"

// A peer keeps writing while its window is taken away: once that is done, not one byte
// moves any more. In rxe of Linux 6.1, the message that is under way goes on; the next is
// refused.
func TestGuestWindowTakenFromABusyPeer(t *testing.T) {
	adapter := openAdapter(t)
	software := openSoft(t, soft.Faults{})
	devices := map[string]verbs.Device{"rxe": adapter, "soft": software}
	const chunk = 8 << 10
	for _, p := range devicePairs {
		for name, take := range map[string]func(l *windowTest, w verbs.MW){
			"closed": func(l *windowTest, w verbs.MW) { require.NoError(l.t, w.Close()) },
			"invalidated": func(l *windowTest, w verbs.MW) {
				l.responder.send(verbs.SendWR{ID: 1, Op: verbs.OpLocalInvalidate, Flags: verbs.FlagSignaled, InvalidateRKey: w.RKey()})
				status := l.responder.await(nil).Status
				if p.passive == "rxe" && status == verbs.StatusFlushed {
					return // the kernel has refused the peer's next message, which ends the queue pair, before it completed this
				}
				require.Equal(l.t, verbs.StatusSuccess, status)
			},
		} {
			t.Run(fmt.Sprintf("%s/%s-%s", name, p.active, p.passive), func(t *testing.T) {
				for range 5 {
					l := newWindowTest(t, devices[p.active], devices[p.passive], windowAccess)
					w := l.lend(verbs.MWType2, peerRights)
					wr := verbs.SendWR{
						ID: 2, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: l.requester.mem.sgl(0, chunk),
						RemoteAddr: l.region.mr.Addr() + windowOffset, RKey: w.RKey(),
					}
					begun, ended := make(chan struct{}), make(chan error, 1)
					go func() { ended <- l.requester.repeat(wr, func() { close(begun) }) }()
					<-begun
					take(l, w)
					assert.Equal(t, l.requester.mem.bytes[:chunk], l.region.bytes[windowOffset:windowOffset+chunk])
					clear(l.region.bytes)
					require.NoError(t, <-ended)
					if p.passive != "rxe" {
						assert.Equal(t, make([]byte, regionLength), l.region.bytes)
					}
				}
			})
		}
	}
}

// repeat posts a request again and again, several at a time, until one is refused. It
// calls begun when the first has completed.
func (e *end) repeat(wr verbs.SendWR, begun func()) error {
	const ahead = 16
	under, completed := 0, 0
	for wcs := make([]verbs.WC, ahead); ; runtime.Gosched() {
		for ; under < ahead; under++ {
			if _, err := e.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				return err
			}
		}
		n, err := e.cq.Poll(wcs)
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			switch {
			case wc.Status == verbs.StatusRemoteAccessError:
				return nil
			case wc.Status != verbs.StatusSuccess:
				return fmt.Errorf("status %v", wc.Status)
			case completed == 0:
				begun()
			}
			completed++
			under--
		}
	}
}

func text(err, want error, name string) string {
	switch {
	case err == nil:
		return success
	case errors.Is(err, want):
		return name
	}
	return err.Error()
}

// TestGuestWindows does everything that can be done with memory windows, checks how each
// request ends, and prints a table. docs/memory-windows.md has a summary of it.
func TestGuestWindows(t *testing.T) {
	adapter := openAdapter(t)
	software := openSoft(t, soft.Faults{})
	attr, err := adapter.Query()
	require.NoError(t, err)
	require.True(t, attr.MaxMW > 0 && attr.MWTypes.Has(verbs.MWType1) && attr.MWTypes.Has(verbs.MWType2) && attr.Invalidation, "%+v", attr)
	devices := map[string]verbs.Device{"rxe": adapter, "soft": software}
	var table strings.Builder
	table.WriteString("| what is done | rxe × rxe | rxe × soft | soft × rxe | soft × soft |\n|---|---|---|---|---|\n")
	for _, c := range windowCases {
		access := c.access
		if access == 0 {
			access = windowAccess
		}
		fmt.Fprintf(&table, "| %s |", c.name)
		for _, p := range devicePairs {
			got := crashes
			if p.passive == "rxe" && c.rxe == crashes {
				fmt.Fprintf(&table, " **%s** |", got)
				continue
			}
			t.Run(fmt.Sprintf("%s/%s-%s", c.name, p.active, p.passive), func(t *testing.T) {
				want := c.want
				if p.passive == "rxe" && c.rxe != "" {
					want = c.rxe
				}
				got = c.run(newWindowTest(t, devices[p.active], devices[p.passive], access))
				assert.Equal(t, want, got)
			})
			if got != c.want {
				got = "**" + got + "**"
			}
			fmt.Fprintf(&table, " %s |", got)
		}
		table.WriteString("\n")
	}
	fmt.Printf("%s\n%s%s\n", tableBegin, table.String(), tableEnd)
}
