package syncevent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/zerotest"
	"github.com/verbena-rdma/verbena/syncevent"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &syncevent.Event{}, &syncevent.Condition{}, &syncevent.Config{}, &syncevent.Context{}, &syncevent.ContextConfig{}, &syncevent.TaskError{}, new(syncevent.Publishers), new(syncevent.Operation),
		&syncevent.GetPool{}, &syncevent.SetPool{}, &syncevent.AddPool{}, &syncevent.WaitPool{},
		&syncevent.GetTask{}, &syncevent.SetTask{}, &syncevent.AddTask{}, &syncevent.WaitTask{})
	_, err := new(syncevent.Event).Get()
	require.ErrorIs(t, err, syncevent.ErrInvalid)
	require.ErrorContains(t, new(syncevent.SetTask).Submit(), "task")
}
