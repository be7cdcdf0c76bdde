//go:build !linux

package preload

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUnsupported(t *testing.T) {
	o := &options{command: []string{"ib_write_bw"}}
	require.ErrorIs(t, o.start(io.Discard), errors.ErrUnsupported)
}
