package rdma_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// fakeHost is a host whose time passes only in advance.
type fakeHost struct {
	mu         sync.Mutex
	now        time.Time
	timers     []*fakeTimer // running
	drawn      int          // random bytes
	goroutines int          // started
}

type fakeTimer struct {
	host *fakeHost
	at   time.Time
	f    func()
}

func newFakeHost() *fakeHost { return &fakeHost{now: time.Unix(1, 0)} }

func (h *fakeHost) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *fakeHost) Until(t time.Time) time.Duration { return t.Sub(h.Now()) }

func (h *fakeHost) AfterFunc(d time.Duration, f func()) host.Timer {
	t := &fakeTimer{host: h, f: f}
	t.Reset(d)
	return t
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	was := t.Stop()
	t.host.mu.Lock()
	defer t.host.mu.Unlock()
	t.at = t.host.now.Add(d)
	t.host.timers = append(t.host.timers, t)
	return was
}

func (t *fakeTimer) Stop() bool {
	h := t.host
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.timers)
	h.timers = slices.DeleteFunc(h.timers, func(x *fakeTimer) bool { return x == t })
	return len(h.timers) < n
}

// advance lets time pass, and runs the timers that are due.
func (h *fakeHost) advance(d time.Duration) {
	h.mu.Lock()
	h.now = h.now.Add(d)
	var due []*fakeTimer
	h.timers = slices.DeleteFunc(h.timers, func(t *fakeTimer) bool {
		if t.at.After(h.now) {
			return false
		}
		due = append(due, t)
		return true
	})
	h.mu.Unlock()
	for _, t := range due {
		t.f()
	}
}

func (h *fakeHost) running() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.timers)
}

// Random is not random.
func (h *fakeHost) Random(b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range b {
		h.drawn++
		b[i] = byte(h.drawn)
	}
}

func (h *fakeHost) Go(f func()) {
	h.mu.Lock()
	h.goroutines++
	h.mu.Unlock()
	go f()
}

func (h *fakeHost) Scheduler() host.Scheduler { return nil }

// hosted is a device of a host.
type hosted struct {
	*soft.Device
	host *fakeHost
}

func (d hosted) Host() host.Host { return d.host }

// A context takes its deadlines from the clock of its device's host, and random numbers and
// goroutines from the host too.
func TestDeadlinesByTheHostsClock(t *testing.T) {
	const limit = 10 * time.Hour
	// Each begins a connection to a peer that never connects, and returns it with the time-out
	// under way.
	export := func(t *testing.T, r *rig) *rdma.Connection {
		conn, _, err := r.a.ctx.Export()
		require.NoError(t, err)
		_, desc, err := r.b.ctx.Export()
		require.NoError(t, err)
		require.NoError(t, conn.Connect(desc))
		h := r.a.dev.(hosted).host
		assert.Equal(t, 12, h.drawn, "the nonce and the first sequence number")
		assert.Zero(t, h.goroutines, "the queue pair of a software device is brought up without one")
		return conn
	}
	for name, c := range map[string]struct {
		transport verbs.QPType
		begin     func(t *testing.T, r *rig) *rdma.Connection
	}{
		"RC": {verbs.RC, export},
		"UC": {verbs.UC, export},
		"Bridge": {verbs.RC, func(t *testing.T, r *rig) *rdma.Connection {
			return must(r.a.ctx.Bridge())
		}},
		"Dial": {verbs.RC, func(t *testing.T, r *rig) *rdma.Connection {
			l := must(r.b.ctx.Listen(":0", rdma.ListenConfig{}))
			addr := fmt.Sprintf("[%v]:%d", r.b.ctx.GID().GID, l.Addr().Port())
			require.NoError(t, l.Close())
			conn := must(r.a.ctx.Dial(addr, rdma.DialConfig{}))
			for range 3 { // the pauses between attempts too
				last := conn.DialError()
				r.until("an attempt has failed", func() bool { return conn.DialError() != nil && conn.DialError() != last })
				r.a.dev.(hosted).host.advance(time.Second)
			}
			return conn
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dev := hosted{openSoft(t).(*soft.Device), newFakeHost()}
			cfg := rdma.Config{Transport: c.transport, ConnectTimeout: limit}
			r := newRigOn(t, dev, openSoft(t), cfg, cfg)
			require.NoError(t, r.a.ctx.Start())
			require.NoError(t, r.b.ctx.Start())
			conn := c.begin(t, r)
			dev.host.advance(limit / 2)
			for range 1000 {
				_, err := r.engine.Progress()
				require.NoError(t, err)
			}
			require.Equal(t, rdma.Connecting, conn.State())
			dev.host.advance(limit / 2)
			r.until("the connection has failed", func() bool { return conn.Err() != nil })
			require.ErrorIs(t, conn.Err(), rdma.ErrTimeout)
			r.until("the context has ended with it", func() bool { return r.a.ctx.State() == pe.Idle })
			assert.Zero(t, dev.host.running(), "timers run for a context that is Idle")
		})
	}
}
