// Command efa_rdma_write_client writes a large and a small message to the memory of
// efa_rdma_write_server, with immediate data, on an SRD queue pair of Amazon's EFA or of the
// software device. SRD does not keep them in order.
package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/samples/internal/example"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

var server = "localhost:19876"

func main() {
	sample.Main(sample.Program{
		Name:   "efa_rdma_write_client",
		About:  "Writes to the memory of efa_rdma_write_server, with immediate data, on an SRD queue pair.",
		Device: "soft-lo",
		Flags:  func(f *sample.Flags) { f.String(&server, "s", "server", "host:port", "the TCP address of the server") },
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	// The RDMA context: device, protection domain, extended completion queue, queue pair.
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	if err := example.CheckSRD(dev); err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer sample.Close(&err, pd.Close)
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: 2, Fields: verbs.WCSource})
	if err != nil {
		return err
	}
	defer sample.Close(&err, cq.Close)
	qp, err := pd.CreateQP(verbs.QPInit{Type: verbs.SRD, SendCQ: cq, RecvCQ: cq, MaxSendWR: 2, MaxRecvWR: 1})
	if err != nil {
		return err
	}
	defer sample.Close(&err, qp.Close)
	mine, gid, err := example.BringUpSRD(dev, qp, s.GIDIndex) // Init, RTR, RTS
	if err != nil {
		return err
	}

	// The server's queue pair number, GID, remote key and address, once the server is up.
	peer, theirs, err := example.Dial(ctx, server, &mine, s.Say)
	if err != nil {
		return err
	}
	defer sample.Close(&err, peer.Close)
	large, small := int(theirs.Length)-8, 8 // the small message is at the end of the memory
	if large < 64 || theirs.Length > example.MaxMemory {
		return fmt.Errorf("the server offers %d bytes of memory; want 72 to %d", theirs.Length, example.MaxMemory)
	}

	// The local memory with the messages, and the server's address handle.
	mem, free, err := mmap.AllocBytes(large + small)
	if err != nil {
		return err
	}
	defer sample.Close(&err, free)
	copy(mem, "Hello from the client!")
	copy(mem[large:], "the end.")
	mr, err := pd.RegMR(mem, 0)
	if err != nil {
		return err
	}
	defer sample.Close(&err, mr.Close)
	ah, err := pd.CreateAH(theirs.Path(gid.Index))
	if err != nil {
		return err
	}
	defer sample.Close(&err, ah.Close)

	if err := peer.Sync(ctx, "ready"); err != nil { // the server accepts writes only from clients that it has a handle for
		return err
	}
	// Two writes with immediate. Each names the server's queue pair and memory.
	write := func(id uint64, at, n int) verbs.SendWR {
		return verbs.SendWR{
			ID: id, Op: verbs.OpWriteImm, Imm: uint32(id), Flags: verbs.FlagSignaled, AH: ah, RemoteQPN: theirs.QPN, RemoteQKey: theirs.QKey,
			SGL:        []verbs.SGE{{Addr: mr.Addr() + uint64(at), Length: uint32(n), LKey: mr.LKey()}},
			RemoteAddr: theirs.Addr + uint64(at), RKey: theirs.RKey,
		}
	}
	if _, err := qp.PostSend([]verbs.SendWR{write(1, 0, large), write(2, large, small)}); err != nil {
		return err
	}
	for range 2 { // in any order
		wc, _, err := example.WaitExtended(ctx, cq)
		if err != nil {
			return err
		}
		s.Print("request %d: %v of %d bytes is complete", wc.ID, wc.Opcode, []int{large, small}[wc.ID-1])
	}
	return peer.Sync(ctx, "done")
}
