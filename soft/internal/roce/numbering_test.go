package roce

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// Every number comes once before any comes again, and leaves room for the shard's.
func TestNumbersDoNotComeAgain(t *testing.T) {
	t.Parallel()
	n := newNumbering()
	seen := make([]bool, 1<<numberBits)
	some := len(seen)
	if testing.Short() {
		some /= 8
	}
	for range some {
		number := n.take()
		if number&shardBits != 0 || number >= 1<<24 || seen[number/maxShards] {
			t.Fatalf("%#x, seen %v", number, seen[number/maxShards&(1<<numberBits-1)])
		}
		seen[number/maxShards] = true
	}
	if some == len(seen) {
		assert.True(t, seen[n.take()/maxShards])
	}
}

// One's own numbers do not tell those of others: no difference of two in a row comes again
// and again, within a device and between devices.
func TestNumbersCannotBeTold(t *testing.T) {
	x := openSide(t, Config{}, 64)
	const pairs = 200
	differences := make(map[uint32]int)
	last := x.qp.Num()
	for range pairs {
		q, err := x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
		require.NoError(t, err)
		differences[q.Num()-last]++
		last = q.Num()
		require.NoError(t, q.Close())
	}
	assert.Greater(t, len(differences), pairs*9/10)
	a, b := newNumbering(), newNumbering()
	same := 0
	for range pairs {
		if a.take() == b.take() {
			same++
		}
	}
	assert.Less(t, same, pairs/10)
}
