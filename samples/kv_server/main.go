// Command kv_server keeps values for any number of clients, kv_client and kv_client_await,
// and outlives them. RDMA moves the values: a client reads one out of the server's memory,
// and writes a new one into a slot that it was given before. The server answers messages
// with messages of no bytes. The immediates of both have a tag of the client's in the upper
// 8 bits, and in the others the number of a slot:
//
//	a send of no bytes  give me a slot                           a free slot, or noSlot
//	a send of a key     where is its value?                      its slot, or noSlot
//	a write to a slot   publish it: the key's value is now here  a free slot, or noSlot
//
// A record in a slot is a checksum and the length of the value (4 bytes each), the key (24,
// padded with zeros), the value. Clients remember slots, and check what they read: when a
// value is replaced, its slot is cleared and used again. They trust each other.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const (
	maxClients      = 16
	window          = 32 // requests of one client under way at a time, and slots that it has
	slots, slotSize = 4096, 4096
	keyAt, keySize  = 8, 24
	noSlot          = 1<<24 - 1
)

type server struct {
	rdma    *rdma.Connections
	memory  *mmap.Map
	answers *rdma.Pool
	index   map[[keySize]byte]uint32 // where the value of a key is
	free    []uint32                 // slots, the one that has been free the longest first
}

// given are the slots that a client may publish: the user data of its connection.
type given map[uint32]bool

func main() {
	way, p := "tcp:127.0.0.1:7471", &server{index: map[[keySize]byte]uint32{}}
	sample.Main(sample.Program{
		Name: "kv_server", About: "Keeps values for kv_client and kv_client_await.", Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&way, "", "oob", "WAY", "where clients find the server: tcp:HOST:PORT")
		},
	}, func(ctx context.Context, s *sample.Session) error { return p.run(ctx, s, way) })
}

func (p *server) run(ctx context.Context, s *sample.Session, way string) (err error) {
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
	p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.Path{GIDIndex: s.GIDIndex}, MaxConnections: maxClients,
		ConnectTimeout: 10 * time.Second, Permissions: mmap.RemoteRead})
	if err != nil {
		return err
	}
	failed := func(t *rdma.Task, _ error) { pe.FreeTask(t) }
	if p.answers, err = p.rdma.Pool(2*window*maxClients, pe.FreeTask, failed); err != nil {
		return err
	}
	p.rdma.OnConnection(p.changed)
	clients, err := oob.Listen(way, oob.Config{Name: "kv_server", Log: s.Log})
	if err != nil {
		return err
	}
	defer sample.Close(&err, clients.Close)
	s.Print("listening on %s", clients.Addr())
	offer := oob.Offer{Maps: []*mmap.Map{p.memory}}
	err = clients.Serve(p.rdma, offer, func(_ string, a *oob.Answer) error { a.Connections[0].SetUserData(given{}); return nil })
	if err := errors.Join(err, p.rdma.Receive(window*maxClients, keySize, p.request), p.rdma.Start()); err != nil {
		return err
	}
	return engine.Run(ctx) // serves until ctx ends
}

// request does what a client asks for. What it may not ask ends its connection.
func (p *server) request(m *rdma.Message) {
	imm, _ := m.Imm()
	client, tag, slot := m.Connection(), imm&^noSlot, uint32(noSlot)
	own := client.UserData().(given)
	switch put := m.Opcode() == rdma.ReceivedWriteImm; {
	case put && !own[imm&noSlot]:
		_ = client.Close()
		return
	case !put && m.Length() > 0:
		var key [keySize]byte
		copy(key[:], m.Bytes())
		if found, ok := p.index[key]; ok {
			slot = found
		}
	default:
		if put {
			delete(own, imm&noSlot)
			p.publish(imm & noSlot)
		}
		if len(p.free) > 0 && len(own) < window {
			slot, p.free = p.free[0], p.free[1:]
			own[slot] = true
		}
	}
	if task, err := p.answers.SendImm(client, nil, tag|slot); pe.SubmitNew(task, err) != nil {
		_ = client.Close() // it has gone, or asked for more than its window
	}
}

// publish makes the record in a slot the value of its key.
func (p *server) publish(slot uint32) {
	table := p.memory.Bytes()
	key := [keySize]byte(table[slot*slotSize+keyAt:])
	if old, ok := p.index[key]; ok {
		clear(table[old*slotSize:][:keyAt+keySize]) // who reads it from now on asks again
		p.free = append(p.free, old)
	}
	p.index[key] = slot
}

// changed takes back what a client had, when it has gone.
func (p *server) changed(client *rdma.Connection, state rdma.ConnectionState, _ error) {
	if own, ok := client.UserData().(given); ok && state == rdma.Closed {
		for slot := range own {
			p.free = append(p.free, slot)
		}
	}
}
