// Command efa_rdma_write_server waits for two writes with immediate of efa_rdma_write_client,
// on an SRD queue pair of Amazon's EFA or of the software device: a large and a small one, in
// either order. Then it prints the text in its memory.
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

var listen = ":19876"

func main() {
	sample.Main(sample.Program{
		Name:   "efa_rdma_write_server",
		About:  "Waits for two writes with immediate of efa_rdma_write_client, on an SRD queue pair.",
		Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&listen, "p", "listen", "address", "the TCP address to wait for the client on")
		},
	}, run)
}

const (
	size   = 1<<20 + 8 // bytes of memory: for a large message, then a small one
	writes = 2
)

func run(ctx context.Context, s *sample.Session) (err error) {
	// The RDMA context: device, protection domain, memory, extended completion queue, queue
	// pair.
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
	mem, free, err := mmap.AllocBytes(size)
	if err != nil {
		return err
	}
	defer sample.Close(&err, free)
	mr, err := pd.RegMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	defer sample.Close(&err, mr.Close)
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: writes + 1, Fields: verbs.WCSource})
	if err != nil {
		return err
	}
	defer sample.Close(&err, cq.Close)
	qp, err := pd.CreateQP(verbs.QPInit{Type: verbs.SRD, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: writes})
	if err != nil {
		return err
	}
	defer sample.Close(&err, qp.Close)
	mine, gid, err := example.BringUpSRD(dev, qp, s.GIDIndex) // Init, RTR, RTS
	if err != nil {
		return err
	}

	// Post the receives, which writes with immediate consume without data. Then exchange queue
	// pair number, GID, remote key and address.
	if _, err := qp.PostRecv(make([]verbs.RecvWR, writes)); err != nil {
		return err
	}
	mine.Addr, mine.RKey, mine.Length = mr.Addr(), mr.RKey(), size
	client, theirs, err := example.Accept(ctx, listen, &mine, s.Say)
	if err != nil {
		return err
	}
	defer sample.Close(&err, client.Close)

	// The client's address handle. Completions name the sender by its number.
	ah, err := pd.CreateAH(theirs.Path(gid.Index))
	if err != nil {
		return err
	}
	defer sample.Close(&err, ah.Close)

	if err := client.Sync(ctx, "ready"); err != nil { // writes of others are refused
		return err
	}
	for range writes {
		wc, extra, err := example.WaitExtended(ctx, cq)
		if err != nil {
			return err
		}
		if wc.Opcode != verbs.WCRecvWriteImm || wc.SrcQPN != theirs.QPN || extra.SourceAH != example.Number(ah) {
			return fmt.Errorf("received a completion that does not belong to the client's writes: %+v, %+v", wc, extra)
		}
		s.Print("written: %d bytes, immediate %d", wc.Bytes, wc.Imm)
	}
	s.Print("the message: %s, and after it: %s", sample.Describe([]byte(example.Get(mem))), sample.Describe(mem[size-8:]))
	return client.Sync(ctx, "done") // until then the client may repeat acknowledged writes
}
