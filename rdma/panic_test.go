package rdma_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// A callback that panics costs no other task its callback.
func TestCallbackPanics(t *testing.T) {
	for _, flags := range []pe.SubmitFlags{0, pe.OptimizeReports} {
		for bad := range 4 {
			r := newRig(t, rdma.Config{}, rdma.Config{})
			var writes outcome[*rdma.Task]
			writes.then = func(*rdma.Task) {
				if len(writes.done) == bad+1 {
					panic("mine")
				}
			}
			pool := must(r.a.ctx.Pool(4, writes.ok, writes.bad))
			r.connect(1)
			var tasks []*rdma.Task
			for range 4 {
				tasks = append(tasks, must(pool.Write(r.a.conns[0], nil, nil)))
			}
			_, err := rdma.SubmitAll(tasks, flags)
			require.NoError(t, err)
			require.PanicsWithValue(t, "mine", func() {
				r.until("it panics", func() bool { return false })
			})
			r.until("the rest came", func() bool { return writes.count() == 4 })
			assert.Equal(t, tasks, writes.done)
			require.NoError(t, rdma.FreeAll(tasks))
		}
	}
}

// A connection ends, and its peer is told, though DialConfig.DisconnectData panics: however the
// connection ends, and those beside it too.
func TestDisconnectDataPanics(t *testing.T) {
	for name, end := range map[string]func(c *dialContext, conn *rdma.Connection){
		"close": func(_ *dialContext, conn *rdma.Connection) { _ = conn.Close() },
		"stop":  func(c *dialContext, _ *rdma.Connection) { _ = c.Stop() },
		"fail":  func(c *dialContext, _ *rdma.Connection) { c.Fail(errors.New("x")) },
	} {
		runSimulated(t, name, 2, func(t *testing.T, s *sim.Sim) {
			cs := newSimDialRig(s)
			server, client := cs.add(rdma.Config{MaxConnections: 3}), cs.add(rdma.Config{MaxConnections: 3})
			cs.start(server, client)
			_, addr := cs.listen(server, rdma.ListenConfig{})
			panics := 0
			for range 3 {
				must(client.Dial(addr, rdma.DialConfig{DisconnectData: func(*rdma.Connection) []byte {
					panics++
					panic("mine")
				}}))
			}
			cs.until("all are Ready", func() bool { return len(server.ready) == 3 && len(client.ready) == 3 })
			guard := func(f func()) {
				defer func() {
					if got := recover(); got != nil {
						assert.Equal(t, "mine", got)
					}
				}()
				f()
			}
			guard(func() { end(client, client.ready[0]) })
			guard(func() { _ = client.Stop() }) // the others, if they go on
			for limit := s.Now() + time.Minute; s.Now() < limit && (server.closed < 3 || client.State() != pe.Idle); {
				guard(func() { _, _ = cs.engine.Progress() })
				s.Run(100 * time.Microsecond)
			}
			assert.Equal(t, 3, server.closed)
			assert.Equal(t, 3, client.closed)
			assert.Equal(t, pe.Idle, client.State())
			assert.Equal(t, 3, panics, "each was called once")
		})
	}
}

// A callback for a connection that panics does not keep the place of a connection that the program
// does not know of.
func TestConnectionCallbackPanics(t *testing.T) {
	sim.Check(t, 2, func(s *sim.Sim) {
		cs := newSimDialRig(s)
		server, client := cs.add(rdma.Config{MaxConnections: 1}), cs.add(rdma.Config{})
		cs.start(server, client)
		_, addr := cs.listen(server, rdma.ListenConfig{})
		first := must(client.Dial(addr, rdma.DialConfig{}))
		cs.until("both are Ready", func() bool { return len(server.ready) == 1 && first.State() == rdma.Ready })
		panics, closed := 0, 0
		server.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
			switch state {
			case rdma.Failed:
				panics++
				panic("mine")
			case rdma.Closed:
				closed++
			}
		})
		s.Cut(s.Host("client"), s.Host("server"))
		for limit := s.Now() + time.Minute; s.Now() < limit && closed == 0; s.Run(time.Millisecond) {
			func() {
				defer func() { _ = recover() }()
				_, _ = cs.engine.Progress()
			}()
		}
		assert.Equal(t, [2]int{1, 1}, [2]int{panics, closed})
		s.Heal()
	})
}
