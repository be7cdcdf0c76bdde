// Command cm_rping is client and server of rping(1), which comes with rdma-core. For each
// round the client advertises memory, which the server reads, and then memory that the
// server writes the same to. An advertisement, and the message that answers it, has 16
// bytes: address, rkey and length, in network byte order.
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
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const (
	messageSize, smallest, largest = 16, 26, 65535
	maxClients, dataAt             = 16, 64
)

func main() {
	p := &program{addr: "0.0.0.0", port: 7174, size: 64}
	sample.Main(sample.Program{Name: "cm_rping", About: "Exchanges data with rping, or another cm_rping.", Device: "soft-lo", Flags: p.flags}, p.run)
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	if p.server == p.client || p.size < smallest || p.size > largest {
		return fmt.Errorf("give -s or -c, and -S from %d to %d", smallest, largest)
	}
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{Engine: engine, Path: rdma.Path{GIDIndex: s.GIDIndex}, MaxConnections: maxClients,
		Permissions: mmap.RemoteRead, EndWithLastConnection: !p.persistent, Log: s.Log})
	if err != nil {
		return err
	}
	if p.shared, err = p.rdma.SharedPool(); err != nil {
		return err
	}
	p.print, p.say = s.Print, s.Say
	p.rdma.OnStateChange(func(_, next pe.State) { s.Entered(next) })
	p.rdma.OnConnection(p.changed)
	if err := errors.Join(p.rdma.Receive(2*maxClients, messageSize, p.message), p.rdma.Start()); err != nil {
		return err
	}
	address := p.address()
	if p.server {
		_, err = p.rdma.Listen(address, rdma.ListenConfig{OnRequest: p.accept})
	} else {
		_, err = p.rdma.Dial(address, rdma.DialConfig{Once: true}) // nobody listens: that is the answer
	}
	p.rdma.Fail(err)
	return engine.Run(ctx) // until the last client has gone, or all rounds are done
}

// message takes an advertisement, or the answer to one.
func (p *program) message(m *rdma.Message) {
	q, ok := m.Connection().UserData().(*ping)
	if !ok || m.Length() != messageSize {
		p.fail(m.Connection(), fmt.Errorf("a message of %d bytes came, which is none of rping's", m.Length()))
		return
	}
	q.step++
	switch first := q.step%2 == 1; {
	case p.client && first:
		q.advertise(q.back())
	case p.client:
		q.check()
	default:
		q.end(q.move(first, m.Bytes()))
	}
}

// move reads the client's data, or writes it back.
func (q *ping) move(read bool, advertisement []byte) error {
	n := int(binary.BigEndian.Uint32(advertisement[12:]))
	remote, err := mmap.FromKey(q.dev, binary.BigEndian.Uint64(advertisement), n, binary.BigEndian.Uint32(advertisement[8:]), mmap.RemoteRead|mmap.RemoteWrite)
	if err != nil || n > largest {
		return errors.Join(err, fmt.Errorf("the client advertises %d bytes", n))
	}
	if read {
		task, err := q.shared.Read(q.conn, bufinv.Source(remote, 0, n), bufinv.Target(q.memory, dataAt, n))
		return q.submit(task, err, q.answer)
	}
	q.show("server", q.memory.Bytes()[dataAt:][:n])
	task, err := q.shared.Write(q.conn, bufinv.Source(q.memory, dataAt, n), bufinv.Target(remote, 0, n))
	return q.submit(task, err, q.answer)
}

// check compares what has come back, and begins the next round.
func (q *ping) check() {
	sent, back := q.memory.Bytes()[dataAt:][:q.size], q.memory.Bytes()[q.back():][:q.size]
	if q.validate && !bytes.Equal(sent, back) {
		q.rdma.Fail(fmt.Errorf("round %d: something else came back", q.step/2))
	}
	q.show("client", back)
	q.begin()
}
