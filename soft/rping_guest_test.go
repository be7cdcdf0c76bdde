//go:build linux && cgo && verbs

package soft_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/rig"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// rpingEnd is one end of the protocol of rping(1), on a software device. For each round
// the client advertises memory, which the server reads, and then memory that the server
// writes the same to. An advertisement, and the message that answers it, has 16 bytes:
// address, rkey and length, in network byte order.
type rpingEnd struct {
	t      *testing.T
	dev    *soft.Device
	cm     verbs.CM
	events chan verbs.CMEvent
	cq     verbs.CQ
	qp     verbs.QP
	mr     verbs.MR
	mem    []byte // what is sent and received, and from rpingData on the data
	size   int
	id     verbs.CMID
}

const (
	rpingMessage = 16
	rpingSent    = 0
	rpingRecv    = 64
	rpingData    = 128
)

func newRping(t *testing.T, size int) *rpingEnd {
	r := &rpingEnd{t: t, size: size, events: make(chan verbs.CMEvent, 64), mem: make([]byte, rpingData+2*size)}
	require.NoError(t, rig.InNamespace("s", func() (err error) {
		r.dev, err = soft.Open(soft.Config{Interface: "v1"})
		return err
	}))
	var err error
	r.cm, err = r.dev.OpenCM(func(e verbs.CMEvent) { r.events <- e })
	require.NoError(t, err)
	r.cq, err = r.dev.CreateCQ(verbs.CQInit{Capacity: 64})
	require.NoError(t, err)
	r.mr, err = r.dev.DefaultPD().RegMR(r.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	require.NoError(t, err)
	r.qp, err = r.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: r.cq, RecvCQ: r.cq, MaxSendWR: 8, MaxRecvWR: 8})
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{r.cm, r.qp, r.mr, r.cq, r.dev} {
			require.NoError(t, c.Close())
		}
	})
	return r
}

func (r *rpingEnd) next(want verbs.CMEventType) verbs.CMEvent {
	r.t.Helper()
	select {
	case e := <-r.events:
		require.Equal(r.t, want, e.Type, "%v: %v", e.Type, e.Err)
		return e
	case <-time.After(5 * time.Minute):
		require.Fail(r.t, "no event", "%v", want)
	}
	return verbs.CMEvent{}
}

// move moves the queue pair, and gives the peer the rights that rping needs.
func (r *rpingEnd) move(states ...verbs.QPState) {
	r.t.Helper()
	for _, s := range states {
		attr, mask, err := r.id.Attr(s)
		require.NoError(r.t, err)
		if mask&verbs.QPAttrAccess != 0 {
			attr.Access |= verbs.AccessRemoteRead | verbs.AccessRemoteWrite
		}
		require.NoError(r.t, r.qp.Modify(attr, mask))
	}
}

func (r *rpingEnd) param() verbs.CMParam {
	return verbs.CMParam{QPN: r.qp.Num(), ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
}

// postRecv posts the receive of a message.
func (r *rpingEnd) postRecv() {
	_, err := r.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{r.sge(rpingRecv, rpingMessage)}}})
	require.NoError(r.t, err)
}

func (r *rpingEnd) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: r.mr.Addr() + uint64(off), Length: uint32(n), LKey: r.mr.LKey()}
}

// do posts a request and waits for its completion, and for a message if one is to come.
// It returns false if the queue pair was flushed instead, at the end.
func (r *rpingEnd) do(wr verbs.SendWR, message bool) bool {
	r.t.Helper()
	want := 0
	if wr.SGL != nil {
		wr.Flags = verbs.FlagSignaled
		_, err := r.qp.PostSend([]verbs.SendWR{wr})
		require.NoError(r.t, err)
		want++
	}
	if message {
		want++
	}
	for deadline := time.Now().Add(5 * time.Minute); want > 0; {
		var wc [4]verbs.WC
		n, err := r.cq.Poll(wc[:want])
		require.NoError(r.t, err)
		for _, c := range wc[:n] {
			if c.Status == verbs.StatusFlushed {
				return false
			}
			require.Equal(r.t, verbs.StatusSuccess, c.Status)
			if c.Opcode == verbs.WCRecv {
				require.EqualValues(r.t, rpingMessage, c.Bytes)
				defer r.postRecv()
			}
		}
		want -= n
		select {
		case e := <-r.events:
			require.Equal(r.t, verbs.CMDisconnected, e.Type, "%v: %v", e.Type, e.Err)
			require.NoError(r.t, r.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
		default:
		}
		require.Less(r.t, time.Now(), deadline)
	}
	return true
}

// advertisement fills in the message that names a piece of memory.
func (r *rpingEnd) advertisement(off, n int) verbs.SendWR {
	b := r.mem[rpingSent:]
	binary.BigEndian.PutUint64(b, r.mr.Addr()+uint64(off))
	binary.BigEndian.PutUint32(b[8:], r.mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	return verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{r.sge(rpingSent, rpingMessage)}}
}

// advertised is the memory that the last message names.
func (r *rpingEnd) advertised(op verbs.Opcode) verbs.SendWR {
	b := r.mem[rpingRecv:]
	n := int(binary.BigEndian.Uint32(b[12:]))
	require.LessOrEqual(r.t, n, r.size)
	return verbs.SendWR{
		Op: op, RemoteAddr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]),
		SGL: []verbs.SGE{r.sge(rpingData, n)},
	}
}

// connect asks until somebody listens: rping does not say when it does.
func (r *rpingEnd) connect(addr netip.AddrPort) {
	for {
		var err error
		r.id, err = r.cm.Dial(verbs.CMDial{Addr: addr})
		require.NoError(r.t, err)
		r.next(verbs.CMResolved)
		require.NoError(r.t, r.id.Connect(r.param()))
		e := <-r.events
		if e.Type != verbs.CMFailed {
			require.Equal(r.t, verbs.CMConnectResponse, e.Type)
			return
		}
		require.ErrorIs(r.t, e.Err, verbs.ErrNotListening)
		r.next(verbs.CMTimewaitExit)
		time.Sleep(50 * time.Millisecond)
	}
}

func (r *rpingEnd) client(addr netip.AddrPort, rounds int) {
	r.connect(addr)
	r.move(verbs.QPInitialized)
	r.postRecv()
	r.move(verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(r.t, r.id.Establish())
	source, sink := r.mem[rpingData:][:r.size], r.mem[rpingData+r.size:]
	for i := range rounds {
		for j := range source {
			source[j] = byte('A' + (i+j)%58)
		}
		copy(source, fmt.Sprintf("rdma-ping-%d: ", i))
		source[len(source)-1] = 0
		require.True(r.t, r.do(r.advertisement(rpingData, r.size), true))
		require.True(r.t, r.do(r.advertisement(rpingData+r.size, r.size), true))
		require.True(r.t, bytes.Equal(source, sink), "round %d", i)
	}
	require.NoError(r.t, r.id.Disconnect())
	r.next(verbs.CMDisconnected)
	r.next(verbs.CMTimewaitExit)
}

// serve serves one client, and returns how many rounds it has taken.
func (r *rpingEnd) serve(l verbs.CMListener) (rounds int) {
	r.id = r.next(verbs.CMConnectRequest).ID
	require.NoError(r.t, l.Close())
	r.move(verbs.QPInitialized)
	r.postRecv()
	r.move(verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(r.t, r.id.Accept(r.param()))
	r.next(verbs.CMEstablished)
	for r.do(verbs.SendWR{}, true) {
		if !r.do(r.advertised(verbs.OpRead), false) || !r.do(r.advertisement(0, 0), true) ||
			!r.do(r.advertised(verbs.OpWrite), false) || !r.do(r.advertisement(0, 0), false) {
			break
		}
		rounds++
	}
	return rounds
}

// The kernel's connection manager, by rping, at either end. make test has each family with
// one of the sizes.
func TestGuestRping(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of internal/rig")
	}
	const rounds = 5
	for i, family := range []struct{ name, rxe, soft string }{
		{"IPv4", "10.0.0.1", "10.0.0.2"}, {"IPv6", "fd00::1", "fd00::2"},
	} {
		for j, size := range []int{26, 65_535} {
			if i != j && os.Getenv("VERBENA_GUEST") != "all" {
				continue
			}
			rping := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
				cmd := exec.Command("rping", append(args, "-V", "-d", "-p", "7174", "-S", fmt.Sprint(size), "-C", fmt.Sprint(rounds))...)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				return cmd, &out
			}
			t.Run(fmt.Sprintf("%s, %d bytes, rping serves", family.name, size), func(t *testing.T) {
				cmd, out := rping("-s", "-a", family.rxe)
				require.NoError(t, cmd.Start())
				defer cmd.Process.Kill()
				newRping(t, size).client(netip.AddrPortFrom(netip.MustParseAddr(family.rxe), 7174), rounds)
				_ = cmd.Wait() // with an error: rping calls it one that the peer disconnects
				t.Logf("%s", out)
			})
			t.Run(fmt.Sprintf("%s, %d bytes, rping asks", family.name, size), func(t *testing.T) {
				end := newRping(t, size)
				l, err := end.cm.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(netip.MustParseAddr(family.soft), 7174)})
				require.NoError(t, err)
				cmd, out := rping("-c", "-a", family.soft)
				require.NoError(t, cmd.Start())
				defer cmd.Process.Kill()
				assert.Equal(t, rounds, end.serve(l))
				assert.NoError(t, cmd.Wait(), "%s", out)
			})
		}
	}
}
