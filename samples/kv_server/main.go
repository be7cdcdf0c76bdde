// Command kv_server keeps values for any number of clients, kv_client and
// kv_client_await, and outlives them. RDMA moves the values: a client reads a value out of
// the server's memory, and writes a new one into a slot that it was given before. The
// server only keeps account of the slots. A request is one message, and the answer to each
// is a message of no bytes whose immediate is the number of a slot:
//
//	a message of no bytes     give me a free slot                 that slot
//	a message with a key      where is the value?                 its slot, or noSlot
//	a write with immediate N  publish what I have put in slot N   another free slot
//
// A record in a slot is a checksum (4 bytes), the length of the value (4), the key (24,
// padded with zeros) and the value. Clients remember where a value was, and check what
// they have read: a slot is cleared when its value is replaced, and then used again.
// Any client may write anywhere in the table: they trust each other.
package main

import (
	"context"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const (
	maxClients = 16
	window     = 32 // requests of one client under way at a time, and slots that it has
	slots      = 4096
	slotSize   = 4096
	keyAt      = 8
	keySize    = 24
	noSlot     = ^uint32(0)
)

type server struct {
	*sample.Session
	rdma    *rdma.Context
	memory  *mmap.Map
	answers *rdma.SendImmPool
	index   map[[keySize]byte]uint32    // where the value of a key is
	free    []uint32                    // slots, the one that has been free the longest first
	given   map[uint32]*rdma.Connection // slots that clients may write to
	has     map[*rdma.Connection]int    // how many of them
}

func main() {
	way := "tcp:127.0.0.1:7471"
	sample.Main(sample.Program{
		Name: "kv_server", About: "Keeps values for kv_client and kv_client_await.", Device: "soft-lo",
		Flags: func(f *sample.Flags) { f.String(&way, "", "listen", "WAY", "where clients find the server") },
	}, func(ctx context.Context, s *sample.Session) error { return run(ctx, s, way) })
}

func run(ctx context.Context, s *sample.Session, way string) (err error) {
	p := &server{Session: s, index: map[[keySize]byte]uint32{}, given: map[uint32]*rdma.Connection{}, has: map[*rdma.Connection]int{}}
	for i := range uint32(slots) {
		p.free = append(p.free, i)
	}
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	if p.memory, err = mmap.Alloc(dev, slots*slotSize, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite); err != nil {
		return err
	}
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine, GIDIndex: s.GIDIndex, MaxConnections: maxClients, Permissions: mmap.RemoteRead, Log: s.Log})
	if err != nil {
		return err
	}
	if p.answers, err = p.rdma.SendImmPool(2*window*maxClients, p.answered, p.lost); err != nil {
		return err
	}
	if err := p.rdma.Receive(window*maxClients, keySize, p.request); err != nil {
		return err
	}
	p.rdma.OnConnection(p.changed)

	clients, err := oob.Listen(way, oob.Config{Name: "kv_server", Log: s.Log})
	if err != nil {
		return err
	}
	defer sample.Close(&err, clients.Close)
	offer := oob.Offer{Maps: []*mmap.Map{p.memory}}
	if err := clients.Serve(p.rdma, offer, func(string, *oob.Answer) {}); err != nil {
		return err
	}
	s.Print("listening on %s", clients.Addr())
	if err := p.rdma.Start(); err != nil {
		return err
	}
	return engine.Run(ctx) // serves until ctx ends
}

// request does what a client asks for. What it may not ask ends its connection.
func (p *server) request(m *rdma.Message) {
	client, slot := m.Connection(), noSlot
	if imm, put := m.Imm(); put {
		if p.given[imm] != client {
			_ = client.Close()
			return
		}
		p.publish(imm)
		delete(p.given, imm)
		p.has[client]--
	} else if m.Length() > 0 {
		if found, ok := p.index[[keySize]byte(append(m.Bytes(), make([]byte, keySize)...))]; ok {
			slot = found
		}
		p.answer(client, slot)
		return
	}
	if len(p.free) > 0 && p.has[client] < window {
		slot, p.free = p.free[0], p.free[1:]
		p.given[slot] = client
		p.has[client]++
	}
	p.answer(client, slot)
}

// publish makes the record in a slot the value of its key.
func (p *server) publish(slot uint32) {
	key := [keySize]byte(p.memory.Bytes()[slot*slotSize+keyAt:])
	if old, ok := p.index[key]; ok {
		clear(p.memory.Bytes()[old*slotSize:][:keyAt+keySize]) // whoever reads it from now on asks again
		p.free = append(p.free, old)
	}
	p.index[key] = slot
}

func (p *server) answer(client *rdma.Connection, slot uint32) {
	task, err := p.answers.Alloc(client, nil, slot)
	if err == nil {
		if err = task.Submit(); err != nil {
			_ = task.Free()
		}
	}
	if err != nil {
		_ = client.Close() // it has gone, or takes more than its window
	}
}

func (p *server) answered(t *rdma.SendImmTask)        { p.rdma.Fail(t.Free()) }
func (p *server) lost(t *rdma.SendImmTask, err error) { p.rdma.Fail(t.Free()) }

// changed takes back what a client had when it has gone.
func (p *server) changed(client *rdma.Connection, state rdma.ConnectionState, err error) {
	switch state {
	case rdma.Failed: // it has died, or done what it may not
		_ = client.Close()
	case rdma.Closed:
		for slot, owner := range p.given {
			if owner == client {
				delete(p.given, slot)
				p.free = append(p.free, slot)
			}
		}
		delete(p.has, client)
		p.Log.Info().Err(client.Err()).Msgf("%v has ended", client)
	}
}
