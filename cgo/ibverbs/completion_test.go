//go:build linux && cgo && verbs

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/internal/efa/efatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// What the C type of a completion holds, under names of Go's: tests cannot import C.
func resize[T any](s *[]T, n int) { *s = make([]T, n) }

// Receives of datagrams on InfiniBand say where they came from. Others do not, whatever
// the device has left in the fields.
func TestCompletionLIDs(t *testing.T) {
	const receive, send = 1 << 7, 0
	q := &completionQueue{}
	resize(&q.batch, 1)
	from := &q.batch[0]
	from.qp_num, from.opcode, from.slid, from.sl, from.byte_len = 17, receive, 0xabcd, 5, 100
	want := verbs.WC{Opcode: verbs.WCRecv, QPN: 17, Bytes: 100}
	check := func() {
		t.Helper()
		var wc verbs.WC
		q.read(0, &wc, nil)
		assert.Equal(t, want, wc)
	}
	check()
	q.setLIDs(17, false) // it was not set: nothing happens
	q.setLIDs(18, true)
	check()
	q.setLIDs(17, true)
	want.SLID, want.SL = 0xabcd, 5
	check()
	from.opcode = send
	want = verbs.WC{Opcode: verbs.WCSend, QPN: 17, Bytes: 100}
	check()
	from.opcode, from.status = receive, 1
	want = verbs.WC{Status: 1, QPN: 17}
	check()
	from.status = 0
	q.setLIDs(17, false) // the queue pair has gone to a port on Ethernet
	want = verbs.WC{Opcode: verbs.WCRecv, QPN: 17, Bytes: 100}
	check()
}

// The same of extended queues, of which the library says it by functions. When the queue
// pair is gone, its number may be that of another kind.
func TestExtendedCompletionLIDs(t *testing.T) {
	q := &completionQueue{device: newEFA(t, efatest.WithClock)}
	require.NoError(t, q.createExtended(10, 0))
	defer q.extended.free()
	q.setLIDs(17, true)
	wcs := make([]verbs.WC, 10)
	n, err := q.Poll(wcs[:1])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Equal(t, verbs.WC{ID: 1, Opcode: verbs.WCRecv, Bytes: 100, HasImm: true, Imm: 0xabcd, QPN: 17, SrcQPN: 18, SLID: 5, SL: 3}, wcs[0])
	q.dropCompletions(17)
	assert.Empty(t, q.lids)
	n, err = q.Poll(wcs)
	require.NoError(t, err)
	require.Zero(t, n)
}
