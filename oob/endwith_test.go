package oob_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// outcomeTimeout is that of these tests; they see what is not done when it has passed.
const outcomeTimeout = 20 * time.Millisecond

// after has f run on the engine's goroutine when the timeout has passed for long.
func (p *program) after(f func()) {
	time.AfterFunc(20*outcomeTimeout, func() { _ = p.engine.Do(f) })
}

// aWriter runs, closes its connection, and reports success.
func aWriter(t testing.TB, way oob.Way) (wait func()) {
	w := newWriter(t, way, "x")
	done := make(chan error)
	go func() { done <- w.run(forever(t)) }()
	return func() { require.NoError(t, <-done) }
}

// newEndingReader is a responder with EndWith, and how it connects.
func newEndingReader(t testing.TB, way oob.Way) (r *program, connect func()) {
	r = newProgram(t, way, reader(), rdma.Config{})
	local, err := mmap.Alloc(r.dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(t, err)
	r.peer.SetOutcomeTimeout(outcomeTimeout)
	r.peer.EndWith(r.rdma)
	return r, func() {
		r.peer.Connect(r.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { r.rdma.Fail(err) }, local)
	}
}

// A responder whose peer has reported success goes on for as long as it likes.
func TestEndWithAfterTheReport(t *testing.T) { simulate(t, 3, testEndWithAfterTheReport) }

func testEndWithAfterTheReport(s *sim.Sim) {
	t := s
	const timeout = 5 * time.Second // it reports before, and goes on for longer
	r, connect := newEndingReader(t, must(oob.CM(simCM(s, "reader"))))
	reported := false
	r.rdma.OnStateChange(func(_, now pe.State) {
		switch now {
		case pe.Starting:
			connect()
		case pe.Running:
			r.peer.Done(func(err error) {
				assert.NoError(t, err)
				reported = true
				s.After(timeout+20*outcomeTimeout, func() { _ = r.engine.Do(func() { r.rdma.Stop() }) })
			})
		}
	})
	r.peer.SetOutcomeTimeout(timeout)
	wait := aWriter(t, must(oob.CM(simCM(s, "reader"))))
	require.NoError(t, r.run(forever(t)))
	wait()
	assert.True(t, reported)
}

// What has to do with one run of the context does not end the next.
func TestEndWithLastsForOneRun(t *testing.T) {
	folder := t.TempDir()
	r, connect := newEndingReader(t, oob.Dir(folder))
	runs := 0
	r.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
		if state == rdma.Closed && runs == 0 {
			// After the watchers: they see it first.
			_ = r.engine.Do(func() { r.rdma.Stop() })
		}
	})
	r.rdma.OnStateChange(func(_, now pe.State) {
		switch {
		case now == pe.Starting && runs == 0:
			connect()
		case now == pe.Idle && runs == 0:
			runs++
			assert.NoError(t, r.rdma.Start())
		case now == pe.Running && runs == 1:
			r.after(func() { r.rdma.Stop() })
		}
	})
	wait := aWriter(t, oob.Dir(folder))
	require.NoError(t, r.run(forever(t)))
	assert.Equal(t, 1, runs)
	wait()
}

// Connections of others, and those of a Peer that was closed, do not end the context.
func TestEndWithOfOthers(t *testing.T) {
	var desc []byte // of nobody, who never answers
	way := func(connections int) oob.Way {
		return oob.Carried(&fakeWay{exchange: func(context.Context, oob.Ends, []byte) ([]byte, error) {
			b := descriptor.Bundle{From: "writer", To: "reader"}
			for range connections {
				b.Connections = append(b.Connections, desc)
			}
			return b.Encode()
		}})
	}
	r := newProgram(t, way(0), reader(), rdma.Config{ConnectTimeout: time.Millisecond, MaxConnections: 4})
	r.peer.EndWith(r.rdma)
	closed := newPeer(t, way(1), reader())
	closed.EndWith(r.rdma)
	failed := 0
	r.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
		if state == rdma.Failed {
			failed++
			r.after(func() { r.rdma.Stop() })
		}
	})
	r.rdma.OnStateChange(func(_, now pe.State) {
		if now != pe.Running {
			return
		}
		nobody, d, err := r.rdma.Export()
		assert.NoError(t, err)
		assert.NoError(t, nobody.Close())
		desc = d
		r.peer.Exchange(t.Context(), r.rdma, oob.Offer{Connections: -1}, func(_ *oob.Answer, err error) {
			assert.NoError(t, err)
			closed.Exchange(t.Context(), r.rdma, oob.Offer{}, func(_ *oob.Answer, err error) {
				assert.NoError(t, err)
				assert.NoError(t, closed.Close(nil))
			})
		})
	})
	require.NoError(t, r.run(forever(t)))
	assert.Equal(t, 1, failed)
}
