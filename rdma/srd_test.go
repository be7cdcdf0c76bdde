package rdma_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// openLossy opens a software device that loses packets, and brings others out of order.
func openLossy(t *testing.T, seed uint64) verbs.Device {
	t.Helper()
	return closed(t, must(soft.Open(soft.Config{Faults: soft.Faults{Loss: 0.02, Duplicate: 0.02, Seed: seed}})))
}

// Contexts of SRD: one endpoint writes to, reads from and sends to several peers at a
// time, where packets get lost.
func TestSRD(t *testing.T) {
	const peers, rounds, size = 4, 30, 20_000
	engine := newEngine(t)
	dev := openLossy(t, 1)
	ctx := must(rdma.NewDatagrams(dev, rdma.DatagramsConfig{Name: "srd", Transport: verbs.SRD, Engine: engine, SendQueueSize: 16}))
	mem := must(mmap.Alloc(dev, 2*peers*size, everything))
	var failures []error
	freed := func(task anyTask) {
		if err := task.Free(); err != nil {
			failures = append(failures, err)
		}
	}
	failed := func(task anyTask, err error) { failures = append(failures, err); freed(task) }
	done := 0
	writes := must(ctx.Pool(64, func(task *rdma.Task) { done++; freed(task) }, func(task *rdma.Task, err error) { failed(task, err) }))
	reads := must(ctx.Pool(64, func(task *rdma.Task) { done++; freed(task) }, func(task *rdma.Task, err error) { failed(task, err) }))
	require.NoError(t, ctx.Start())

	type far struct {
		*datagramProgram
		peer   *rdma.Peer
		remote *mmap.Map
		theirs *mmap.Map
		imms   []uint32
	}
	var others []*far
	for i := range peers {
		f := &far{datagramProgram: newDatagramProgram(t, engine, openLossy(t, uint64(i+2)), rdma.DatagramsConfig{Name: fmt.Sprintf("far %d", i), Transport: verbs.SRD})}
		f.theirs = must(mmap.Alloc(f.dev, size, everything))
		f.peer = must(ctx.NewPeer(must(f.ctx.ExportEndpoint())))
		if i > 0 { // the first does not know us
			_ = must(f.ctx.NewPeer(must(ctx.ExportEndpoint())))
		}
		f.remote = must(mmap.Import(dev, must(f.theirs.Export(f.dev))))
		f.onGot = func(m *rdma.Message) {
			imm, ok := m.Imm()
			assert.True(t, ok)
			assert.Equal(t, rdma.ReceivedWriteImm, m.Opcode())
			assert.Equal(t, size, m.Length())
			if assert.NotNil(t, m.Peer()) {
				assert.Equal(t, must(ctx.EndpointAddr()), m.Peer().Addr())
			}
			f.imms = append(f.imms, imm)
		}
		others = append(others, f)
	}
	stranger, err := writes.WriteImm(others[0].peer, bufinv.Source(mem, 0, 8), bufinv.Target(others[0].remote, 0, 8), 0)
	require.NoError(t, pe.SubmitOrFree(stranger, err))
	others[0].until("it is refused", func() bool { return len(failures) > 0 })
	require.ErrorIs(t, failures[0], rdma.ErrRemoteOperation)
	require.ErrorContains(t, failures[0], "NewPeer")
	failures = nil
	_ = must(others[0].ctx.NewPeer(must(ctx.ExportEndpoint())))
	for round := range rounds {
		fill(mem.Bytes()[:peers*size], byte(round))
		done = 0
		for i, f := range others {
			task, err := writes.WriteImm(f.peer, bufinv.Source(mem, i*size, size), bufinv.Target(f.remote, 0, size), uint32(round))
			require.NoError(t, pe.SubmitOrFree(task, err))
		}
		others[0].until("all writes are done", func() bool { return done == peers || len(failures) > 0 })
		for i, f := range others {
			task, err := reads.Read(f.peer, bufinv.Source(f.remote, 0, size), bufinv.Target(mem, (peers+i)*size, size))
			require.NoError(t, pe.SubmitOrFree(task, err))
		}
		others[0].until("all reads are done", func() bool { return done == 2*peers || len(failures) > 0 })
		require.Empty(t, failures)
		same(t, mem.Bytes()[:peers*size], mem.Bytes()[peers*size:])
	}
	for _, f := range others {
		f.until("the last notice has come", func() bool { return len(f.imms) == rounds })
	}
	require.NoError(t, ctx.Stop())
	others[0].until("it is Idle", func() bool { return ctx.State() == pe.Idle })
	require.NoError(t, ctx.Close())
	for _, f := range others {
		require.NoError(t, f.remote.Close())
		require.NoError(t, f.theirs.Close())
	}
	require.NoError(t, mem.Close())
}

// TestSRDMessages: messages and answers to whoever has sent, known or not.
func TestSRDMessages(t *testing.T) {
	engine := newEngine(t)
	a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a", Transport: verbs.SRD})
	b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b", Transport: verbs.SRD})
	b.onGot = func(m *rdma.Message) { b.send(m.Peer(), "you said "+string(m.Bytes())) }
	to := a.peerOf(b)
	for i := range 20 {
		text := fmt.Sprint("message ", i)
		a.send(to, text)
		a.until("the answer comes", func() bool { return len(a.got) == i+1 })
		require.Equal(t, "you said "+text, a.got[i])
		require.Same(t, to, a.from[i])
	}
	require.Empty(t, a.sent.errs)
	require.Empty(t, b.sent.errs)
}

// TestSRDFailures: what fails is one task, and says why; the endpoint goes on.
func TestSRDFailures(t *testing.T) {
	engine := newEngine(t)
	a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a", Transport: verbs.SRD})
	b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b", Transport: verbs.SRD})
	gone := must(b.ctx.EndpointAddr())
	gone.QPN ^= 1
	a.send(must(a.ctx.PeerAt(gone)), "to nobody")
	a.until("it fails", func() bool { return a.sent.count() == 1 })
	require.Len(t, a.sent.errs, 1)
	require.ErrorIs(t, a.sent.errs[0], rdma.ErrRemoteInvalid)
	assert.ErrorContains(t, a.sent.errs[0], "no such queue pair")
	a.send(a.peerOf(b), "to somebody")
	b.until("it comes", func() bool { return len(b.got) == 1 })
	require.Equal(t, pe.Running, a.ctx.State())
	_, err := a.alloc(a.peerOf(b), string(make([]byte, 5000)))
	require.ErrorIs(t, err, rdma.ErrRange)
}
