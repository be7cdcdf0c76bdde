package usage_test

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func page(size *int) *usage.Page {
	f := usage.NewFlags("tool move")
	f.IntVar(size, "s", 64, "`bytes` to move")
	usage.Alias(f, "size", "s")
	f.Duration("wait", time.Second, "how long to wait")
	f.Bool("v", false, "print more")
	f.Func("like", "which", func(string) error { return nil })
	usage.SetType(f, "like", "pattern")
	usage.Alias(f, "l", "like")
	f.Int("index", -1, "`index` of the address (default: any)")
	return &usage.Page{Name: "tool move", Forms: []string{"[flags] FROM TO", "-x"}, Text: "Moves.", Flags: f}
}

func TestHelp(t *testing.T) {
	assert.Equal(t, `usage: tool move [flags] FROM TO
       tool move -x

Moves.

  -index index
        index of the address (default: any)
  -l, -like pattern
        which
  -s, -size bytes
        bytes to move (default 64)
  -v
        print more
  -wait duration
        how long to wait (default 1s)
`, page(new(int)).String())
}

func TestParse(t *testing.T) {
	var size int
	rest, err := page(&size).Parse([]string{"-size", "7", "a", "-v"}, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "-v"}, rest)
	assert.Equal(t, 7, size)

	rest, err = page(&size).ParseMixed([]string{"a", "-s", "8", "b", "--", "-v"}, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "-v"}, rest)
	assert.Equal(t, 8, size)

	_, err = page(&size).Parse([]string{"-s", "x"}, nil)
	require.ErrorContains(t, err, `"x" for flag -s`)

	var out strings.Builder
	_, err = page(&size).ParseMixed([]string{"a", "-h"}, &out)
	require.ErrorIs(t, err, flag.ErrHelp)
	assert.Equal(t, page(&size).String(), out.String())
}
