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

// stage is the step of a round that a Client has reached.
type stage int

const (
	stageConnect stage = iota
	stageSend          // waiting for the message to be acknowledged
	stageRead          // waiting for the server to read
	stageWrite         // waiting for the server to write
)

var stages = [...]string{"connect", "send", "read", "write"}

// String names the stage.
func (s stage) String() string { return stages[s] }

var errData = errors.New("the data that came back differs from the data sent")

// Client pings a server. Its callbacks run on the engine's goroutine.
type Client struct {
	dev    verbs.Device
	rdma   *rdma.Connections
	tasks  *rdma.Pool
	addr   string
	dial   rdma.DialConfig
	conn   *rdma.Connection
	source *mmap.Map // what the server reads, followed by the send buffer
	sink   *mmap.Map // what the server writes into

	began         time.Time // start of the connection or the round
	Connect       time.Duration
	stage         stage
	round         int
	size          int
	sent          bool // the message has been acknowledged
	answeredEarly bool // the answer arrived before the acknowledgement
	ended         bool

	// OnConnected is called when the connection is Ready.
	OnConnected func()
	// OnRound is called when a round is complete, with its duration. It must begin the next
	// round, or stop.
	OnRound func(d time.Duration)
	// OnFailure is called once, with the stage that failed.
	OnFailure func(during stage, err error)
}

// NewClient makes a client, which dials when the engine runs.
func NewClient(dev verbs.Device, engine *pe.Engine, addr string, dial rdma.DialConfig, cfg rdma.Config) (*Client, error) {
	cfg.Name, cfg.Engine, cfg.Permissions = "ping", engine, mmap.RemoteRead
	c := &Client{dev: dev, addr: addr, dial: dial}
	var err error
	if c.rdma, err = rdma.New(dev, cfg); err != nil {
		return nil, err
	}
	if c.tasks, err = c.rdma.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task]); err != nil {
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

// Connection is the connection; nil before the client dials.
func (c *Client) Connection() *rdma.Connection { return c.conn }

// Verbena reports whether the server is verbena ping, which accepts data of any size up to
// largest.
func (c *Client) Verbena() bool {
	return strings.TrimRight(string(c.conn.AcceptData()), "\x00") == acceptData
}

// Stop ends the connection and the context.
func (c *Client) Stop() {
	c.ended = true
	_ = c.rdma.Stop()
}

// fail reports the first failure, and stops. It ignores nil, and errors that follow because
// the engine is stopping the context after an interrupt.
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

// Round begins a round with data of size bytes.
func (c *Client) Round(size int) {
	c.round++
	c.size, c.began = size, time.Now()
	fill(c.source.Bytes()[:size], c.round)
	clear(c.sink.Bytes()[:size])
	c.advertise(c.source, stageRead)
}

// advertise sends the message that advertises memory for the next stage.
func (c *Client) advertise(m *mmap.Map, next stage) {
	key, err := m.ExportKey(c.rdma.PD())
	if err != nil {
		c.fail(err)
		return
	}
	(&memory{m.Addr(), key, uint32(c.size)}).put(c.source.Bytes()[largest:])
	c.stage, c.sent, c.answeredEarly = stageSend, false, false
	task, err := c.tasks.Send(c.conn, bufinv.Source(c.source, largest, messageLen))
	c.fail(pe.SubmitOrFree(task, err, func(t *rdma.Task, err error) {
		_ = t.Free()
		if err != nil {
			c.fail(err)
			return
		}
		c.stage, c.sent = next, true
		if c.answeredEarly {
			c.answered()
		}
	}))
}

// answered goes on after an answer of the server.
func (c *Client) answered() {
	switch {
	case c.ended:
	case !c.sent:
		c.answeredEarly = true
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

// Close frees the client's resources. The engine must no longer run.
func (c *Client) Close() error {
	return errors.Join(c.rdma.Close(), c.source.Close(), c.sink.Close())
}

// Close frees the server's resources. The engine must no longer run.
func (s *Server) Close() error { return s.rdma.Close() }
