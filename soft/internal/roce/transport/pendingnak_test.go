package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// postRefused posts requests of which the peer refuses the fourth, and returns what it answers.
func (r *rig) postRefused() (answers []wire.Packet) {
	r.t.Helper()
	bad := r.wr(4, verbs.OpWrite, 8)
	bad.RKey++
	r.client.post(r.wr(1, verbs.OpWrite, 8), r.wr(2, verbs.OpRead, 2048), r.wr(3, verbs.OpWrite, 8), bad, r.wr(5, verbs.OpWrite, 8))
	r.server.take(r.now, r.client.transmit(r.now)...)
	answers = r.server.transmit(r.now)
	require.Equal(r.t, verbs.QPError, r.server.qp.State())
	require.True(r.t, answers[len(answers)-1].AETH.Syndrome.IsFatal())
	return answers
}

// requireCompleted asserts what the client's requests, numbered from 1 on, have ended with.
func (r *rig) requireCompleted(want ...verbs.Status) {
	r.t.Helper()
	var got []verbs.Status
	for i, wc := range r.client.send.take() {
		require.Equal(r.t, uint64(i+1), wc.ID)
		got = append(got, wc.Status)
	}
	require.Equal(r.t, want, got)
	require.Equal(r.t, verbs.QPError, r.client.qp.State())
}

const succeeded, refused, unanswered, flushed = verbs.StatusSuccess, verbs.StatusRemoteAccessError, verbs.StatusRetryExceeded, verbs.StatusFlushed

// A fatal NAK does not refuse an earlier read whose response was lost, although a peer in
// error does not answer it again.
func TestRefusalAfterALostResponse(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{"time-out": {}, "no time-out": {timeout: 255}, "no retries": {retries: 255}, "adaptive": {adaptive: true}} {
		for _, lost := range []int{0, 3} { // from which packet of the response on
			t.Run(fmt.Sprintf("%s, lost from %d on", name, lost), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, o)
				start := r.now
				answers := r.postRefused()
				r.client.take(r.now, answers[:1+lost]...)
				r.client.take(r.now, answers[len(answers)-1])
				end := answers[len(answers)-1].PSN
				for _, psn := range r.silence(0) {
					require.Less(t, psn, end, "nothing from the refused request on leaves again")
				}
				r.requireCompleted(succeeded, unanswered, flushed, refused, flushed)
				require.Less(t, r.now-start, defaultSilenceTimeout)
			})
		}
	}
}

// A refusal that was lost does not come again: a queue pair in error sends nothing, and its peer
// gives up without knowing why. Only the responder can tell.
func TestLostRefusal(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	answers := r.postRefused()
	r.client.take(r.now, answers[:len(answers)-1]...)
	for r.client.qp.State() == verbs.QPReadyToSend {
		r.expire()
		r.server.take(r.now, r.client.transmit(r.now)...)
		require.Empty(t, r.server.transmit(r.now))
	}
	r.requireCompleted(succeeded, succeeded, succeeded, unanswered, flushed)
	require.Equal(t, []verbs.EventType{verbs.EventQPAccessError}, r.server.events)
}

// A response that arrives after a later NAK is processed first, and then the NAK.
func TestRefusalBeforeALateResponse(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	answers := r.postRefused()
	last := len(answers) - 1
	r.client.take(r.now, answers[last])
	r.client.transmit(r.now)
	r.client.take(r.now, answers[:last]...)
	r.requireCompleted(succeeded, succeeded, succeeded, refused, flushed)
	require.Zero(t, r.client.qp.Deadline())
}

// A peer that refuses a read because its memory was revoked is not in the error state: it
// answers earlier reads again.
func TestRefusalByAPeerThatAnswers(t *testing.T) {
	t.Parallel()
	for _, adaptive := range []bool{false, true} {
		t.Run(fmt.Sprintf("adaptive %v", adaptive), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{adaptive: adaptive})
			gone := newArena(t, r.server.memory, 0x3003, 0x3000_0000, 4096, everyAccess)
			bad := r.wr(3, verbs.OpRead, 8)
			bad.RemoteAddr, bad.RKey = gone.Base, gone.Key
			r.client.post(r.wr(1, verbs.OpRead, 512), r.wr(2, verbs.OpFetchAdd, 8), bad)
			r.server.take(r.now, r.client.transmit(r.now)...)
			r.server.memory.Remove(gone.Region)
			answers := r.server.transmit(r.now)
			r.client.take(r.now, answers[len(answers)-1])
			require.Equal(t, []verbs.QPState{verbs.QPReadyToSend, verbs.QPReadyToSend}, []verbs.QPState{r.client.qp.State(), r.server.qp.State()})
			r.exchange()
			r.requireCompleted(succeeded, succeeded, refused)
		})
	}
}

// A queue pair that is moved to Error reports the refused request.
func TestFlushAfterARefusal(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	answers := r.postRefused()
	r.client.take(r.now, answers[len(answers)-1])
	r.now += time.Microsecond
	r.client.modify(verbs.QPError)
	r.requireCompleted(succeeded, flushed, flushed, refused, flushed)
}

// A response to a request that the peer has refused is ignored and delays nothing.
func TestAnswersBehindARefusal(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	answers := r.postRefused()
	nak := answers[len(answers)-1]
	r.client.take(r.now, nak)
	before := r.client.qp.counters.UnexpectedResponses
	for i := range 2 {
		ack := nak
		ack.PSN = wire.PSNAdd(nak.PSN, i)
		ack.AETH.Syndrome = wire.Ack(wire.AckUnlimited)
		read := answers[1]
		require.True(t, read.Opcode.IsReadResponse())
		read.PSN = ack.PSN
		r.client.take(r.now, ack, read)
	}
	require.EqualValues(t, before+4, r.client.qp.counters.UnexpectedResponses)
	require.Empty(t, r.client.send.list[1:], "only the write before the read is done")
	r.silence(0)
	r.requireCompleted(succeeded, unanswered, flushed, refused, flushed)
}
