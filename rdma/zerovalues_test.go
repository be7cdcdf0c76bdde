package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/zerotest"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t,
		&rdma.Context{}, &rdma.Connection{}, &rdma.Config{}, &rdma.Capabilities{}, &rdma.TaskError{}, &rdma.Message{},
		&rdma.Listener{}, &rdma.ListenConfig{}, &rdma.ConnectRequest{}, &rdma.AcceptConfig{}, &rdma.DialConfig{},
		&rdma.ReceivePool{}, &rdma.Pool{}, &rdma.WindowPool{}, &rdma.Window{},
		&rdma.ReceiveTask{}, &rdma.Task{}, &rdma.Peer{}, &rdma.EndpointAddr{},
		&rdma.MulticastConfig{}, &rdma.MulticastGroup{}, new(rdma.ReceiveOpcode), new(rdma.ConnectionState), new(rdma.Operation))

	_, err := new(rdma.Pool).Write(nil, nil, nil)
	require.ErrorIs(t, err, rdma.ErrInvalid)
	require.ErrorIs(t, new(rdma.Connection).Close(), rdma.ErrInvalid)
	_, _, err = new(rdma.Context).Export()
	require.ErrorIs(t, err, rdma.ErrInvalid)
	require.ErrorContains(t, err, "export a connection")
	_, err = new(rdma.Context).ExportEndpoint()
	require.ErrorContains(t, err, "export the endpoint")
	require.ErrorContains(t, new(rdma.Task).Submit(), "submit a task")
	require.ErrorContains(t, new(rdma.ReceiveTask).Submit(), "submit a receive")
	require.Zero(t, new(rdma.Task).Operation())
}

// Tasks that are missing are refused, and so is the
// zero value of a connection.
func TestMissingTasks(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	pool := must(r.a.ctx.Pool(2, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	r.connect(1)
	_, err := pool.Write(&rdma.Connection{}, nil, nil)
	require.ErrorIs(t, err, rdma.ErrInvalid)
	_, err = pool.Write(nil, nil, nil)
	require.ErrorIs(t, err, rdma.ErrInvalid)
	task := must(pool.Write(r.a.conns[0], nil, nil))
	n, err := rdma.SubmitAll([]*rdma.Task{task, nil}, 0)
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, rdma.ErrInvalid)
	r.until("it is done", func() bool { return !task.InFlight() })
	for _, list := range [][]*rdma.Task{{nil, task}} {
		n, err = rdma.TrySubmitAll(list, 0)
		require.Zero(t, n)
		require.ErrorIs(t, err, rdma.ErrInvalid)
	}
	require.ErrorIs(t, rdma.FreeAll([]*rdma.Task{nil, task}), rdma.ErrInvalid)
	require.Equal(t, 2, pool.Available(), "it went on after a failure")
	require.ErrorIs(t, rdma.FreeAll([]*rdma.Task{nil}), rdma.ErrInvalid)
	require.ErrorIs(t, pe.Submit(nil, func(*rdma.Task, error) {}), pe.ErrInvalid)
}
