// Command broadcast_server broadcasts a stream to consumers, each a broadcast_consumer with
// its own name. Chunk n goes by RDMA write with immediate n to slot n % slots of the
// consumer's memory. The consumer answers with an empty message, whose immediate is the number
// of chunks that it has taken; this is a credit for as many slots. Each consumer has its own
// pace. One that was killed starts again from the beginning of the stream. The server ends
// when enough consumers have received everything.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/broadcast"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// A consumer that was killed keeps its connection until the server notices, after some seconds:
// 10 if it had not connected yet, otherwise see rdma.Config.Keepalive.
const maxConnections = 32

type server struct {
	rdma           *rdma.Connections
	stream         *mmap.Map
	chunks, wanted uint64
	writes         *rdma.Pool
	done           map[string]bool // names of the consumers that have received everything
}

func main() {
	way, p := "tcp:127.0.0.1:7471", &server{chunks: 256, wanted: 3, done: map[string]bool{}}
	sample.Main(sample.Program{
		Name: "broadcast_server", About: "Broadcasts a stream to broadcast_consumer.", Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&way, "", "oob", "way", "where consumers find the server: tcp:HOST:PORT")
			f.Uint64(&p.chunks, "n", "chunks", "number", "length of the stream, in MiB")
			f.Uint64(&p.wanted, "", "consumers", "number", "number of consumers that must receive everything before the server ends")
		},
	}, func(ctx context.Context, s *sample.Session) error { return p.run(ctx, s, way) })
}

func (p *server) run(ctx context.Context, s *sample.Session, way string) (err error) {
	h, err := s.Open(rdma.Config{MaxConnections: maxConnections, ConnectTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer sample.Close(&err, h.Close) // and the memory
	if p.stream, err = mmap.Alloc(h.Device, int(p.chunks)*broadcast.ChunkSize, mmap.LocalReadOnly); err != nil {
		return err
	}
	p.rdma = h.RDMA
	p.rdma.OnConnection(p.connectionChanged)
	clients, err := oob.Listen(way, oob.Config{Name: "broadcast_server", Expect: &oob.Expect{Maps: 1}, Log: s.Log})
	if err != nil {
		return err
	}
	defer sample.Close(&err, clients.Close)
	s.Print("listening on %s", clients.Addr())
	offer := oob.Offer{Data: broadcast.Make(p.stream.Bytes(), broadcast.ChunkSize).Encode()}
	p.writes, err = p.rdma.Pool(broadcast.Slots*maxConnections, pe.TaskDone, pe.TaskFailed)
	if err := errors.Join(err, clients.Serve(p.rdma, offer, p.accepted), p.rdma.Receive(maxConnections, 0, p.credit), p.rdma.Start()); err != nil {
		return err
	}
	return h.Engine.Run(ctx)
}

// accepted is called for each consumer before any event of its connection is reported. The
// connection's user data is the writer.
func (p *server) accepted(_ string, a *oob.Answer) error {
	if a.Maps[0].Len() < broadcast.Slots*broadcast.ChunkSize {
		return fmt.Errorf("the ring needs %d bytes", broadcast.Slots*broadcast.ChunkSize) // rejects the consumer
	}
	conn := a.Connections[0]
	conn.SetUserData(&broadcast.Writer{Name: string(a.Data), Conn: conn, Ring: a.Maps[0], Stream: p.stream, ChunkSize: broadcast.ChunkSize, Tasks: p.writes})
	return nil
}

// credit is called when a consumer reports how many chunks it has taken.
func (p *server) credit(m *rdma.Message) {
	if taken, ok := m.Imm(); ok {
		m.Connection().UserData().(*broadcast.Writer).Credit(taken)
	} else {
		_ = m.Connection().Close()
	}
}

// connectionChanged starts writing when a consumer is Ready. It ends the program when enough
// consumers have received everything and left: before that, a credit may have to be
// acknowledged again. The connection of a rejected consumer may have no user data.
func (p *server) connectionChanged(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
	c, ok := conn.UserData().(*broadcast.Writer)
	switch {
	case !ok:
	case state == rdma.Ready:
		c.Push()
	case state == rdma.Closed:
		if c.Complete() {
			p.done[c.Name] = true
		}
		if uint64(len(p.done)) >= p.wanted {
			_ = p.rdma.Stop()
		}
	}
}
