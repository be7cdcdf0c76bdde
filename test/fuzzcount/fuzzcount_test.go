package fuzzcount

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCounter(t *testing.T) {
	dir := t.TempDir()
	read := func() string {
		b, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(os.Getpid())))
		require.NoError(t, err)
		return string(b)
	}
	var c Counter
	c.add(dir, interval-1)
	require.Nil(t, c.file)
	c.add(dir, 1)
	require.Equal(t, "1000\n", read())
	c.add(dir, 1)
	require.Equal(t, "1000\n", read())
	c.add(dir, 10*interval)
	require.Equal(t, "11001\n", read())
	require.NoError(t, c.file.Close())
}

func TestAddCountsNothingByDefault(t *testing.T) {
	t.Setenv(Variable, "")
	Add(5 * interval)
	require.Zero(t, process.count)
}

func TestNoFolder(t *testing.T) {
	t.Setenv(Variable, filepath.Join(t.TempDir(), "none"))
	require.Panics(t, func() { Add(interval) })
}
