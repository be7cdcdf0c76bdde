// Command verbs_rc_example_server is the server of an example that uses package verbs
// directly, in ten steps, the last of which is the deferred calls. Over a reliable connection
// it sends a message to verbs_rc_example_client, which then reads its memory, and writes to
// it. The two exchange their metadata over TCP, which also keeps them in step.
package main

import (
	"context"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/samples/internal/example"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

var listen = ":19875"

func main() {
	sample.Main(sample.Program{
		Name:   "verbs_rc_example_server",
		About:  "Sends to verbs_rc_example_client, which then reads and writes the memory here.",
		Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&listen, "p", "listen", "address", "the TCP address to wait for the client on")
		},
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

	// 5. Register memory, which the peer may read and write.
	mem, free, err := mmap.AllocBytes(size)
	if err != nil {
		return err
	}
	defer sample.Close(&err, free)
	mr, err := pd.RegMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	defer sample.Close(&err, mr.Close)

	// 6 and 7. Create a completion queue, and a queue pair on it.
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: 1})
	if err != nil {
		return err
	}
	defer sample.Close(&err, cq.Close)
	qp, err := pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	if err != nil {
		return err
	}
	defer sample.Close(&err, qp.Close)

	// 8. Bring up the queue pair with the client's metadata.
	mine := example.Metadata{GID: gid.GID, UDPPort: gid.UDPPort, Source: gid.SourceUDPPort, QPN: qp.Num(), PSN: example.PSN(), Addr: mr.Addr(), RKey: mr.RKey()}
	client, theirs, err := example.Accept(ctx, listen, &mine, s.Say)
	if err != nil {
		return err
	}
	defer sample.Close(&err, client.Close)
	if err := example.Connect(qp, verbs.AccessRemoteRead|verbs.AccessRemoteWrite, gid.Index, &mine, &theirs); err != nil {
		return err
	}
	if err := client.Sync(ctx, "connected"); err != nil { // the client has posted its receive
		return err
	}

	// 9. Send a message, let the client read memory, and print what the client has written.
	n := len(example.Put(mem, "SEND operation"))
	sge := verbs.SGE{Addr: mr.Addr(), Length: uint32(n), LKey: mr.LKey()}
	if err := example.Do(ctx, qp, cq, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{sge}}); err != nil {
		return err
	}
	s.Print("sent: %s", mem[:n])
	s.Print("to be read: %s", example.Put(mem, "RDMA read operation"))
	if err := client.Sync(ctx, "to be read"); err != nil {
		return err
	}
	if err := client.Sync(ctx, "written"); err != nil {
		return err
	}
	return s.Check(example.Get(mem), "RDMA write operation", "was written: %s")
}
