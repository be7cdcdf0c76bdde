package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// A callback that panics costs no other task its callback.
func TestCallbackPanics(t *testing.T) {
	for _, flags := range []pe.SubmitFlags{0, pe.OptimizeReports} {
		for bad := range 4 {
			r := newRig(t, rdma.Config{}, rdma.Config{})
			var writes outcome[*rdma.Task]
			writes.then = func(*rdma.Task) {
				if len(writes.done) == bad+1 {
					panic("mine")
				}
			}
			pool := must(r.a.ctx.Pool(4, writes.ok, writes.bad))
			r.connect(1)
			var tasks []*rdma.Task
			for range 4 {
				tasks = append(tasks, must(pool.Write(r.a.conns[0], nil, nil)))
			}
			_, err := rdma.SubmitAll(tasks, flags)
			require.NoError(t, err)
			require.PanicsWithValue(t, "mine", func() {
				r.until("it panics", func() bool { return false })
			})
			r.until("the rest came", func() bool { return writes.count() == 4 })
			assert.Equal(t, tasks, writes.done)
			require.NoError(t, rdma.FreeAll(tasks))
		}
	}
}
