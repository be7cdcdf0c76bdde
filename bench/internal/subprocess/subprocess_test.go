package subprocess

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "copy" {
		_, _ = io.Copy(os.Stdout, os.Stdin)
		_, _ = os.NewFile(3, "third").WriteString(os.Args[2])
		return
	}
	goleak.VerifyTestMain(m)
}

// A process has its arguments, its pipes and its files.
func TestStart(t *testing.T) {
	for _, prefix := range [][]string{nil, {"env"}} {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		p, err := Start(context.Background(), prefix, []string{"copy", "words"}, w)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		_, err = io.WriteString(p.In, "input")
		require.NoError(t, err)
		require.NoError(t, p.In.Close())
		out, err := io.ReadAll(p.Out)
		require.NoError(t, err)
		third, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, p.Wait())
		require.Equal(t, []string{"input", "words"}, []string{string(out), string(third)})
		require.NoError(t, r.Close())
	}
	_, err := Start(context.Background(), []string{"/no/such/program"}, nil)
	require.Error(t, err)
}
