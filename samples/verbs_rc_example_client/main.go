// Command verbs_rc_example_client is the client of an example that uses package verbs
// directly, in ten steps, the last of which is the deferred calls. Over a reliable connection
// it receives a message of verbs_rc_example_server, reads its memory, and writes to it. The
// two exchange their metadata over TCP, which also keeps them in step.
package main

import (
	"context"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/samples/internal/example"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

var server = "localhost:19875"

func main() {
	sample.Main(sample.Program{
		Name:   "verbs_rc_example_client",
		About:  "Receives from verbs_rc_example_server, and reads and writes the memory there.",
		Device: "soft-lo",
		Flags:  func(f *sample.Flags) { f.String(&server, "s", "server", "host:port", "the TCP address of the server") },
	}, run)
}

const size = 64 // bytes of memory

func run(ctx context.Context, s *sample.Session) (err error) {
	// 1 to 3. Get the device, open it, and query what it can do.
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	gid, err := example.FirstGID(dev, s.GIDIndex)
	if err != nil {
		return err
	}

	// 4. Allocate a protection domain.
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer sample.Close(&err, pd.Close)

	// 5. Register memory, which no peer may access.
	mem, free, err := mmap.AllocBytes(size)
	if err != nil {
		return err
	}
	defer sample.Close(&err, free)
	mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer sample.Close(&err, mr.Close)
	all := []verbs.SGE{{Addr: mr.Addr(), Length: size, LKey: mr.LKey()}}

	// 6 and 7. Create a completion queue, and a queue pair on it.
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: 2})
	if err != nil {
		return err
	}
	defer sample.Close(&err, cq.Close)
	qp, err := pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	if err != nil {
		return err
	}
	defer sample.Close(&err, qp.Close)

	// 8. Bring up the queue pair with the server's metadata, and post a receive.
	mine := example.Metadata{GID: gid.GID, UDPPort: gid.UDPPort, Source: gid.SourceUDPPort, QPN: qp.Num(), PSN: example.PSN()}
	peer, theirs, err := example.Dial(ctx, server, &mine, s.Say)
	if err != nil {
		return err
	}
	defer sample.Close(&err, peer.Close)
	if err := example.Connect(qp, 0, gid.Index, &mine, &theirs, verbs.RecvWR{SGL: all}); err != nil {
		return err
	}
	if err := peer.Sync(ctx, "connected"); err != nil {
		return err
	}

	// 9. A receive, a read and a write.
	wc, err := example.Wait(ctx, cq)
	if err != nil {
		return err
	}
	if err := s.Check(string(mem[:wc.Bytes]), "SEND operation", "received: %s"); err != nil {
		return err
	}
	if err := peer.Sync(ctx, "to be read"); err != nil {
		return err
	}
	if err := example.Do(ctx, qp, cq, verbs.SendWR{Op: verbs.OpRead, SGL: all, RemoteAddr: theirs.Addr, RKey: theirs.RKey}); err != nil {
		return err
	}
	if err := s.Check(example.Get(mem), "RDMA read operation", "read: %s"); err != nil {
		return err
	}
	s.Print("to be written: %s", example.Put(mem, "RDMA write operation"))
	if err := example.Do(ctx, qp, cq, verbs.SendWR{Op: verbs.OpWrite, SGL: all, RemoteAddr: theirs.Addr, RKey: theirs.RKey}); err != nil {
		return err
	}
	return peer.Sync(ctx, "written")
}
