//go:build linux && cgo && verbs

package abi

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The codes and flags of libibverbs, as ibv_modify_qp(3) and ibv_reg_mr(3) have them.
func TestCodes(t *testing.T) {
	for code, mtu := range []verbs.MTU{0, 256, 512, 1024, 2048, 4096} {
		assert.Equal(t, mtu, MTU(uint32(code)))
		assert.Equal(t, uint32(code), MTUCode(mtu))
	}
	assert.Zero(t, MTU(6))
	assert.Zero(t, MTUCode(1500))

	all := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	assert.Equal(t, uint32(0xf), AccessFlags(all))
	assert.Equal(t, all, Access(0xf))
	assert.Equal(t, verbs.AccessRelaxedOrdering, Access(1<<20|1<<6), "flags that package verbs has")

	mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	assert.Equal(t, int32(1|1<<3|1<<4|1<<5), MaskFlags(mask))
	assert.Equal(t, mask, Mask(1|1<<1|1<<3|1<<4|1<<5), "IBV_QP_CUR_STATE is none of package verbs'")
	for _, b := range MaskBits {
		assert.Equal(t, b.Attr, Mask(MaskFlags(b.Attr)))
	}
}
