package ping

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// stage is how far a Client has come.
type stage int

const (
	stageConnect stage = iota
	stageSend          // the message has not arrived
	stageRead          // the server has not read
	stageWrite         // the server has not written
)

var stages = [...]string{"connect", "send", "read", "write"}

// String names the stage.
func (s stage) String() string { return stages[s] }

var errData = errors.New("the data that came back are not those that were sent")

// Client pings a server. Its callbacks run on the engine's goroutine.
type Client struct {
	dev    verbs.Device
	rdma   *rdma.Connections
	tasks  *rdma.Pool
	addr   string
	dial   rdma.DialConfig
	conn   *rdma.Connection
	source *mmap.Map // what the server reads; behind it the message
	sink   *mmap.Map // what the server writes to

	began   time.Time // of what is under way
	Connect time.Duration
	stage   stage
	round   int
	size    int
	sent    bool // the message of the stage has been acknowledged
	early   bool // its answer has come before that
	ended   bool

	// OnConnected is called when the connection is Ready.
	OnConnected func()
	// OnRound is called when a round is complete, with the time that it took. It begins the
	// next one, or stops.
	OnRound func(d time.Duration)
	// OnFailure is called once, with what was under way.
	OnFailure func(during stage, err error)
}

// NewClient makes a client that dials when the engine runs.
func NewClient(dev verbs.Device, engine *pe.Engine, addr string, dial rdma.DialConfig, cfg rdma.Config) (*Client, error) {
	cfg.Name, cfg.Engine, cfg.Permissions = "ping", engine, mmap.RemoteRead
	c := &Client{dev: dev, addr: addr, dial: dial}
	var err error
	if c.rdma, err = rdma.New(dev, cfg); err != nil {
		return nil, err
	}
	if c.tasks, err = c.rdma.SharedPool(); err != nil {
		return nil, err
	}
	if err = c.rdma.Receive(2, messageLen, func(*rdma.Message) { c.answered() }); err != nil {
		return nil, err
	}
	if c.source, err = mmap.Alloc(dev, largest+messageLen, mmap.LocalReadWrite|mmap.RemoteRead); err != nil {
		return nil, err
	}
	if c.sink, err = mmap.Alloc(dev, largest, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return nil, err
	}
	c.rdma.OnConnection(c.changed)
	c.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			c.began = time.Now()
			c.conn, err = c.rdma.Dial(addr, dial)
			c.fail(err)
		}
	})
	return c, c.rdma.Start()
}

// Connection is the connection, once it is dialled.
func (c *Client) Connection() *rdma.Connection { return c.conn }

// Verbena reports whether the server is verbena ping, which takes data of any size.
func (c *Client) Verbena() bool {
	return strings.TrimRight(string(c.conn.AcceptData()), "\x00") == greeting
}

// Stop ends the connection, and the context.
func (c *Client) Stop() {
	c.ended = true
	_ = c.rdma.Stop()
}

// fail reports the first failure, and stops. nil does nothing. What fails because the
// engine is stopping the context, which was interrupted, is no failure.
func (c *Client) fail(err error) {
	if s := c.rdma.State(); s == pe.Stopping || s == pe.Idle {
		c.ended = true
	}
	if err == nil || c.ended {
		return
	}
	c.Stop()
	c.OnFailure(c.stage, err)
}

func (c *Client) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	switch state {
	case rdma.Ready:
		c.Connect = time.Since(c.began)
		c.OnConnected()
	case rdma.Failed, rdma.Closed:
		c.fail(err)
	}
}

// Round begins a round with data of so many bytes.
func (c *Client) Round(size int) {
	c.round++
	c.size, c.began = size, time.Now()
	fill(c.source.Bytes()[:size], c.round)
	clear(c.sink.Bytes()[:size])
	c.advertise(c.source, stageRead)
}

// advertise sends the message for a stage.
func (c *Client) advertise(m *mmap.Map, next stage) {
	key, err := m.ExportKey(c.rdma.PD())
	if err != nil {
		c.fail(err)
		return
	}
	(&memory{m.Addr(), key, uint32(c.size)}).put(c.source.Bytes()[largest:])
	c.stage, c.sent, c.early = stageSend, false, false
	task, err := c.tasks.Send(c.conn, bufinv.Source(c.source, largest, messageLen))
	c.fail(pe.SubmitNew(task, err, func(t *rdma.Task, err error) {
		_ = t.Free()
		if err != nil {
			c.fail(err)
			return
		}
		c.stage, c.sent = next, true
		if c.early {
			c.answered()
		}
	}))
}

// answered goes on after a message of the server.
func (c *Client) answered() {
	switch {
	case c.ended:
	case !c.sent:
		c.early = true
	case c.stage == stageRead:
		c.advertise(c.sink, stageWrite)
	case c.stage == stageWrite:
		c.sent = false
		if !bytes.Equal(c.source.Bytes()[:c.size], c.sink.Bytes()[:c.size]) {
			c.fail(fmt.Errorf("round %d of %d bytes: %w", c.round, c.size, errData))
			return
		}
		c.OnRound(time.Since(c.began))
	}
}

// Close gives back what the client has taken, when the engine no longer runs.
func (c *Client) Close() error {
	return errors.Join(c.rdma.Close(), c.source.Close(), c.sink.Close())
}

// Close gives back what the server has taken, when the engine no longer runs.
func (s *Server) Close() error { return s.rdma.Close() }

// Stop ends the server.
func (s *Server) Stop() { _ = s.rdma.Stop() }
