package exit

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/interrupt"
)

func TestCodes(t *testing.T) {
	interrupted, stop := context.WithCancelCause(context.Background())
	stop(interrupt.Error{Signal: syscall.SIGTERM})
	broken := errors.New("it is broken")
	for _, c := range []struct {
		ctx  context.Context
		err  error
		code int
		out  string
	}{
		{context.Background(), nil, 0, ""},
		{context.Background(), broken, 1, "verbena try: it is broken\n"},
		{interrupted, nil, 143, ""},
		{interrupted, broken, 143, ""},
	} {
		var out bytes.Buffer
		require.Equal(t, c.code, Code(c.ctx, "verbena try", c.err, &out))
		require.Equal(t, c.out, out.String())
	}
	var out bytes.Buffer
	require.Equal(t, 0, WrongArguments("verbena try", fmt.Errorf("parse: %w", flag.ErrHelp), &out))
	require.Empty(t, out.String())
	require.Equal(t, 2, WrongArguments("verbena try", broken, &out))
	require.Equal(t, "verbena try: it is broken; -h lists the flags\n", out.String())
}
