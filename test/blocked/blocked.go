// Package blocked tells tests which goroutines wait, and where.
package blocked

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Await waits until n goroutines wait in the way that the runtime calls state, such as "select" or
// "sync.Mutex.Lock", with function on their stacks.
func Await(t testing.TB, n int, state, function string) {
	t.Helper()
	require.Eventually(t, func() bool { return count(state, function) >= n }, 5*time.Minute, time.Millisecond,
		"%d goroutines wait in %s (%s)", n, function, state)
}

func count(state, function string) (n int) {
	all := make([]byte, 1<<20)
	for _, stack := range strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n") {
		header, frames, _ := strings.Cut(stack, "\n")
		_, at, _ := strings.Cut(header, "[")
		if strings.HasPrefix(at, state) && strings.Contains(frames, function+"(") {
			n++
		}
	}
	return n
}
