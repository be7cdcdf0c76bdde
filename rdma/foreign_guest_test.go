//go:build linux && cgo && verbs

package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// foreignTool is a pair of programs of librdmacm's, of which one end is replaced by a
// context.
type foreignTool struct {
	name               string
	server, client     []string // ADDR and PORT are replaced
	stays              bool     // the server does not end
	ipv4               bool     // the server listens on IPv4 only
	full               bool     // make test does not wait for it
	connections        int
	toServer, toClient int // messages of a connection
	size               int // of each
}

var foreignTools = []foreignTool{
	{
		name:   "rdma_server, rdma_client",
		server: []string{"rdma_server", "-s", "ADDR", "-p", "PORT"}, client: []string{"rdma_client", "-s", "ADDR", "-p", "PORT"},
		connections: 1, toServer: 1, toClient: 1, size: 16,
	},
	{
		name:   "rdma_xserver, rdma_xclient",
		server: []string{"rdma_xserver", "-p", "PORT", "-c", "r"}, client: []string{"rdma_xclient", "-s", "ADDR", "-p", "PORT", "-c", "r"},
		connections: 1, toServer: 1, size: 16, ipv4: true,
	},
	{
		name:        "ucmatose",
		server:      []string{"ucmatose", "-b", "ADDR", "-p", "PORT", "-c", "4", "-C", "10", "-S", "1000"},
		client:      []string{"ucmatose", "-s", "ADDR", "-p", "PORT", "-c", "4", "-C", "10", "-S", "1000"},
		connections: 4, toServer: 10, toClient: 10, size: 1000,
	},
	{
		name:        "cmtime",
		server:      []string{"cmtime", "-b", "ADDR", "-p", "PORT", "-c", "100"},
		client:      []string{"cmtime", "-s", "ADDR", "-p", "PORT", "-c", "100"},
		connections: 100, stays: true, full: true,
	},
}

// command is one of the tool's, for an address.
func (f *foreignTool) command(words []string, addr netip.AddrPort) (*exec.Cmd, *bytes.Buffer) {
	var args []string
	for _, w := range words {
		args = append(args, strings.NewReplacer("ADDR", addr.Addr().String(), "PORT", strconv.Itoa(int(addr.Port()))).Replace(w))
	}
	cmd := exec.Command(args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

// contextEnd is the context in place of one end of a tool.
type contextEnd struct {
	t       *testing.T
	tool    *foreignTool
	engine  *pe.Engine
	ctx     *rdma.Connections
	sends   *rdma.Pool
	payload *mmap.Map
	ready   int
	ended   int
	failed  error
	left    map[*rdma.Connection]int // messages to be sent and received
	client  bool
	send    int // messages of each connection
}

func newContextEnd(t *testing.T, dev verbs.Device, tool *foreignTool, client bool) *contextEnd {
	e := &contextEnd{t: t, tool: tool, engine: pe.New(pe.Config{}), left: make(map[*rdma.Connection]int), client: client, send: tool.toClient}
	if client {
		e.send = tool.toServer
	}
	e.ctx = must(rdma.New(dev, rdma.Config{Engine: e.engine, MaxConnections: tool.connections}))
	t.Cleanup(func() {
		err := e.ctx.Close()
		for range 3 { // the kernel asks a peer that has ended 16 times, every 4.3 s, if its answer is lost
			if errors.Is(err, pe.ErrTimeout) {
				err = e.ctx.Close()
			}
		}
		require.NoError(t, err)
		require.NoError(t, e.engine.Close())
	})
	if n := tool.toServer + tool.toClient; n > 0 {
		e.sends = must(e.ctx.Pool(tool.connections*n, pe.TaskDone, pe.TaskFailed))
		require.NoError(t, e.ctx.Receive(tool.connections*n, tool.size, func(m *rdma.Message) {
			assert.Equal(t, tool.size, m.Length())
			e.countMessage(m.Connection())
		}))
		e.payload = must(mmap.Alloc(dev, tool.size, mmap.LocalReadWrite))
		t.Cleanup(func() { require.NoError(t, e.payload.Close()) })
	}
	e.ctx.OnConnection(func(conn *rdma.Connection, s rdma.ConnectionState, err error) {
		switch s {
		case rdma.Connecting:
			e.left[conn] = tool.toServer + tool.toClient
		case rdma.Ready:
			e.ready++
			e.sendAll(conn)
		case rdma.Failed:
			e.failed = errors.Join(e.failed, err)
			_ = conn.Close()
		case rdma.Closed:
			e.ended++
			assert.Zero(t, e.left[conn], "messages of %v", conn)
		}
	})
	require.NoError(t, e.ctx.Start())
	return e
}

// sendAll sends all messages of a connection.
func (e *contextEnd) sendAll(conn *rdma.Connection) {
	for range e.send {
		task, err := e.sends.Send(conn, bufinv.Source(e.payload, 0, e.tool.size))
		require.NoError(e.t, pe.SubmitOrFree(task, err, func(task *rdma.Task, err error) {
			assert.NoError(e.t, task.Free())
			switch {
			case errors.Is(err, rdma.ErrPeerClosed), errors.Is(err, rdma.ErrFlushed):
				// A tool disconnects when it has the message, and its queue pair may acknowledge nothing more.
				// Whether it had all it says by its exit code.
				e.left[conn]--
			case assert.NoError(e.t, err):
				e.countMessage(conn)
			}
		}))
	}
	if e.tool.toServer == 0 && e.client && e.ready == e.tool.connections {
		for _, conn := range e.ctx.List() {
			require.NoError(e.t, conn.Close())
		}
	}
}

// countMessage notes a message that was sent or received. After the last the connection is closed,
// unless the peer is faster.
func (e *contextEnd) countMessage(conn *rdma.Connection) {
	if e.left[conn]--; e.left[conn] == 0 {
		require.NoError(e.t, conn.Close())
	}
}

// run drives the end until all connections have come and gone.
func (e *contextEnd) run() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Minute)
	defer cancel()
	for e.ended < e.tool.connections {
		require.NoError(e.t, ctx.Err(), "%d are Ready, %d have ended: %v", e.ready, e.ended, e.failed)
		e.engine.Progress()
	}
	require.NoError(e.t, e.failed)
	require.Equal(e.t, e.tool.connections, e.ready)
}

// The kernel's connection manager, by the programs of librdmacm, each as server and as
// client, beside a context on rxe and on the software device.
func TestGuestForeignPrograms(t *testing.T) {
	requireGuest(t)
	for _, d := range []struct {
		name   string
		open   func(*testing.T) verbs.Device
		v4, v6 string
	}{
		{"soft", openFarSoft, "10.0.0.2", "fd00::2"},
		{"rxe", openAdapter, "10.0.0.1", "fd00::1"},
	} {
		for i, family := range []struct{ name, ours, theirs string }{{"IPv4", d.v4, "10.0.0.1"}, {"IPv6", d.v6, "fd00::1"}} {
			for _, tool := range foreignTools {
				if (i > 0 || tool.full) && testing.Short() {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, %s, it serves", d.name, family.name, tool.name), func(t *testing.T) {
					if tool.ipv4 && i > 0 {
						t.Skip("it listens on IPv4 only")
					}
					dev := d.open(t)
					at := netip.AddrPortFrom(netip.MustParseAddr(family.theirs), 7471)
					cmd, out := tool.command(tool.server, at)
					require.NoError(t, cmd.Start())
					defer func() { _ = cmd.Process.Kill() }()
					e := newContextEnd(t, dev, &tool, true)
					for range tool.connections {
						must(e.ctx.Dial(at.String(), rdma.DialConfig{}))
					}
					e.run()
					if tool.stays {
						require.NoError(t, cmd.Process.Kill())
						_ = cmd.Wait()
						return
					}
					assert.NoError(t, cmd.Wait(), "%s", out)
				})
				t.Run(fmt.Sprintf("%s, %s, %s, it asks", d.name, family.name, tool.name), func(t *testing.T) {
					dev := d.open(t)
					e := newContextEnd(t, dev, &tool, false)
					at := netip.AddrPortFrom(netip.MustParseAddr(family.ours), 7471)
					must(e.ctx.Listen(at.String(), rdma.ListenConfig{}))
					cmd, out := tool.command(tool.client, at)
					require.NoError(t, cmd.Start())
					defer func() { _ = cmd.Process.Kill() }()
					e.run()
					assert.NoError(t, cmd.Wait(), "%s", out)
				})
			}
		}
	}
}
