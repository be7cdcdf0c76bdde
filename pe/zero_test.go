package pe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/zerotest"
	"github.com/verbena-rdma/verbena/pe"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &pe.Config{}, &pe.Engine{}, &pe.Core{}, &pe.Control{}, &pe.Task{}, &pe.Pool[job]{},
		new(pe.State), &pe.Waiter{}, &pe.StateError{}, &pe.UnsupportedError{})
	var e pe.Engine
	_, err := e.Progress()
	require.ErrorIs(t, err, pe.ErrInvalid)
	require.ErrorContains(t, err, "was not made by pe.New")
	_, err = e.NotificationFD()
	require.ErrorIs(t, err, pe.ErrInvalid)
	var p pe.Pool[job]
	_, err = p.Alloc()
	require.ErrorIs(t, err, pe.ErrInvalid)
}

// A type that embeds a *Core, and was not made by its constructor.
func TestZeroContext(t *testing.T) {
	type contextOf struct{ *pe.Core }
	zerotest.Check(t, &contextOf{}, &pe.Config{}, &pe.Engine{}, &pe.Core{}, &pe.Control{}, &pe.Task{}, &pe.Pool[job]{},
		new(pe.State), &pe.Waiter{}, &pe.StateError{}, &pe.UnsupportedError{})
	require.ErrorIs(t, contextOf{}.Start(), pe.ErrInvalid)
	require.Equal(t, pe.Idle, contextOf{}.State())
	require.ErrorIs(t, pe.New(pe.Config{}).Connect(contextOf{}), pe.ErrInvalid)
}
