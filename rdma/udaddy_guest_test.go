//go:build linux && cgo && verbs

package rdma_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

const (
	datagramCount, datagramSize = 10, 100
	grhLen                      = 40
)

// datagramEnd is one end of udaddy(1) at the level of the verbs: a UD queue pair that is
// found by service ID resolution. The client sends datagrams, the server answers with as many.
// Their immediate data is the number of the sender's queue pair.
type datagramEnd struct {
	t      *testing.T
	dev    verbs.Device
	cm     verbs.CM
	events chan verbs.CMEvent
	cq     verbs.CQ
	qp     verbs.QP
	mr     verbs.MR
	ah     verbs.AH
}

func newDatagramEnd(t *testing.T, dev verbs.Device) *datagramEnd {
	e := &datagramEnd{t: t, dev: dev, events: make(chan verbs.CMEvent, 16)}
	e.cm = must(dev.(verbs.CMDevice).OpenCM(func(ev verbs.CMEvent) { e.events <- ev }))
	e.cq = must(dev.CreateCQ(verbs.CQInit{Capacity: 2 * datagramCount}))
	e.mr = must(dev.DefaultPD().RegMR(make([]byte, (datagramCount+1)*(grhLen+datagramSize)), verbs.AccessLocalWrite))
	e.qp = must(dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.UD, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: datagramCount, MaxRecvWR: datagramCount}))
	t.Cleanup(func() {
		if e.ah != nil {
			require.NoError(t, e.ah.Close())
		}
		for _, c := range []interface{ Close() error }{e.cm, e.qp, e.mr, e.cq} {
			require.NoError(t, c.Close())
		}
	})
	return e
}

func (e *datagramEnd) next(want verbs.CMEventType) verbs.CMEvent {
	e.t.Helper()
	select {
	case ev := <-e.events:
		require.Equal(e.t, want, ev.Type, "%v", ev.Err)
		return ev
	case <-time.After(5 * time.Minute):
		require.Fail(e.t, "no event", "%v", want)
	}
	return verbs.CMEvent{}
}

// bringUp takes the queue pair to RTS, as the manager says, and posts the receives.
func (e *datagramEnd) bringUp(id verbs.CMID) {
	for _, state := range []verbs.QPState{verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend} {
		attr, mask, err := id.Attr(state)
		require.NoError(e.t, err)
		require.NoError(e.t, e.qp.Modify(attr, mask))
	}
	var list []verbs.RecvWR
	for i := range datagramCount {
		list = append(list, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{e.sge(i, grhLen+datagramSize)}})
	}
	require.Len(e.t, list, must(e.qp.PostRecv(list)))
}

func (e *datagramEnd) sge(i, n int) verbs.SGE {
	return verbs.SGE{Addr: e.mr.Addr() + uint64(i*(grhLen+datagramSize)), Length: uint32(n), LKey: e.mr.LKey()}
}

func (e *datagramEnd) send(way verbs.AddressAttr, qpn, qkey uint32) {
	e.ah = must(e.dev.DefaultPD().CreateAH(way))
	for range datagramCount {
		_, err := e.qp.PostSend([]verbs.SendWR{{
			Op: verbs.OpSendImm, Flags: verbs.FlagSignaled, Imm: e.qp.Num(), SGL: []verbs.SGE{e.sge(datagramCount, datagramSize)},
			AH: e.ah, RemoteQPN: qpn, RemoteQKey: qkey,
		}})
		require.NoError(e.t, err)
	}
}

// wait waits for so many completions of a kind, and returns the last.
func (e *datagramEnd) wait(n int, op verbs.WCOpcode) (last verbs.WC) {
	e.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); n > 0; {
		var wc [1]verbs.WC
		if must(e.cq.Poll(wc[:])) == 1 {
			require.Equal(e.t, verbs.StatusSuccess, wc[0].Status)
			if wc[0].Opcode == op {
				last = wc[0]
				n--
			}
		}
		require.Less(e.t, time.Now(), deadline, "%d more are waited for", n)
	}
	return last
}

func (e *datagramEnd) client(addr netip.AddrPort) {
	var answer verbs.CMEvent
	for { // until somebody listens
		id := must(e.cm.Dial(verbs.CMDial{Addr: addr, Type: verbs.UD}))
		e.next(verbs.CMResolved)
		require.NoError(e.t, id.Connect(verbs.CMParam{QPN: e.qp.Num()}))
		if answer = <-e.events; answer.Type == verbs.CMEstablished {
			e.bringUp(id)
			break
		}
		require.ErrorIs(e.t, answer.Err, verbs.ErrNotListening)
		require.NoError(e.t, id.Close())
		time.Sleep(20 * time.Millisecond)
	}
	e.send(answer.Address, answer.Param.QPN, answer.Param.QKey)
	e.wait(datagramCount, verbs.WCRecv)
}

func (e *datagramEnd) serve(l verbs.CMListener, peer netip.Addr) {
	request := e.next(verbs.CMConnectRequest)
	require.Equal(e.t, peer, request.ID.RemoteAddr().Addr())
	e.bringUp(request.ID)
	require.NoError(e.t, request.ID.Accept(verbs.CMParam{QPN: e.qp.Num()}))
	last := e.wait(datagramCount, verbs.WCRecv)
	require.True(e.t, last.HasGRH)
	require.True(e.t, last.HasImm)
	require.Equal(e.t, last.SrcQPN, last.Imm)
	_, sgid := request.ID.PortGID()
	e.send(verbs.AddressAttr{DGID: verbs.GIDFromAddr(peer), SGIDIndex: sgid, Port: 1}, last.SrcQPN, 0x01234567) // the Q_Key of RDMA_PS_UDP
	e.wait(datagramCount, verbs.WCSend)
	require.NoError(e.t, l.Close())
}

// Service ID resolution and datagrams, by udaddy at either end.
func TestGuestUdaddy(t *testing.T) {
	requireGuest(t)
	udaddy := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command("udaddy", append(args, "-c", "1", "-C", fmt.Sprint(datagramCount), "-S", fmt.Sprint(datagramSize))...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		return cmd, &out
	}
	const port = 7174 // udaddy's
	for _, d := range []struct {
		name   string
		open   func(*testing.T) verbs.Device
		v4, v6 string
	}{
		{"soft", openFarSoft, "10.0.0.2", "fd00::2"},
		{"rxe", openAdapter, "10.0.0.1", "fd00::1"},
	} {
		for i, family := range []struct{ name, ours, theirs string }{{"IPv4", d.v4, "10.0.0.1"}, {"IPv6", d.v6, "fd00::1"}} {
			if i > 0 && testing.Short() {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s, it serves", d.name, family.name), func(t *testing.T) {
				e := newDatagramEnd(t, d.open(t))
				cmd, out := udaddy("-b", family.theirs)
				require.NoError(t, cmd.Start())
				defer func() { _ = cmd.Process.Kill() }()
				e.client(netip.AddrPortFrom(netip.MustParseAddr(family.theirs), port))
				assert.NoError(t, cmd.Wait(), "%s", out)
			})
			t.Run(fmt.Sprintf("%s, %s, it asks", d.name, family.name), func(t *testing.T) {
				e := newDatagramEnd(t, d.open(t))
				l := must(e.cm.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(netip.MustParseAddr(family.ours), port), Type: verbs.UD}))
				cmd, out := udaddy("-s", family.ours)
				require.NoError(t, cmd.Start())
				defer func() { _ = cmd.Process.Kill() }()
				e.serve(l, netip.MustParseAddr(family.theirs))
				assert.NoError(t, cmd.Wait(), "%s", out)
			})
		}
	}
}
