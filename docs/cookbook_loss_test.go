package docs

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
)

// The result is the same over networks that are bad in different ways.
func TestTransferUnderFaults(t *testing.T) {
	for faults, counter := range map[string]string{
		"loss=0.1":     "completer_retry_err", // this counter shows that the fault occurred
		"reorder=0.2":  "out_of_seq_request",
		"corrupt=0.05": "rx_icrc_errors",
	} {
		t.Run(faults, func(t *testing.T) {
			from, to := newEnds(t, "soft-lo?seed=1&"+faults, rdma.Config{})
			_, _ = rand.Read(from.memory.Bytes())
			require.NoError(t, writeAll(t, from, to))
			assert.Equal(t, from.memory.Bytes(), to.memory.Bytes())
			assert.Positive(t, counted(t, from, counter)+counted(t, to, counter))
		})
	}
}

// The program learns that the network is cut.
func TestTransferOverCutCable(t *testing.T) {
	from, to := newEnds(t, "soft-lo", rdma.Config{AckTimeout: 5 * time.Millisecond})
	from.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
		if state == rdma.Ready {
			assert.NoError(t, from.dev.(*soft.Device).SetFaults(soft.Faults{Loss: 1}))
		}
	})
	require.ErrorIs(t, writeAll(t, from, to), rdma.ErrRetryExceeded)
}

// newEnds makes both ends on one engine, so that nothing depends on the scheduler.
func newEnds(t *testing.T, deviceName string, cfg rdma.Config) (from, to *end) {
	cfg.Engine = pe.New(pe.Config{})
	cfg.EndWithLastConnection = true
	from, to = newEnd(deviceName, 1<<20, cfg), newEnd(deviceName, 1<<20, cfg)
	t.Cleanup(from.close) // fails if anything of the device has been left open
	t.Cleanup(to.close)
	return from, to
}

// writeAll writes all memory of one end to that of the other, and returns how it ended.
func writeAll(t *testing.T, from, to *end) error {
	size := from.memory.Len()
	remote := from.importFrom(to)
	writes, err := from.rdma.Pool(1,
		func(task *rdma.Task) {
			assert.NoError(t, task.Free())
			assert.NoError(t, from.rdma.Stop())
		},
		func(task *rdma.Task, err error) {
			assert.NoError(t, task.Free())
			from.rdma.Fail(err)
			assert.NoError(t, to.rdma.Stop()) // over a cut cable it would wait for a sign of life
		})
	require.NoError(t, err)
	var conn *rdma.Connection
	from.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			task, err := writes.Write(conn, from.bufs.Source(from.memory, 0, size), from.bufs.Target(remote, 0, size))
			if err == nil {
				err = task.Submit()
			}
			from.rdma.Fail(err)
		}
	})
	conn, _ = connect(from.rdma, to.rdma)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // ends only what hangs
	defer cancel()
	err = from.engine.Run(ctx)
	require.NoError(t, remote.Close())
	return err
}

// counted is the value of one of the device's counters.
func counted(t *testing.T, e *end, name string) uint64 {
	counters, err := e.dev.Counters()
	require.NoError(t, err)
	for _, c := range counters {
		if c.Name == name {
			return c.Value
		}
	}
	require.Fail(t, "no such counter", name)
	return 0
}
