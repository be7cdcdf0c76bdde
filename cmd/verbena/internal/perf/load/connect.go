package load

import (
	"bytes"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
)

// errWrongEnds: the peer's Ends do not fit the plan.
var errWrongEnds = fmt.Errorf("%w: its connections do not match the plan", control.ErrProtocol)

// Offer passes to send, in parts, what the peer needs to connect. If the connection manager
// makes the connections, the server listens.
func (s *Endpoint) Offer(send func(*control.End) error) error {
	for i, w := range s.workers {
		e := &control.End{Engine: i}
		if rights(s.plan.Test.Op) != 0 {
			var err error
			if e.Memory, err = w.local.Export(s.cfg.Device); err != nil {
				return err
			}
		}
		if s.plan.CM && s.cfg.Server {
			port, err := w.listen()
			if err != nil {
				return err
			}
			e.Port = port
		}
		if !s.plan.CM {
			for _, f := range w.flows {
				conn, desc, err := w.rdma.Export()
				if err != nil {
					return err
				}
				f.conn = conn
				if len(e.Connections) == control.EndConnections {
					if err := send(e); err != nil {
						return err
					}
					e = &control.End{Engine: i}
				}
				e.Connections = append(e.Connections, desc)
			}
		}
		e.Last = i == len(s.workers)-1
		if err := send(e); err != nil {
			return err
		}
	}
	return nil
}

// Connect takes the peer's Ends from receive, connects to them, and starts driving the
// engines. dial is the address of the server, for a client that connects through the
// connection manager.
func (s *Endpoint) Connect(receive func() (*control.End, error), dial DialTo) error {
	connected := 0 // connections of worker i that have been connected
	for i := 0; i < len(s.workers); {
		e, err := receive()
		if err != nil {
			return err
		}
		w := s.workers[i]
		first := connected == 0
		if e.Engine != i || first && !s.plan.CM && len(e.Connections) == 0 {
			return errWrongEnds
		}
		if err := w.connect(e, first, connected, dial); err != nil {
			return err
		}
		connected += len(e.Connections)
		if s.plan.CM || connected == len(w.flows) {
			i, connected = i+1, 0
		}
		if e.Last != (i == len(s.workers)) {
			return errWrongEnds
		}
	}
	s.drive()
	return nil
}

// DialTo is the server's host and the local address, for a client that dials the server's
// engines.
type DialTo struct {
	Host  string
	Local netip.Addr
}

// connect connects to a part of the peer's Ends.
func (w *worker) connect(e *control.End, first bool, connected int, dial DialTo) (err error) {
	if first != (e.Memory != nil) && rights(w.plan.Test.Op) != 0 || len(e.Connections) > len(w.flows)-connected {
		return errWrongEnds
	}
	if e.Memory != nil {
		if w.remote, err = mmap.Import(w.endpoint.cfg.Device, e.Memory); err != nil {
			return err
		}
		// Smaller memory would fail tasks. Memory beyond the layout is not used.
		if int64(w.remote.Len()) < w.layout.Size() {
			return fmt.Errorf("%w: its memory has %d bytes, want at least %d", control.ErrProtocol, w.remote.Len(), w.layout.Size())
		}
	}
	for i, desc := range e.Connections {
		if err := w.flows[connected+i].conn.Connect(desc); err != nil {
			return err
		}
	}
	if w.plan.CM && !w.server {
		return w.dial(net.JoinHostPort(dial.Host, strconv.Itoa(int(e.Port))), dial.Local)
	}
	return nil
}

// dial dials all connections of an engine.
func (w *worker) dial(addr string, local netip.Addr) (err error) {
	for i, f := range w.flows {
		data := binary.BigEndian.AppendUint32(bytes.Clone(w.endpoint.cfg.Token), uint32(i))
		if f.conn, err = w.rdma.Dial(addr, rdma.DialConfig{PrivateData: data, LocalAddr: local, Timeout: w.endpoint.cfg.Timeout}); err != nil {
			return err
		}
	}
	return nil
}

// listen accepts the connections of this client only.
func (w *worker) listen() (port uint16, err error) {
	l, err := w.rdma.Listen(":0", rdma.ListenConfig{Backlog: len(w.flows), OnRequest: func(q *rdma.ConnectRequest) {
		if err := w.accept(q); err != nil {
			_ = q.Reject([]byte("verbena perf: " + err.Error()[:min(len(err.Error()), 100)])) // fails if the client has given up
		}
	}})
	if err != nil {
		return 0, err
	}
	return l.Addr().Port(), nil
}

func (w *worker) accept(q *rdma.ConnectRequest) (err error) {
	data := q.PrivateData()
	if len(data) < control.TokenLen+4 || subtle.ConstantTimeCompare(data[:control.TokenLen], w.endpoint.cfg.Token) != 1 {
		return errors.New("another client is being served")
	}
	i := binary.BigEndian.Uint32(data[control.TokenLen:])
	if int64(i) >= int64(len(w.flows)) || w.flows[i].conn != nil {
		return errWrongEnds
	}
	w.flows[i].conn, err = q.Accept(rdma.AcceptConfig{})
	return err
}
