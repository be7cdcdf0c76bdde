// Command verbs_rc_pingpong exchanges a message repeatedly over a reliable connection and
// prints the time taken. It uses package verbs, in the ten steps of a typical verbs
// application, and interoperates with ibv_rc_pingpong(1).
//
// Without an argument it waits for a client; with one it is the client of the
// server on that host:
//
//	verbs_rc_pingpong -d soft-lo
//	verbs_rc_pingpong -d soft-lo localhost
package main

import (
	"context"
	"slices"

	"github.com/verbena-rdma/verbena/samples/internal/pingpong"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	pingpong.Main(pingpong.Program{Name: "verbs_rc_pingpong", Service: verbs.RC, Size: 4096}, run)
}

func run(ctx context.Context, o *pingpong.Options) (err error) {
	// 1 to 3. Get the device list, open a device, and query what it can do.
	dev, err := o.OpenDevice()
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, dev.Close)

	// 4. Allocate a protection domain.
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, pd.Close)

	// 5. Register a memory region. One buffer serves both directions.
	mem, free := o.Memory(0)
	defer free()
	mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, mr.Close)

	// 6. Create a completion queue, with room for all outstanding requests.
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: o.RxDepth + 1})
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, cq.Close)

	// 7. Create a queue pair.
	qp, err := pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: o.RxDepth})
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, qp.Close)

	// 8. Bring up the queue pair: Init, where receives can be posted already, RTR
	// once the peer's address is known, and RTS.
	if err := qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: o.Port}, verbs.RCToInit); err != nil {
		return err
	}
	receives := slices.Repeat([]verbs.RecvWR{{ID: pingpong.ReceiveID, SGL: pingpong.Entry(mr, 0, o.Size)}}, o.RxDepth)
	if _, err := qp.PostRecv(receives); err != nil {
		return err
	}
	peer, err := o.Meet(ctx, dev, qp)
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, peer.Close)
	err = qp.Modify(verbs.QPAttr{
		State: verbs.QPReadyToReceive, Address: peer.Path(), PathMTU: o.MTU,
		DestQPN: peer.QPN, RQPSN: peer.PSN, MaxDestReadAtomic: 1, MinRNRTimer: 12,
	}, verbs.RCToRTR)
	if err != nil {
		return err
	}
	err = qp.Modify(verbs.QPAttr{
		State: verbs.QPReadyToSend, SQPSN: peer.Mine.PSN, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxInitReadAtomic: 1,
	}, verbs.RCToRTS)
	if err != nil {
		return err
	}
	if ctx, err = peer.Ready(ctx); err != nil { // this context ends with the peer
		return err
	}

	// 9. Post work requests and poll for completions.
	send := verbs.SendWR{ID: pingpong.SendID, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: pingpong.Entry(mr, 0, o.Size)}
	if err := o.Exchange(ctx, qp, cq, receives, send); err != nil {
		return err
	}
	return peer.Finish(o.Validate(mem[:o.Size]))

	// 10. Clean up: the deferred calls close everything in reverse order.
}
