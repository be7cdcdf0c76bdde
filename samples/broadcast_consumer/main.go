// Command broadcast_consumer takes the stream of broadcast_server, whose text describes the
// protocol, and verifies its SHA-256. It may be killed and started again under the same
// name; then it takes the stream from the start.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const chunkSize, slots = 1 << 20, 8

type consumer struct {
	rdma           *rdma.Connections
	ring           *mmap.Map
	conn           *rdma.Connection
	credits        *rdma.Pool
	chunks         uint32 // of the stream
	arrived, taken uint32 // so far
	credited       uint32 // how many of these the server knows of, or will
	hash           hash.Hash
	sum            []byte // what it has to be
	delay          uint64
}

func main() {
	name, p := "consumer", &consumer{hash: sha256.New()}
	sample.Main(sample.Program{
		Name: "broadcast_consumer", About: "Takes the stream of broadcast_server, and verifies it.",
		Role: sample.Requester, Peer: "broadcast_server", Memory: sample.ExportsMemory,
		Flags: func(f *sample.Flags) {
			f.String(&name, "", "name", "NAME", "of this consumer, different for each")
			f.Uint64(&p.delay, "", "delay", "MS", "how long each chunk is kept before it is used")
		},
	}, func(ctx context.Context, s *sample.Session) error { return p.run(ctx, s, name) })
}

func (p *consumer) run(ctx context.Context, s *sample.Session, name string) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	if p.ring, err = mmap.Alloc(dev, slots*chunkSize, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return err
	}
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.Path{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout, Log: s.Log})
	if err != nil {
		return err
	}
	// One credit is under way at a time; what is taken meanwhile goes with the next.
	p.credits, err = p.rdma.Pool(1,
		func(t *rdma.Task) {
			last := t.Imm() == p.chunks
			_ = t.Free()
			p.credit()
			if last {
				p.rdma.Stop() // the server's device has the last credit
			}
		},
		pe.FailContext)
	if err != nil {
		return err
	}
	p.rdma.OnConnection(func(_ *rdma.Connection, _ rdma.ConnectionState, err error) { p.rdma.Fail(err) })
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next != pe.Starting {
			return
		}
		s.Peer.Exchange(ctx, p.rdma, oob.Offer{Maps: []*mmap.Map{p.ring}, Data: []byte(name)}, func(a *oob.Answer, err error) {
			if err == nil && len(a.Data) != 4+sha256.Size {
				err = fmt.Errorf("the server gives %d bytes of data, not a length and a SHA-256 of %d", len(a.Data), 4+sha256.Size)
			}
			if err != nil {
				p.rdma.Fail(err)
				return
			}
			p.conn, p.chunks, p.sum = a.Connections[0], binary.LittleEndian.Uint32(a.Data), a.Data[4:]
		})
	})
	if err := errors.Join(p.rdma.Receive(slots, 0, p.arrive), p.rdma.Start()); err != nil {
		return err
	}
	if err = engine.Run(ctx); err == nil {
		s.Print("%d chunks, SHA-256 %x verified", p.taken, p.sum)
	}
	return err
}

// arrive is called for each chunk, when it is in its slot.
func (p *consumer) arrive(m *rdma.Message) {
	n, _ := m.Imm()
	if m.Opcode() != rdma.ReceivedWriteImm || m.Length() != chunkSize || n != p.arrived || n >= p.chunks {
		p.rdma.Fail(fmt.Errorf("chunk %d should come, %d has, with %d bytes by %v", p.arrived, n, m.Length(), m.Opcode()))
		return
	}
	p.arrived++
	if p.delay == 0 {
		p.take()
	} else {
		time.AfterFunc(time.Duration(p.delay)*time.Millisecond, func() { _ = p.rdma.Engine().Do(p.take) })
	}
}

// take uses the next chunk, and gives its slot back.
func (p *consumer) take() {
	p.hash.Write(p.ring.Bytes()[p.taken%slots*chunkSize:][:chunkSize])
	p.taken++
	if p.taken == p.chunks && !bytes.Equal(p.hash.Sum(nil), p.sum) {
		p.rdma.Fail(errors.New("the stream has another SHA-256 than that of the server"))
		return
	}
	p.credit()
}

// credit says to the server how many chunks have been taken, so that it may write as many more.
func (p *consumer) credit() {
	if p.credited == p.taken || p.credits.Available() == 0 || p.rdma.State() != pe.Running {
		return
	}
	p.credited = p.taken
	task, err := p.credits.SendImm(p.conn, nil, p.taken)
	p.rdma.Fail(pe.SubmitNew(task, err))
}
