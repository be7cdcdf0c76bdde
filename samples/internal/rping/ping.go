// Package rping has the parts of cm_rping that are not worth showing: the flags of rping(1),
// the life of a connection, and the messages.
package rping

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// MessageSize is the length of an advertisement, and of the answer to one.
	MessageSize = 16
	// Smallest and Largest bound the client's data, in bytes.
	Smallest, Largest = 26, 65535
	// DataAt is the offset of the data in the memory of a Ping.
	DataAt = 64
)

// Program has the values of the flags, and the common part of all connections.
type Program struct {
	Server, Client, Persistent, Validate bool
	Size                                 uint64

	Session *sample.Session
	Device  verbs.Device
	RDMA    *rdma.Connections
	Tasks   *rdma.Pool // made with pe.TaskDone and pe.TaskFailed

	verbose     bool
	addr        string
	port, count uint64
}

// New returns a program with the flags' default values.
func New() *Program { return &Program{addr: "0.0.0.0", port: 7174, Size: 64} }

// Flags defines the flags of rping.
func (p *Program) Flags(f *sample.Flags) {
	f.Bool(&p.Server, "s", "server", "be the server")
	f.Bool(&p.Client, "c", "client", "be a client")
	f.Bool(&p.Persistent, "P", "persistent", "serve any number of clients, several at a time, until Ctrl-C")
	f.Bool(&p.verbose, "v", "verbose", "print the data")
	f.Bool(&p.Validate, "V", "validate", "check the data that comes back")
	f.String(&p.addr, "a", "address", "address", "the server's address")
	f.Uint64(&p.port, "p", "port", "port", "the server's port")
	f.Uint64(&p.Size, "S", "size", "bytes", fmt.Sprintf("the client's data, %d to %d bytes", Smallest, Largest))
	f.Uint64(&p.count, "C", "count", "number", "how many rounds; 0: until Ctrl-C")
}

// Address returns the server's address. On a client it prints that the client waits for the
// server.
func (p *Program) Address() string {
	address := net.JoinHostPort(p.addr, strconv.FormatUint(p.port, 10))
	if p.Client {
		p.Session.Say("connecting to %s", address)
	}
	return address
}

// Ping is one connection, as its user data. Its memory holds the message to send, then from
// DataAt on the data; a client's memory also holds the data that comes back.
type Ping struct {
	*Program
	Conn   *rdma.Connection
	Memory *mmap.Map
	key    uint32
	Step   uint64 // messages received
}

// Accept accepts a client, after allocating memory for its messages.
func (p *Program) Accept(q *rdma.ConnectRequest) {
	conn, err := q.Accept(rdma.AcceptConfig{})
	if err != nil {
		_ = q.Reject(nil) // fails if the client has given up
		return
	}
	p.newPing(conn)
}

func (p *Program) newPing(conn *rdma.Connection) *Ping {
	q := &Ping{Program: p, Conn: conn}
	var err error
	if q.Memory, err = mmap.Alloc(p.Device, DataAt+2*Largest, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite); err == nil {
		q.key, err = q.Memory.ExportKey(p.RDMA.PD())
	}
	q.End(err)
	conn.SetUserData(q)
	return q
}

// Changed starts the first round, and frees the memory of connections that have ended.
func (p *Program) Changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	q, _ := conn.UserData().(*Ping)
	switch {
	case state == rdma.Ready && p.Client:
		p.newPing(conn).Begin()
	case state == rdma.Failed:
		p.Fail(conn, err)
	case state == rdma.Closed && q != nil:
		p.Fail(conn, q.unfinished())
		p.RDMA.Fail(q.Memory.Close())
	}
}

// unfinished returns an error if this end knows of a round that is not done.
func (q *Ping) unfinished() error {
	switch rounds := q.Step / 2; {
	case q.Client && (q.count == 0 || rounds < q.count):
		return fmt.Errorf("the server closed the connection after %d rounds", rounds)
	case !q.Client && (rounds == 0 || q.Step%2 == 1):
		return fmt.Errorf("the client closed the connection in round %d", rounds+1)
	}
	return nil
}

// Fail ends the program with the error, unless it is nil. A persistent server prints it, and
// only closes the connection.
func (p *Program) Fail(conn *rdma.Connection, err error) {
	if err == nil {
		return
	}
	if !p.Persistent || p.Client {
		p.RDMA.Fail(fmt.Errorf("%v: %w", conn, err))
		return
	}
	p.Session.Print("%v: %v", conn, err)
	_ = conn.Close() // on the engine's goroutine it does not fail
}

// Begin starts a client's next round, or closes the connection after the last.
func (q *Ping) Begin() {
	round := q.Step / 2
	if q.count > 0 && round == q.count {
		_ = q.Conn.Close() // on the engine's goroutine it does not fail
		return
	}
	data := q.Memory.Bytes()[DataAt:][:q.Size]
	for i := range data {
		data[i] = byte('A' + (int(round)+i)%58)
	}
	copy(data, fmt.Sprintf("rdma-ping-%d: ", round))
	data[len(data)-1] = 0
	q.Advertise(DataAt)
}

// ReturnAt returns the offset of the memory for the data that comes back.
func (q *Ping) ReturnAt() int { return DataAt + Largest }

// Advertise tells the server where the client's memory is.
func (q *Ping) Advertise(offset int) { q.send(q.Memory.Addr()+uint64(offset), uint32(q.Size)) }

// send sends a message.
func (q *Ping) send(addr uint64, length uint32) {
	b := q.Memory.Bytes()
	binary.BigEndian.PutUint64(b, addr)
	binary.BigEndian.PutUint32(b[8:], q.key)
	binary.BigEndian.PutUint32(b[12:], length)
	task, err := q.Tasks.Send(q.Conn, bufinv.Source(q.Memory, 0, MessageSize))
	q.End(q.Submit(task, err, func() {}))
}

// Answer tells the client that its memory has been read or written.
func (q *Ping) Answer() { q.send(0, 0) }

// Submit submits a task, and calls done when it has succeeded.
func (q *Ping) Submit(task *rdma.Task, err error, done func()) error {
	return pe.SubmitOrFree(task, err, func(t *rdma.Task, err error) {
		q.End(t.Free())
		if err == nil {
			done()
		} // otherwise the connection has failed, and reports why
	})
}

// End ends the connection with the error, unless it is nil.
func (q *Ping) End(err error) { q.Fail(q.Conn, err) }

// Show prints data, if the flags ask for it.
func (q *Ping) Show(who string, data []byte) {
	if q.verbose {
		text, _, _ := bytes.Cut(data, []byte{0})
		q.Session.Print("%s ping data: %s", who, text)
	}
}
