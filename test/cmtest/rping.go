package cmtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// Rping is one end of the protocol of rping(1). In each round the client advertises memory,
// which the server reads; the client then advertises other memory, to which the server writes
// the same data. An advertisement, and the message that answers it, has 16 bytes: address,
// rkey and length, in network byte order.
type Rping struct {
	*End // its memory has the messages, and from rpingData on the data
	size int
	id   verbs.CMID
}

const (
	rpingMessage = 16
	rpingSent    = 0
	rpingRecv    = 64
	rpingData    = 128
)

// NewRping makes an end for data of that size.
func NewRping(t testing.TB, s Side, size int) *Rping {
	return &Rping{End: newEnd(t, s, verbs.RC, rpingData+2*size), size: size}
}

// postRecv posts the receive of a message.
func (r *Rping) postRecv() {
	_, err := r.QP.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{r.sge(rpingRecv, rpingMessage)}}})
	require.NoError(r.t, err)
}

func (r *Rping) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: r.mr.Addr() + uint64(off), Length: uint32(n), LKey: r.mr.LKey()}
}

// do posts a request, if any, and waits for its completion and, if message is set, for a
// message. At the end of the connection it returns false: the queue pair was flushed instead.
func (r *Rping) do(wr verbs.SendWR, message bool) bool {
	r.t.Helper()
	want := 0
	if wr.SGL != nil {
		wr.Flags = verbs.FlagSignaled
		_, err := r.QP.PostSend([]verbs.SendWR{wr})
		require.NoError(r.t, err)
		want++
	}
	if message {
		want++
	}
	for deadline := time.Now().Add(patience); want > 0; {
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
			require.NoError(r.t, r.QP.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
		default:
		}
		require.Less(r.t, time.Now(), deadline)
	}
	return true
}

// advertisement returns the send of a message that advertises a piece of memory.
func (r *Rping) advertisement(off, n int) verbs.SendWR {
	b := r.mem[rpingSent:]
	binary.BigEndian.PutUint64(b, r.mr.Addr()+uint64(off))
	binary.BigEndian.PutUint32(b[8:], r.mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	return verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{r.sge(rpingSent, rpingMessage)}}
}

// advertised returns a request for the memory that the last message advertises.
func (r *Rping) advertised(op verbs.Opcode) verbs.SendWR {
	b := r.mem[rpingRecv:]
	n := int(binary.BigEndian.Uint32(b[12:]))
	require.LessOrEqual(r.t, n, r.size)
	return verbs.SendWR{
		Op: op, RemoteAddr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]),
		SGL: []verbs.SGE{r.sge(rpingData, n)},
	}
}

// connect retries until the server listens, since rping does not report that.
func (r *Rping) connect(addr netip.AddrPort) {
	for {
		var err error
		r.id, err = r.CM.Dial(verbs.CMDial{Addr: addr})
		require.NoError(r.t, err)
		r.Next(verbs.CMResolved)
		require.NoError(r.t, r.id.Connect(r.Param("")))
		e := <-r.events
		if e.Type != verbs.CMFailed {
			require.Equal(r.t, verbs.CMConnectResponse, e.Type)
			return
		}
		require.ErrorIs(r.t, e.Err, verbs.ErrNotListening)
		r.Next(verbs.CMTimewaitExit)
		time.Sleep(50 * time.Millisecond)
	}
}

// Client connects to a server, and carries out that many rounds.
func (r *Rping) Client(addr netip.AddrPort, rounds int) {
	r.connect(addr)
	r.Move(r.id, verbs.QPInitialized)
	r.postRecv()
	r.Move(r.id, verbs.QPReadyToReceive, verbs.QPReadyToSend)
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
	r.Next(verbs.CMDisconnected)
}

// Serve serves one client, and returns the number of rounds.
func (r *Rping) Serve(l verbs.CMListener) (rounds int) {
	r.id = r.Next(verbs.CMConnectRequest).ID
	require.NoError(r.t, l.Close())
	r.Move(r.id, verbs.QPInitialized)
	r.postRecv()
	r.Move(r.id, verbs.QPReadyToReceive, verbs.QPReadyToSend)
	require.NoError(r.t, r.id.Accept(r.Param("")))
	r.Next(verbs.CMEstablished)
	for r.do(verbs.SendWR{}, true) {
		if !r.do(r.advertised(verbs.OpRead), false) || !r.do(r.advertisement(0, 0), true) ||
			!r.do(r.advertised(verbs.OpWrite), false) || !r.do(r.advertisement(0, 0), false) {
			break
		}
		rounds++
	}
	return rounds
}
