package oob_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// Where much is lost, the connection manager repeats what an exchange needs.
func TestCMOnALossyNetwork(t *testing.T) { simulate(t, 5, testCMOnALossyNetwork) }

func testCMOnALossyNetwork(s *sim.Sim) {
	t := s
	const times, writes = 2, 10
	s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Microsecond, Loss: 0.25})
	at := "cm:" + simCM(s, "server")
	dev := s.Host("server").Device()
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 2})
	require.NoError(t, err)
	memory, err := mmap.Alloc(dev, 64, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(t, err)
	l, err := oob.Listen(at, oob.Config{Name: "server"})
	require.NoError(t, err)
	// The server sends nothing more, which would be acknowledged too.
	require.NoError(t, l.Serve(r, oob.Offer{Maps: []*mmap.Map{memory}}, func(string, *oob.Answer) error { return nil }))
	r.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if state == rdma.Failed {
			assert.NotErrorIs(t, err, rdma.ErrLocalProtection)
		}
	})
	require.NoError(t, r.Start())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx) }()

	for range times {
		p := newProgram(t, must(oob.Parse(at)), oob.Config{Name: "client", Peer: "server"}, rdma.Config{EndWithLastConnection: true, SilenceTimeout: time.Minute})
		local, err := mmap.Alloc(p.dev, 64, mmap.LocalReadWrite)
		require.NoError(t, err)
		left := writes
		p.rdma.OnStateChange(func(_, next pe.State) {
			if next != pe.Starting {
				return
			}
			p.peer.Exchange(context.Background(), p.rdma, oob.Offer{}, func(a *oob.Answer, err error) {
				p.rdma.Fail(err)
				if err != nil {
					return
				}
				shared, err := p.rdma.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
				p.rdma.Fail(err)
				var again func(task *rdma.Task, err error)
				write := func() {
					task, err := shared.Write(a.Connections[0], bufinv.Source(local, 0, 1), bufinv.Target(a.Maps[0], 0, 1))
					p.rdma.Fail(pe.SubmitOrFree(task, err, again))
				}
				again = func(task *rdma.Task, err error) {
					p.rdma.Fail(err)
					p.rdma.Fail(task.Free())
					if left--; left > 0 && err == nil {
						write()
					} else {
						p.rdma.Stop()
					}
				}
				p.rdma.OnStateChange(func(_, next pe.State) {
					if next == pe.Running {
						write()
					}
				})
			})
		})
		require.NoError(t, p.run(forever(t)))
		require.Zero(t, left)
	}
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, l.Close())
	require.NoError(t, engine.Close())
}
