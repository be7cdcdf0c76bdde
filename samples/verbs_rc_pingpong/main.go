// Command verbs_rc_pingpong sends a message to and fro over a reliable connection
// and prints how long that took. It is written against package verbs, in the ten
// steps of a typical verbs application, and plays with ibv_rc_pingpong(1) too.
//
// Without an argument it waits for a client; with one it is the client of the
// server on that host:
//
//	verbs_rc_pingpong -d soft-lo
//	verbs_rc_pingpong -d soft-lo localhost
package main

import (
	"context"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/samples/internal/pingpong"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	pingpong.Main(pingpong.Program{Name: "verbs_rc_pingpong", Service: verbs.RC, Size: 4096}, run)
}

// The requests on their way are bits of a set.
const (
	receiveID = 1 << iota
	sendID
)

func run(ctx context.Context, o *pingpong.Options) (err error) {
	// 1. Get the device list.
	list, err := device.List()
	if err != nil {
		return err
	}

	// 2. Open the requested device.
	name, err := o.ChooseDevice(list)
	if err != nil {
		return err
	}
	dev, err := device.Open(name)
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, dev.Close)

	// 3. Query the device capabilities.
	port, err := o.CheckDevice(dev)
	if err != nil {
		return err
	}

	// 4. Allocate a protection domain.
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, pd.Close)

	// 5. Register a memory region. One buffer serves both directions: it is
	// either sent or received into.
	mem, free := o.Memory(0)
	defer free()
	mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, mr.Close)

	// 6. Create a completion queue, with room for all that can be outstanding.
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: o.RxDepth + 1})
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, cq.Close)
	completions := o.WaitOn(cq)

	// 7. Create a queue pair.
	qp, err := pd.CreateQP(verbs.QPInit{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: o.RxDepth,
	})
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, qp.Close)

	// 8. Bring up the queue pair: Init, where receives can be posted already, RTR
	// once the peer's address is known, and RTS.
	err = qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: o.Port},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
	if err != nil {
		return err
	}
	receives := make([]verbs.RecvWR, o.RxDepth)
	for i := range receives {
		receives[i] = verbs.RecvWR{ID: receiveID, SGL: pingpong.Entry(mr, 0, o.Size)}
	}
	if _, err := qp.PostRecv(receives); err != nil {
		return err
	}
	peer, err := o.Meet(ctx)
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, peer.Close)
	mine, theirs, err := peer.Introduce(dev, port, qp)
	if err != nil {
		return err
	}
	err = qp.Modify(verbs.QPAttr{
		State: verbs.QPReadyToReceive, Address: o.To(mine, theirs), PathMTU: o.MTU,
		DestQPN: theirs.QPN, RQPSN: theirs.PSN, MaxDestReadAtomic: 1, MinRNRTimer: 12,
	}, verbs.QPAttrState|verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestReadAtomic|verbs.QPAttrMinRNRTimer)
	if err != nil {
		return err
	}
	err = qp.Modify(verbs.QPAttr{
		State: verbs.QPReadyToSend, SQPSN: mine.PSN, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxInitReadAtomic: 1,
	}, verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
		verbs.QPAttrMaxInitReadAtomic)
	if err != nil {
		return err
	}
	if err := peer.Ready(); err != nil {
		return err
	}

	// 9. Post work requests and poll for completions. The next message leaves when
	// the last one has been sent and the peer's has come.
	send := []verbs.SendWR{{ID: sendID, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: pingpong.Entry(mr, 0, o.Size)}}
	start := time.Now()
	pending := uint64(receiveID)
	if o.Client() {
		if _, err := qp.PostSend(send); err != nil {
			return err
		}
		pending |= sendID
	}
	posted, sent, received := o.RxDepth, 0, 0
	for sent < o.Iters || received < o.Iters {
		wcs, err := completions.Next(ctx)
		if err != nil {
			return err
		}
		for _, wc := range wcs {
			switch wc.ID {
			case sendID:
				sent++
			case receiveID:
				received++
				if posted--; posted <= 1 {
					n, err := qp.PostRecv(receives[posted:])
					if err != nil {
						return err
					}
					posted += n
				}
			}
			pending &^= wc.ID
			if pending == 0 && sent < o.Iters {
				if _, err := qp.PostSend(send); err != nil {
					return err
				}
				pending = sendID | receiveID
			}
		}
	}
	o.Report(time.Since(start))
	return o.Validate(mem[:o.Size])

	// 10. Cleanup: the deferred calls close what was opened, the last one first.
}
