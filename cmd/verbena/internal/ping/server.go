package ping

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// acceptData is the private data with which a Server accepts. A client that receives it may use
// more memory than with rping.
const acceptData = "verbena ping 1"

// Server answers clients of verbena ping and rping.
type Server struct {
	dev   verbs.Device
	rdma  *rdma.Connections
	tasks *rdma.Pool
	log   zerolog.Logger
}

// MaxClients is how many clients a Server serves at a time.
const MaxClients = 64

// NewServer makes a server, and starts it. It listens once the engine runs.
func NewServer(dev verbs.Device, engine *pe.Engine, log zerolog.Logger) (*Server, error) {
	s := &Server{dev: dev, log: log}
	var err error
	if s.rdma, err = rdma.New(dev, rdma.Config{Name: "ping server", Engine: engine, MaxConnections: MaxClients}); err != nil {
		return nil, err
	}
	if s.tasks, err = s.rdma.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task]); err != nil {
		return nil, err
	}
	if err = s.rdma.Receive(4*MaxClients, messageLen, s.received); err != nil {
		return nil, err
	}
	s.rdma.OnConnection(s.changed)
	return s, s.rdma.Start()
}

// Listen listens on an address, as rdma.Connections.Listen does, until stop is called, which does not
// wait. The engine must run, on another goroutine. Listen waits for it until ctx ends, which must be when the
// engine no longer runs.
func (s *Server) Listen(ctx context.Context, addr string) (at netip.AddrPort, stop func(), err error) {
	if err := await.State(ctx, s.rdma, pe.Running); err != nil {
		return at, nil, err
	}
	engine := s.rdma.Engine()
	var l *rdma.Listener
	err = await.Func(ctx, engine, func() (err error) {
		if l, err = s.rdma.Listen(addr, rdma.ListenConfig{OnRequest: s.request}); err == nil {
			at = l.Addr()
		}
		return err
	})
	return at, func() { _ = engine.Do(func() { _ = l.Close() }) }, err
}

// serverConn is a connected client.
type serverConn struct {
	server *Server
	conn   *rdma.Connection
	data   *mmap.Map // the data that was read, to be written back, followed by the send buffer
	remote *mmap.Map // the memory that the last message advertised
	write  bool      // the next advertisement is for a write
	rounds int
}

func (s *Server) request(q *rdma.ConnectRequest) {
	conn, err := q.Accept(rdma.AcceptConfig{PrivateData: []byte(acceptData)})
	if err != nil {
		s.log.Warn().Err(err).Stringer("client", q.RemoteAddr()).Msg("a client was rejected")
		reason := "the server cannot accept the connection"
		if errors.Is(err, rdma.ErrFull) {
			reason = "too many clients"
		}
		_ = q.Reject([]byte(reason)) // fails if the client has given up
		return
	}
	v := &serverConn{server: s, conn: conn}
	if v.data, err = mmap.Alloc(s.dev, largest+messageLen, mmap.LocalReadWrite); err != nil {
		s.log.Warn().Err(err).Msg("lost a client")
		_ = conn.Close()
		return
	}
	conn.SetUserData(v)
}

func (s *Server) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	v, _ := conn.UserData().(*serverConn)
	switch state {
	case rdma.Ready:
		s.log.Info().Stringer("client", conn.PeerAddr()).Msg("connected")
	case rdma.Failed:
		s.log.Warn().Err(err).Msg("lost a client")
		_ = conn.Close()
	case rdma.Closed:
		if v == nil {
			return
		}
		s.log.Info().Stringer("client", conn.PeerAddr()).Int("rounds", v.rounds).Msg("disconnected")
		v.release()
	}
}

// release frees the memory of a client that has gone.
func (v *serverConn) release() {
	for _, m := range []*mmap.Map{v.data, v.remote} {
		if m != nil {
			_ = m.Close() // no task uses it any more
		}
	}
	v.data, v.remote = nil, nil
}

func (s *Server) received(m *rdma.Message) {
	v, ok := m.Connection().UserData().(*serverConn)
	if !ok || v.conn.State() != rdma.Ready {
		return
	}
	if err := v.advertised(m.Bytes()); err != nil {
		s.log.Warn().Err(err).Stringer("client", v.conn.PeerAddr()).Msg("disconnecting a client")
		_ = v.conn.Close()
	}
}

// advertised handles an advertisement of the client.
func (v *serverConn) advertised(b []byte) (err error) {
	if v.remote != nil {
		return fmt.Errorf("%w: it came before the previous one was answered", errMessage)
	}
	m, err := parse(b)
	if err != nil {
		return err
	}
	if v.remote, err = mmap.FromKey(v.server.dev, m.addr, int(m.length), m.rkey, mmap.RemoteRead|mmap.RemoteWrite); err != nil {
		return err
	}
	n := int(m.length)
	var task *rdma.Task
	if v.write {
		task, err = v.server.tasks.Write(v.conn, bufinv.Source(v.data, 0, n), bufinv.Target(v.remote, 0, n))
	} else {
		task, err = v.server.tasks.Read(v.conn, bufinv.Source(v.remote, 0, n), bufinv.Target(v.data, 0, n))
	}
	return pe.SubmitOrFree(task, err, v.transferred)
}

// transferred answers the client after its data has been read or written.
func (v *serverConn) transferred(t *rdma.Task, err error) {
	_ = t.Free()
	if err != nil {
		return // the connection has failed
	}
	_ = v.remote.Close()
	v.remote = nil
	if v.write {
		v.rounds++
	}
	v.write = !v.write
	task, err := v.server.tasks.Send(v.conn, bufinv.Source(v.data, largest, messageLen))
	if err = pe.SubmitOrFree(task, err, func(t *rdma.Task, _ error) { _ = t.Free() }); err != nil {
		_ = v.conn.Close()
	}
}
