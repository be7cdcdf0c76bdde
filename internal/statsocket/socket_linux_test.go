package statsocket

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Only listening sockets of the user count. Names that other processes make up change nothing.
func TestNamesIn(t *testing.T) {
	const text = "Num       RefCount Protocol Flags    Type St Inode Path\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 4711 @verbena-stat/7/A\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 4712 @verbena-stat/7/A\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 4713 @verbena-stat/70/B\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 4714 /run/x @verbena-stat/7/C\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 4715\n" +
		"short\n\n"
	require.Equal(t, []string{"@verbena-stat/7/A"}, namesIn(text, "@verbena-stat/7/"))
}
