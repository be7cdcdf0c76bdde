// Command kv_server keeps values for any number of clients, kv_client and kv_client_await, and
// outlives them. RDMA moves the values: a client reads a value from the server's memory, and
// writes a new one into a slot that the server gave it before. The server answers messages
// with empty messages. In the immediates of both, the upper 8 bits are a tag chosen by the
// client, and the other 24 bits are the number of a slot:
//
//	a send of no bytes  give me a slot                           a free slot, or NoSlot
//	a send of a key     where is its value?                      its slot, or NoSlot
//	a write to a slot   publish it: the key's value is now here  a free slot, or NoSlot
//
// A record in a slot is a checksum and the length of the value (4 bytes each), the key (24,
// padded with zeros), and the value. Clients remember slots and check what they read: when a
// value is replaced, its slot is cleared and reused. Clients trust each other.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/kv"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

type server struct {
	rdma    *rdma.Connections
	table   *kv.Table
	answers *rdma.Pool
}

func main() {
	way, p := "tcp:127.0.0.1:7471", &server{}
	sample.Main(sample.Program{
		Name: "kv_server", About: "Keeps values for kv_client and kv_client_await.", Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&way, "", "oob", "way", "where clients find the server: tcp:HOST:PORT")
		},
	}, func(ctx context.Context, s *sample.Session) error { return p.run(ctx, s, way) })
}

func (p *server) run(ctx context.Context, s *sample.Session, way string) (err error) {
	h, err := s.Open(rdma.Config{MaxConnections: kv.MaxClients, ConnectTimeout: 10 * time.Second, Permissions: mmap.RemoteRead})
	if err != nil {
		return err
	}
	defer sample.Close(&err, h.Close)
	p.rdma = h.RDMA
	memory, err := mmap.Alloc(h.Device, kv.Slots*kv.SlotSize, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	p.table = kv.NewTable(memory.Bytes())
	failed := func(t *rdma.Task, _ error) { pe.FreeTask(t) }
	if p.answers, err = p.rdma.Pool(2*kv.Window*kv.MaxClients, pe.FreeTask, failed); err != nil {
		return err
	}
	p.rdma.OnConnection(p.connectionChanged)
	clients, err := oob.Listen(way, oob.Config{Name: "kv_server", Log: s.Log})
	if err != nil {
		return err
	}
	defer sample.Close(&err, clients.Close)
	s.Print("listening on %s", clients.Addr())
	offer := oob.Offer{Maps: []*mmap.Map{memory}}
	err = clients.Serve(p.rdma, offer, func(_ string, a *oob.Answer) error { a.Connections[0].SetUserData(kv.Granted{}); return nil })
	if err := errors.Join(err, p.rdma.Receive(kv.Window*kv.MaxClients, kv.KeySize, p.request), p.rdma.Start()); err != nil {
		return err
	}
	return h.Engine.Run(ctx) // serves until ctx ends
}

// request answers a client. A request that is not allowed ends the client's connection.
func (p *server) request(m *rdma.Message) {
	imm, _ := m.Imm()
	client, tag, slot := m.Connection(), imm&^kv.NoSlot, imm&kv.NoSlot
	own := client.UserData().(kv.Granted)
	switch put := m.Opcode() == rdma.ReceivedWriteImm; {
	case put && !own[slot]:
		_ = client.Close()
		return
	case put:
		p.table.Publish(slot, own)
		slot = p.table.Grant(own)
	case m.Length() > 0:
		slot = p.table.Find(m.Bytes())
	default:
		slot = p.table.Grant(own)
	}
	if task, err := p.answers.SendImm(client, nil, tag|slot); pe.SubmitOrFree(task, err) != nil {
		_ = client.Close() // the client has gone, or sent more requests than its window
	}
}

// connectionChanged takes back the slots of a client that has gone.
func (p *server) connectionChanged(client *rdma.Connection, state rdma.ConnectionState, _ error) {
	if own, ok := client.UserData().(kv.Granted); ok && state == rdma.Closed {
		p.table.Revoke(own)
	}
}
