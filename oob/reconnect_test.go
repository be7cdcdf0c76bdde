package oob_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// imported is what exchanges have imported, as far as anybody still knows of it.
type imported []weak.Pointer[mmap.Map]

func (l *imported) add(a *oob.Answer) {
	for _, m := range a.Maps {
		*l = append(*l, weak.Make(m))
	}
}

// open counts the maps that were not closed, and known those that are still in memory.
func (l *imported) open() (open, known int) {
	runtime.GC()
	for _, p := range *l {
		m := p.Value()
		if m == nil {
			continue
		}
		if known++; m.Friends(friend.Package{}).Hold() == nil {
			open++
			_ = m.Friends(friend.Package{}).Release()
		}
	}
	return open, known
}

// reconnecter is a client that connects to a server again and again, in one context, and
// writes a byte each time.
type reconnecter struct {
	*program
	way    string
	left   int
	local  *mmap.Map
	a      *oob.Answer
	peer   *oob.Peer
	theirs imported
	closes chan *oob.Peer
}

func (c *reconnecter) connect() {
	var err error
	if c.peer, err = oob.Open(c.way, oob.Config{Name: "client", Peer: "server", Notify: func(string) {}}); err != nil {
		c.rdma.Fail(err)
		return
	}
	c.peer.Exchange(context.Background(), c.rdma, oob.Offer{Maps: []*mmap.Map{c.local}}, func(a *oob.Answer, err error) {
		if err == nil {
			c.a = a
			c.theirs.add(a)
		}
		c.rdma.Fail(err)
	})
}

func (c *reconnecter) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	c.rdma.Fail(err)
	switch state {
	case rdma.Ready:
		shared, err := c.rdma.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
		assert.NoError(c.t, err)
		task, err := shared.Write(conn, bufinv.Source(c.local, 0, 1), bufinv.Target(c.a.Maps[0], 0, 1))
		c.rdma.Fail(pe.SubmitOrFree(task, err, func(t *rdma.Task, err error) {
			c.rdma.Fail(errors.Join(err, t.Free(), conn.Close()))
		}))
	case rdma.Closed:
		assert.NoError(c.t, c.a.Maps[0].Friends(friend.Package{}).Hold(), "it is closed after the callback")
		assert.NoError(c.t, c.a.Maps[0].Friends(friend.Package{}).Release())
		c.closes <- c.peer
		c.a, c.peer = nil, nil
		if c.left--; c.left == 0 {
			c.rdma.Stop()
		} else if c.rdma.State() == pe.Running {
			c.connect()
		}
	}
}

// Neither a server nor a client keeps anything of connections that have ended.
func TestReconnectingLeavesNothing(t *testing.T) {
	const times = 200
	var mu sync.Mutex // the server has its own goroutine
	var clients imported
	way, _, stop := newServer(t, waysToTest[0], 2, "", func(_ string, a *oob.Answer) error {
		mu.Lock()
		defer mu.Unlock()
		clients.add(a)
		return nil
	})
	defer stop()
	c := &reconnecter{program: newProgram(t, must(oob.Parse(way)), oob.Config{Name: "client", Peer: "server"}, rdma.Config{MaxConnections: 2}), way: way, left: times}
	var err error
	c.local, err = mmap.Alloc(c.dev, 64, mmap.LocalReadWrite|mmap.RemoteRead)
	require.NoError(t, err)
	c.closes = make(chan *oob.Peer, times)
	c.rdma.OnConnection(c.changed)
	c.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			c.connect()
		}
		if next == pe.Stopping { // the context is not Idle yet
			open, known := c.theirs.open()
			assert.LessOrEqual(t, open, 1)
			assert.Less(t, known, times/10)
		}
	})
	closed := make(chan bool)
	go func() {
		defer close(closed)
		for p := range c.closes {
			assert.NoError(t, p.Close(nil))
		}
	}()
	require.NoError(t, c.rdma.Start())
	require.NoError(t, c.engine.Run(forever(t)))
	require.NoError(t, c.program.peer.Close(nil))
	close(c.closes)
	<-closed
	assert.Len(t, c.theirs, times)

	mu.Lock()
	defer mu.Unlock()
	// The server may not have noticed the end of the last ones yet.
	require.Len(t, clients, times)
	open, known := clients.open()
	assert.LessOrEqual(t, open, 2)
	assert.Less(t, known, times/10)
}
