package unixsocket

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckUser(t *testing.T) {
	require.NoError(t, checkUser(1000, 1000, 65534))
	require.ErrorContains(t, checkUser(1001, 1000, 65534), "1001")
	require.Error(t, checkUser(65534, 65534, 65534))
	require.NoError(t, checkUser(65534, 65534, 12))
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(text)), fmt.Sprint(overflowUser()))
}
