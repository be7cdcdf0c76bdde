package rdma_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
)

// What programs print while they look for a mistake is a line, and no dump of the inside.
func TestPrintedInALine(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	pool := must(r.a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	r.connect(1)
	src := r.a.bufs.Source(r.a.mem, 0, 8)
	task := must(pool.Write(r.a.conns[0], src, r.a.bufs.Target(r.a.peer, 0, 8)))
	for _, c := range []struct {
		value any
		want  string
	}{
		{r.a.ctx, `context "a", Running`},
		{r.engine, "engine 0x"},
		{r.a.conns[0], `connection 0 of context "a" (queue pair `},
		{pool, `pool "task" of context "a"`},
		{task, `task of pool "task" of context "a"`},
		{r.a.mem, fmt.Sprintf("memory map, 4194304 bytes from %#x, ", r.a.mem.Addr())},
		{r.a.peer, "memory map of a peer, 4194304 bytes from "},
		{src, fmt.Sprintf("buffer of 8 bytes from %#x with 8 bytes of data", r.a.mem.Addr())},
		{r.a.dev, "soft-"},
	} {
		for _, verb := range []string{"%v", "%+v", "%s"} {
			s := fmt.Sprintf(verb, c.value)
			assert.Contains(t, s, c.want)
			assert.Less(t, len(s), 200)
		}
	}
	require.NoError(t, task.Free())
	assert.Contains(t, fmt.Sprint(task), "free task of")
	assert.Contains(t, fmt.Sprint(src), "unusable buffer: ")
}
