// Command verbs_ud_pingpong sends an unreliable datagram to and fro and prints how long
// that took. One that the network loses ends the game. It is written against package
// verbs, in its ten steps, and plays with ibv_ud_pingpong(1) too.
//
// It is a server, or with an argument the client of the server on that host:
//
//	verbs_ud_pingpong -d soft-lo
//	verbs_ud_pingpong -d soft-lo localhost
package main

import (
	"context"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/samples/internal/pingpong"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	pingpong.Main(pingpong.Program{Name: "verbs_ud_pingpong", Service: verbs.UD, Size: 1024}, run) // as ibv_ud_pingpong; its manual says 2048
}

const (
	receiveID, sendID = 1, 2       // bits of the set of those that are on their way
	grhLen            = 40         // bytes that precede the data of a received datagram
	key               = 0x11111111 // the Q_Key of both sides
)

func run(ctx context.Context, o *pingpong.Options) (err error) {
	// 1. Get the device list.
	list, err := device.List()
	if err != nil {
		return err
	}

	// 2. Open the requested device.
	dev, err := device.Open(o.ChooseDevice(list))
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, dev.Close)

	// 3. Query the device capabilities.
	if err := o.CheckDevice(dev); err != nil {
		return err
	}

	// 4. Allocate a protection domain.
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, pd.Close)

	// 5. Register a memory region. One buffer serves both directions: it is
	// either sent or received into, with the global routing header in front.
	mem, free := o.Memory(grhLen)
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
	qp, err := pd.CreateQP(verbs.QPInit{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: o.RxDepth})
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, qp.Close)

	// 8. Bring up the queue pair: Init, where receives can be posted already, RTR
	// and RTS. The peer's address goes into a handle, not into the queue pair.
	if err := qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: o.Port, QKey: key}, verbs.UDToInit); err != nil {
		return err
	}
	receives := slices.Repeat([]verbs.RecvWR{{ID: receiveID, SGL: pingpong.Entry(mr, 0, grhLen+o.Size)}}, o.RxDepth)
	if _, err := qp.PostRecv(receives); err != nil {
		return err
	}
	peer, err := o.Meet(ctx, dev, qp)
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, peer.Close)
	if err := qp.Modify(verbs.QPAttr{State: verbs.QPReadyToReceive}, verbs.UDToRTR); err != nil {
		return err
	}
	if err := qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend, SQPSN: peer.Mine.PSN}, verbs.UDToRTS); err != nil {
		return err
	}
	ah, err := pd.CreateAH(peer.Path())
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, ah.Close)
	if ctx, err = peer.Ready(ctx); err != nil { // which ends with the peer
		return err
	}

	// 9. Post work requests and poll for completions. The next message leaves when
	// the last one has been sent and the peer's has come.
	send := []verbs.SendWR{{ID: sendID, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: pingpong.Entry(mr, grhLen, o.Size),
		AH: ah, RemoteQPN: peer.QPN, RemoteQKey: key}}
	pending := uint64(receiveID) // a server's first message is an answer
	if o.Client() {
		pending = 0
	}
	start, posted, sent, received := time.Now(), o.RxDepth, 0, 0
	for sent < o.Iters || received < o.Iters || pending&sendID != 0 {
		if pending == 0 && sent < o.Iters {
			if _, err := qp.PostSend(send); err != nil {
				return err
			}
			sent++
			pending = sendID | receiveID
		}
		wcs, err := completions.Next(ctx)
		if err != nil {
			return err
		}
		for _, wc := range wcs {
			pending &^= wc.ID
			if wc.ID == sendID {
				continue
			}
			received++
			if posted--; posted <= 1 {
				if _, err := qp.PostRecv(receives[posted:]); err != nil {
					return err
				}
				posted = o.RxDepth
			}
		}
	}
	o.Report(time.Since(start))
	return peer.Finish(o.Validate(mem[grhLen : grhLen+o.Size]))

	// 10. Cleanup: the deferred calls close what was opened, the last one first.
}
