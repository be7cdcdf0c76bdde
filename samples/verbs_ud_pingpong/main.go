// Command verbs_ud_pingpong exchanges an unreliable datagram repeatedly and prints the time
// taken. A lost datagram ends the exchange. The program uses package verbs, in the ten steps
// of a typical verbs application, and interoperates with ibv_ud_pingpong(1).
//
// It is a server, or with an argument the client of the server on that host:
//
//	verbs_ud_pingpong -d soft-lo
//	verbs_ud_pingpong -d soft-lo localhost
package main

import (
	"context"
	"slices"

	"github.com/verbena-rdma/verbena/samples/internal/pingpong"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	pingpong.Main(pingpong.Program{Name: "verbs_ud_pingpong", Service: verbs.UD, Size: 1024}, run) // as ibv_ud_pingpong; its manual says 2048
}

const (
	grhLen = 40         // bytes that precede the data of a received datagram
	key    = 0x11111111 // the Q_Key of both sides
)

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

	// 5. Register a memory region. One buffer serves both directions. Received data follows
	// the global routing header.
	mem, free := o.Memory(grhLen)
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
	receives := slices.Repeat([]verbs.RecvWR{{ID: pingpong.ReceiveID, SGL: pingpong.Entry(mr, 0, grhLen+o.Size)}}, o.RxDepth)
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
	if ctx, err = peer.Ready(ctx); err != nil { // this context ends with the peer
		return err
	}

	// 9. Post work requests and poll for completions.
	send := verbs.SendWR{ID: pingpong.SendID, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: pingpong.Entry(mr, grhLen, o.Size),
		AH: ah, RemoteQPN: peer.QPN, RemoteQKey: key}
	if err := o.Exchange(ctx, qp, cq, receives, send); err != nil {
		return err
	}
	return peer.Finish(o.Validate(mem[grhLen : grhLen+o.Size]))

	// 10. Clean up: the deferred calls close everything in reverse order.
}
