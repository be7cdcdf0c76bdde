//go:build linux && cgo && verbs

package ibverbs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// Completion queues, ordinary and extended ones, take the device's four completion vectors in
// turn. The times of completions do not depend on a provider that reports LIDs where there are
// none.
func TestVectorsAndTimes(t *testing.T) {
	withFakeLibrary(t, func(dir string) { testVectorsAndTimes(t, dir) }, "FAKE_LINK=ethernet")
}

func testVectorsAndTimes(t *testing.T, dir string) {
	dev, err := ibverbs.Driver{}.Open("fake0")
	require.NoError(t, err)
	attr, err := dev.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.WCTimestamp|verbs.WCWallClock, attr.CompletionFields)
	require.NoError(t, os.Remove(filepath.Join(dir, "vectors"))) // of queues to find out the limits
	for i := range 12 {
		init := verbs.CQInit{Capacity: 4}
		if i%2 == 1 {
			init.Fields = verbs.WCTimestamp
		}
		cq, err := dev.CreateCQ(init)
		require.NoError(t, err)
		defer func() { assert.NoError(t, cq.Close()) }()
	}
	vectors, err := os.ReadFile(filepath.Join(dir, "vectors"))
	require.NoError(t, err)
	for _, v := range []string{"0", "1", "2", "3"} {
		assert.Equal(t, 3, strings.Count(string(vectors), v), "vector %s: %q", v, vectors)
	}
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
}
