// Command cm_rping is client and server of rping(1), which comes with rdma-core. In each round
// the client advertises memory, which the server reads; the client then advertises other
// memory, to which the server writes the same data. An advertisement, and the message that
// answers it, has 16 bytes: address, rkey and length, in network byte order.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/rping"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const maxClients = 16

type program struct{ *rping.Program }

func main() {
	p := &program{rping.New()}
	sample.Main(sample.Program{Name: "cm_rping", About: "Exchanges data with rping, or another cm_rping.", Device: "soft-lo", Flags: p.Flags}, p.run)
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	if p.Server == p.Client || p.Size < rping.Smallest || p.Size > rping.Largest {
		return fmt.Errorf("give -s or -c, and -S from %d to %d", rping.Smallest, rping.Largest)
	}
	if p.Device, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.Device.Close)
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close)
	p.RDMA, err = rdma.New(p.Device, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, MaxConnections: maxClients,
		Permissions: mmap.RemoteRead, EndWithLastConnection: !p.Persistent})
	if err != nil {
		return err
	}
	if p.Tasks, err = p.RDMA.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task]); err != nil {
		return err
	}
	p.Session = s
	p.RDMA.OnStateChange(func(_, next pe.State) { s.LogState(next) })
	p.RDMA.OnConnection(p.Changed)
	if err := errors.Join(p.RDMA.Receive(2*maxClients, rping.MessageSize, p.message), p.RDMA.Start()); err != nil {
		return err
	}
	address := p.Address()
	if p.Server {
		_, err = p.RDMA.Listen(address, rdma.ListenConfig{OnRequest: p.Accept})
	} else {
		_, err = p.RDMA.Dial(address, rdma.DialConfig{Once: true}) // if nobody listens, fail at once
	}
	p.RDMA.Fail(err)
	return engine.Run(ctx) // until the last client has gone, or all rounds are done
}

// message handles an advertisement, or the answer to one.
func (p *program) message(m *rdma.Message) {
	q, ok := m.Connection().UserData().(*rping.Ping)
	if !ok || m.Length() != rping.MessageSize {
		p.Fail(m.Connection(), fmt.Errorf("received a message of %d bytes; messages of rping have 16", m.Length()))
		return
	}
	q.Step++
	switch first := q.Step%2 == 1; {
	case p.Client && first:
		q.Advertise(q.ReturnAt())
	case p.Client:
		check(q)
	default:
		q.End(move(q, first, m.Bytes()))
	}
}

// move reads the client's data, or writes it back to the client.
func move(q *rping.Ping, read bool, advertisement []byte) error {
	n := int(binary.BigEndian.Uint32(advertisement[12:]))
	remote, err := mmap.FromKey(q.Device, binary.BigEndian.Uint64(advertisement), n, binary.BigEndian.Uint32(advertisement[8:]), mmap.RemoteRead|mmap.RemoteWrite)
	if err != nil || n > rping.Largest {
		return errors.Join(err, fmt.Errorf("the client advertises %d bytes", n))
	}
	if read {
		task, err := q.Tasks.Read(q.Conn, bufinv.Source(remote, 0, n), bufinv.Target(q.Memory, rping.DataAt, n))
		return q.Submit(task, err, q.Answer)
	}
	q.Show("server", q.Memory.Bytes()[rping.DataAt:][:n])
	task, err := q.Tasks.Write(q.Conn, bufinv.Source(q.Memory, rping.DataAt, n), bufinv.Target(remote, 0, n))
	return q.Submit(task, err, q.Answer)
}

// check compares the data that came back, and begins the next round.
func check(q *rping.Ping) {
	sent, back := q.Memory.Bytes()[rping.DataAt:][:q.Size], q.Memory.Bytes()[q.ReturnAt():][:q.Size]
	if q.Validate && !bytes.Equal(sent, back) {
		q.RDMA.Fail(fmt.Errorf("round %d: the data that came back differs from the data sent", q.Step/2))
	}
	q.Show("client", back)
	q.Begin()
}
