// Command broadcast_server broadcasts a stream to consumers, each a broadcast_consumer with
// a name of its own. Chunk n goes by RDMA write with immediate n to slot n % slots of the
// consumer's memory. The consumer answers with a message of no bytes, whose immediate is how
// many chunks it has taken: a credit for as many slots. Each is served at its own pace, from
// the start of the stream: one that was killed begins again when it comes back. The server
// ends when enough of them have had everything.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// A consumer that was killed keeps its connection until the server notices, after some seconds:
// 10 if it had not connected yet, otherwise see rdma.Config.Keepalive.
const chunkSize, slots, maxConnections = 1 << 20, 8, 32

type server struct {
	rdma           *rdma.Connections
	stream         *mmap.Map
	chunks, wanted uint64
	writes         *rdma.Pool
	done           map[string]bool // names of the consumers that have had everything
}

// consumer is one connection of a consumer, and its user data. Its counters are of chunks.
type consumer struct {
	*server
	name                 string
	conn                 *rdma.Connection
	ring                 *mmap.Map
	sent, written, taken uint32 // submitted, acknowledged by its device, taken by its program
}

func main() {
	way, p := "tcp:127.0.0.1:7471", &server{chunks: 256, wanted: 3, done: map[string]bool{}}
	sample.Main(sample.Program{
		Name: "broadcast_server", About: "Broadcasts a stream to broadcast_consumer.", Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&way, "", "oob", "WAY", "where consumers find the server: tcp:HOST:PORT")
			f.Uint64(&p.chunks, "n", "chunks", "N", "length of the stream, in MiB")
			f.Uint64(&p.wanted, "", "consumers", "N", "how many have to have everything before the server ends")
		},
	}, func(ctx context.Context, s *sample.Session) error { return p.run(ctx, s, way) })
}

func (p *server) run(ctx context.Context, s *sample.Session, way string) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	if p.stream, err = mmap.Alloc(dev, int(p.chunks)*chunkSize, mmap.LocalReadOnly); err != nil {
		return err
	}
	_, _ = rand.NewChaCha8([32]byte{}).Read(p.stream.Bytes())
	sum := sha256.Sum256(p.stream.Bytes())
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.Path{GIDIndex: s.GIDIndex}, MaxConnections: maxConnections,
		ConnectTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	p.rdma.OnConnection(p.changed)
	clients, err := oob.Listen(way, oob.Config{Name: "broadcast_server", Expect: &oob.Expect{Maps: 1}, Log: s.Log})
	if err != nil {
		return err
	}
	defer sample.Close(&err, clients.Close)
	s.Print("listening on %s", clients.Addr())
	offer := oob.Offer{Data: append(binary.LittleEndian.AppendUint32(nil, uint32(p.chunks)), sum[:]...)}
	p.writes, err = p.rdma.Pool(slots*maxConnections, pe.Done, pe.Failed)
	if err := errors.Join(err, clients.Serve(p.rdma, offer, p.came), p.rdma.Receive(maxConnections, 0, p.credit), p.rdma.Start()); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// came is called for each consumer, before anything is reported of its connection.
func (p *server) came(_ string, a *oob.Answer) error {
	c := &consumer{server: p, name: string(a.Data), conn: a.Connections[0], ring: a.Maps[0]}
	c.conn.SetUserData(c)
	if c.ring.Len() < slots*chunkSize {
		return fmt.Errorf("the ring needs %d bytes", slots*chunkSize) // rejects the consumer
	}
	return nil
}

// push writes what the consumer has room for. A credit can come before the completion of
// its write; both count, so that no more than slots tasks of one consumer are out.
func (c *consumer) push() {
	for uint64(c.sent) < c.chunks && c.sent < min(c.taken, c.written)+slots && c.conn.State() == rdma.Ready {
		task, err := c.writes.WriteImm(c.conn, bufinv.Source(c.stream, int(c.sent)*chunkSize, chunkSize),
			bufinv.Target(c.ring, int(c.sent%slots)*chunkSize, chunkSize), c.sent)
		if pe.SubmitNew(task, err, c.wrote) != nil {
			_ = c.conn.Close()
			return
		}
		c.sent++
	}
}

func (c *consumer) wrote(t *rdma.Task, err error) {
	_ = t.Free()
	if err == nil { // or else the connection has failed
		c.written++
		c.push()
	}
}

// credit is called when a consumer says how many chunks it has taken.
func (p *server) credit(m *rdma.Message) {
	c := m.Connection().UserData().(*consumer)
	if taken, ok := m.Imm(); ok && taken >= c.taken && taken <= c.sent {
		c.taken = taken
		c.push()
	} else {
		_ = c.conn.Close()
	}
}

// changed begins with a consumer that is Ready, and ends when enough have had everything and
// left: until then, the acknowledgement of a credit may be needed once more. A consumer that
// was rejected may have no user data.
func (p *server) changed(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
	c, ok := conn.UserData().(*consumer)
	switch {
	case !ok:
	case state == rdma.Ready:
		c.push()
	case state == rdma.Closed:
		if uint64(c.taken) == p.chunks {
			p.done[c.name] = true
		}
		if uint64(len(p.done)) >= p.wanted {
			_ = p.rdma.Stop()
		}
	}
}
