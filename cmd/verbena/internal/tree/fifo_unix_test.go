//go:build linux || darwin

package tree

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func mkfifo(t *testing.T, path string) bool {
	t.Helper()
	require.NoError(t, unix.Mkfifo(path, 0o600))
	return true
}
