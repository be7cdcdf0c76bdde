// Command verbs_ud_pingpong sends an unreliable datagram to and fro and prints how
// long that took. A datagram that the network loses ends the game: neither side
// would send again. It is written against package verbs, in the ten
// steps of a typical verbs application, and plays with ibv_ud_pingpong(1) too.
//
// Without an argument it waits for a client; with one it is the client of the
// server on that host:
//
//	verbs_ud_pingpong -d soft-lo
//	verbs_ud_pingpong -d soft-lo localhost
package main

import (
	"context"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/samples/internal/pingpong"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	// The manual of ibv_ud_pingpong says 2048 bytes; by default it sends 1024.
	pingpong.Main(pingpong.Program{Name: "verbs_ud_pingpong", Service: verbs.UD, Size: 1024}, run)
}

// The requests on their way are bits of a set.
const (
	receiveID = 1 << iota
	sendID
)

const (
	// grhLen is what precedes the data of a received datagram.
	grhLen = 40
	// key is the Q_Key of both sides.
	key = 0x11111111
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
	qp, err := pd.CreateQP(verbs.QPInit{
		Type: verbs.UD, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: o.RxDepth,
	})
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, qp.Close)

	// 8. Bring up the queue pair: Init, where receives can be posted already, RTR
	// and RTS. The peer's address goes into a handle, not into the queue pair.
	err = qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: o.Port, QKey: key},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey)
	if err != nil {
		return err
	}
	receives := make([]verbs.RecvWR, o.RxDepth)
	for i := range receives {
		receives[i] = verbs.RecvWR{ID: receiveID, SGL: pingpong.Entry(mr, 0, grhLen+o.Size)}
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
	if err := qp.Modify(verbs.QPAttr{State: verbs.QPReadyToReceive}, verbs.QPAttrState); err != nil {
		return err
	}
	err = qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend, SQPSN: mine.PSN}, verbs.QPAttrState|verbs.QPAttrSQPSN)
	if err != nil {
		return err
	}
	ah, err := pd.CreateAH(o.To(mine, theirs))
	if err != nil {
		return err
	}
	defer pingpong.Close(&err, ah.Close)
	if err := peer.Ready(); err != nil {
		return err
	}

	// 9. Post work requests and poll for completions. The next message leaves when
	// the last one has been sent and the peer's has come.
	send := []verbs.SendWR{{
		ID: sendID, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: pingpong.Entry(mr, grhLen, o.Size),
		AH: ah, RemoteQPN: theirs.QPN, RemoteQKey: key,
	}}
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
	return o.Validate(mem[grhLen : grhLen+o.Size])

	// 10. Cleanup: the deferred calls close what was opened, the last one first.
}
