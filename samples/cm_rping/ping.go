package main

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

// program is what the flags say, and what all connections have in common.
type program struct {
	server, client, persistent, verbose, validate bool
	addr                                          string
	port, size, count                             uint64

	dev    verbs.Device
	rdma   *rdma.Connections
	shared *rdma.Pool
	print  func(format string, args ...any)
	say    func(format string, args ...any) // what it waits for
}

// flags are those of rping.
func (p *program) flags(f *sample.Flags) {
	f.Bool(&p.server, "s", "server", "be the server")
	f.Bool(&p.client, "c", "client", "be a client")
	f.Bool(&p.persistent, "P", "persistent", "serve one client after the other, and several at a time, until Ctrl-C")
	f.Bool(&p.verbose, "v", "verbose", "print the data")
	f.Bool(&p.validate, "V", "validate", "check what has come back")
	f.String(&p.addr, "a", "address", "ADDR", "the server's address")
	f.Uint64(&p.port, "p", "port", "PORT", "the server's port")
	f.Uint64(&p.size, "S", "size", "BYTES", fmt.Sprintf("the client's data, %d to %d bytes", smallest, largest))
	f.Uint64(&p.count, "C", "count", "N", "how many rounds; 0: until Ctrl-C")
}

// address is the server's. A client says that it waits for it.
func (p *program) address() string {
	address := net.JoinHostPort(p.addr, strconv.FormatUint(p.port, 10))
	if p.client {
		p.say("connecting to %s", address)
	}
	return address
}

// ping is one connection, whose user data it is. Its memory is for the message that is sent
// and, from dataAt on, for the data; a client's, for what comes back, too.
type ping struct {
	*program
	conn   *rdma.Connection
	memory *mmap.Map
	key    uint32
	step   uint64 // messages that have come
}

// accept takes a client, and has memory for it before its first message can come.
func (p *program) accept(q *rdma.ConnectRequest) {
	conn, err := q.Accept(rdma.AcceptConfig{})
	if err != nil {
		_ = q.Reject(nil) // it may have given up
		return
	}
	p.newPing(conn)
}

func (p *program) newPing(conn *rdma.Connection) *ping {
	q := &ping{program: p, conn: conn}
	var err error
	if q.memory, err = mmap.Alloc(p.dev, dataAt+2*largest, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite); err == nil {
		q.key, err = q.memory.ExportKey(p.rdma.PD())
	}
	q.end(err)
	conn.SetUserData(q)
	return q
}

// changed begins with the first round, and frees the memory of connections that have ended.
func (p *program) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	q, _ := conn.UserData().(*ping)
	switch {
	case state == rdma.Ready && p.client:
		p.newPing(conn).begin()
	case state == rdma.Failed:
		p.fail(conn, err)
	case state == rdma.Closed && q != nil:
		p.fail(conn, q.missing())
		p.rdma.Fail(q.memory.Close())
	}
}

// missing is an error unless all rounds are done, as far as this end knows how many there are.
func (q *ping) missing() error {
	switch rounds := q.step / 2; {
	case q.client && (q.count == 0 || rounds < q.count):
		return fmt.Errorf("the server has left after %d rounds", rounds)
	case !q.client && (rounds == 0 || q.step%2 == 1):
		return fmt.Errorf("the client has left in round %d", rounds+1)
	}
	return nil
}

// fail ends the program with an error, if there is one; a persistent server, the connection.
func (p *program) fail(conn *rdma.Connection, err error) {
	if err == nil {
		return
	}
	if !p.persistent || p.client {
		p.rdma.Fail(fmt.Errorf("%v: %w", conn, err))
		return
	}
	p.print("%v: %v", conn, err)
	_ = conn.Close() // on the engine's goroutine it does not fail
}

// begin begins a client's next round, or ends with the last.
func (q *ping) begin() {
	round := q.step / 2
	if q.count > 0 && round == q.count {
		_ = q.conn.Close() // on the engine's goroutine it does not fail
		return
	}
	data := q.memory.Bytes()[dataAt:][:q.size]
	for i := range data {
		data[i] = byte('A' + (int(round)+i)%58)
	}
	copy(data, fmt.Sprintf("rdma-ping-%d: ", round))
	data[len(data)-1] = 0
	q.advertise(dataAt)
}

// back is where data comes back to.
func (q *ping) back() int { return dataAt + largest }

// advertise tells the server where the client's memory is.
func (q *ping) advertise(offset int) { q.send(q.memory.Addr()+uint64(offset), uint32(q.size)) }

// send sends a message.
func (q *ping) send(addr uint64, length uint32) {
	b := q.memory.Bytes()
	binary.BigEndian.PutUint64(b, addr)
	binary.BigEndian.PutUint32(b[8:], q.key)
	binary.BigEndian.PutUint32(b[12:], length)
	task, err := q.shared.Send(q.conn, bufinv.Source(q.memory, 0, messageSize))
	q.end(q.submit(task, err, func() {}))
}

// answer tells the client that its memory was read, or written.
func (q *ping) answer() { q.send(0, 0) }

// submit submits a task. done is called when it has succeeded.
func (q *ping) submit(task *rdma.Task, err error, done func()) error {
	return pe.SubmitNew(task, err, func(t *rdma.Task, err error) {
		q.end(t.Free())
		if err == nil {
			done()
		} // otherwise the connection has ended, which says why
	})
}

// end ends the connection with an error, if there is one.
func (q *ping) end(err error) { q.fail(q.conn, err) }

func (q *ping) show(who string, data []byte) {
	if q.verbose {
		text, _, _ := bytes.Cut(data, []byte{0})
		q.print("%s ping data: %s", who, text)
	}
}
