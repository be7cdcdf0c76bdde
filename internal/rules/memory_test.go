package rules

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestCheckDMABuf(t *testing.T) {
	for _, c := range []struct {
		offset, length, iova uint64
		want                 string
	}{
		{0, 1, 0, ""},
		{70000, 5, 70000, ""},
		{1, 1, 1 << 20, "positions within a page"},
		{0, 0, 0, "empty"},
		{0, 1 << 63, 0, "past the end of memory"},
		{1 << 62, 1 << 62, 0, "past the end of memory"},
		{0, 2, math.MaxUint64, "past the end of memory"},
	} {
		err := CheckDMABuf(verbs.DMABuf{Offset: c.offset, Length: c.length, IOVA: c.iova}, 0)
		if c.want == "" {
			assert.NoError(t, err, "%+v", c)
			continue
		}
		assert.ErrorIs(t, err, verbs.ErrInvalid, "%+v", c)
		assert.ErrorContains(t, err, c.want)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		length uint64
		access verbs.Access
		want   string // empty: nothing is wrong
	}{
		{1, 0, ""},
		{1 << 62, Rights, ""},
		{1, verbs.AccessRemoteRead, ""},
		{1, verbs.AccessRemoteWrite | verbs.AccessLocalWrite, ""},
		{1, verbs.AccessRemoteAtomic | verbs.AccessLocalWrite, ""},
		{0, 0, "empty"},
		{1, verbs.AccessRemoteWrite, "needs local write"},
		{1, verbs.AccessRemoteAtomic | verbs.AccessRemoteRead, "needs local write"},
		{1, verbs.AccessLocalWrite | 1<<20, "access rights 0x100001"},
	} {
		err := CheckRegistration(c.length, c.access)
		if c.want == "" {
			assert.NoError(t, err, "%+v", c)
			continue
		}
		assert.ErrorIs(t, err, verbs.ErrInvalid, "%+v", c)
		assert.ErrorContains(t, err, c.want)
	}
}
