package example

import (
	"bytes"
	"context"
	"math/rand/v2"

	"github.com/verbena-rdma/verbena/verbs"
)

// PSN returns a random number for the first packet that a queue pair sends: 24 bits.
func PSN() uint32 { return rand.Uint32N(1 << 24) }

// Connect takes a queue pair of RC through Init and RTR to RTS (ibv_modify_qp(3)). access
// lists the operations that the peer may do. The receives are posted before the peer can send.
func Connect(qp verbs.QP, access verbs.Access, gidIndex int, mine, theirs *Metadata, receives ...verbs.RecvWR) error {
	if err := qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, Access: access}, verbs.RCToInit); err != nil {
		return err
	}
	if _, err := qp.PostRecv(receives); err != nil {
		return err
	}
	err := qp.Modify(verbs.QPAttr{
		State: verbs.QPReadyToReceive, Address: theirs.Path(gidIndex), PathMTU: 1024,
		DestQPN: theirs.QPN, RQPSN: theirs.PSN, MaxDestReadAtomic: 1, MinRNRTimer: 12,
	}, verbs.RCToRTR)
	if err != nil {
		return err
	}
	return qp.Modify(verbs.QPAttr{
		State: verbs.QPReadyToSend, SQPSN: mine.PSN, Timeout: 14, RetryCount: 6, RNRRetry: 7, MaxInitReadAtomic: 1,
	}, verbs.RCToRTS)
}

// Do posts one request, and waits for its completion.
func Do(ctx context.Context, qp verbs.QP, cq verbs.CQ, wr verbs.SendWR) error {
	wr.Flags |= verbs.FlagSignaled
	if _, err := qp.PostSend([]verbs.SendWR{wr}); err != nil {
		return err
	}
	_, err := Wait(ctx, cq)
	return err
}

// Put copies a text into memory, clears the rest, and returns the text.
func Put(mem []byte, text string) string {
	clear(mem[copy(mem, text):])
	return text
}

// Get returns the text in memory, up to the first zero.
func Get(mem []byte) string {
	text, _, _ := bytes.Cut(mem, []byte{0})
	return string(text)
}
