package neterr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Errors have the kind that programs of package net expect, and keep their reason. Others stay as
// they are: a call that is illegal in a state is no closed connection.
func TestOfDial(t *testing.T) {
	ended, stop := context.WithTimeout(context.Background(), 0)
	defer stop()
	<-ended.Done()
	for _, c := range []struct {
		ctx       context.Context
		err, kind error
	}{
		{context.Background(), rdma.ErrNotListening, syscall.ECONNREFUSED},
		{context.Background(), rdma.ErrTimeout, syscall.ETIMEDOUT},
		{ended, context.DeadlineExceeded, os.ErrDeadlineExceeded},
		{context.Background(), pe.ErrBadState, pe.ErrBadState},
	} {
		err := OfDial(c.ctx, fmt.Errorf("dial: %w", c.err))
		require.ErrorIs(t, err, c.err)
		require.ErrorIs(t, err, c.kind)
		require.NotErrorIs(t, err, net.ErrClosed)
		timeout, ok := errors.AsType[net.Error](&net.OpError{Err: err})
		require.True(t, ok)
		require.Equal(t, errors.Is(err, rdma.ErrTimeout) || c.ctx == ended, timeout.Timeout())
	}
}
