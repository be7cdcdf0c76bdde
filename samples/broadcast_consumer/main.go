// Command broadcast_consumer receives the stream of broadcast_server, whose text describes the
// protocol, and verifies its SHA-256. It may be killed and started again under the same name;
// it then receives the stream from the start.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/broadcast"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

type consumer struct {
	rdma    *rdma.Connections
	ring    *mmap.Map
	check   *broadcast.Check
	credits *broadcast.Credits
	delay   uint64
}

func main() {
	name, p := "consumer", &consumer{}
	sample.Main(sample.Program{
		Name: "broadcast_consumer", About: "Receives the stream of broadcast_server, and verifies it.",
		Role: sample.Requester, Peer: "broadcast_server", Memory: sample.ExportsMemory,
		Flags: func(f *sample.Flags) {
			f.String(&name, "", "name", "name", "the name of this consumer, different for each consumer")
			f.Uint64(&p.delay, "", "delay", "milliseconds", "milliseconds to wait before each chunk is consumed")
		},
	}, func(ctx context.Context, s *sample.Session) error { return p.run(ctx, s, name) })
}

func (p *consumer) run(ctx context.Context, s *sample.Session, name string) (err error) {
	h, err := s.Open(rdma.Config{ConnectTimeout: s.ConnectTimeout})
	if err != nil {
		return err
	}
	defer sample.Close(&err, h.Close) // and the memory
	if p.ring, err = mmap.Alloc(h.Device, broadcast.Slots*broadcast.ChunkSize, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return err
	}
	p.rdma = h.RDMA
	if p.credits, err = broadcast.NewCredits(p.rdma); err != nil {
		return err
	}
	p.rdma.OnConnection(func(_ *rdma.Connection, _ rdma.ConnectionState, err error) { p.rdma.Fail(err) })
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			offer := oob.Offer{Maps: []*mmap.Map{p.ring}, Data: []byte(name)}
			s.Peer.Exchange(ctx, p.rdma, offer, func(a *oob.Answer, err error) { p.rdma.Fail(p.begin(a, err)) })
		}
	})
	if err := errors.Join(p.rdma.Receive(broadcast.Slots, 0, p.arrive), p.rdma.Start()); err != nil {
		return err
	}
	if err = h.Engine.Run(ctx); err == nil {
		s.Print("%d chunks, SHA-256 %x verified", p.check.Taken, p.check.Sum)
	}
	return err
}

// begin reads the server's description of the stream.
func (p *consumer) begin(a *oob.Answer, err error) error {
	if err == nil {
		p.check, err = broadcast.Decode(a.Data, broadcast.ChunkSize)
	}
	if err == nil {
		p.credits.Begin(a.Connections[0], p.check.Chunks)
	}
	return err
}

// arrive is called when a chunk has been written to its slot.
func (p *consumer) arrive(m *rdma.Message) {
	if err := p.check.Arrive(m); err != nil {
		p.rdma.Fail(err)
		return
	}
	if p.delay == 0 {
		p.take()
	} else {
		engine := p.rdma.Engine() // the context has none once it is closed
		time.AfterFunc(time.Duration(p.delay)*time.Millisecond, func() { _ = engine.Do(p.take) })
	}
}

// take consumes the next chunk and returns its slot to the server.
func (p *consumer) take() {
	if err := p.check.Take(p.ring.Bytes()); err != nil {
		p.rdma.Fail(err)
		return
	}
	p.credits.Give(p.check.Taken)
}
