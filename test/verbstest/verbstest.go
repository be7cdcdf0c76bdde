// Package verbstest has what tests of drivers and of packages on verbs share.
package verbstest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// ToRTS takes a queue pair from Reset to RTS. attr has the attributes of all three transitions:
// each takes those that the transport service requires.
func ToRTS(t testing.TB, qp verbs.QP, service verbs.QPType, attr verbs.QPAttr) {
	t.Helper()
	masks := []verbs.QPAttrMask{verbs.RCToInit, verbs.RCToRTR, verbs.RCToRTS}
	switch service {
	case verbs.UC:
		masks = []verbs.QPAttrMask{verbs.UCToInit, verbs.UCToRTR, verbs.UCToRTS}
	case verbs.UD:
		masks = []verbs.QPAttrMask{verbs.UDToInit, verbs.UDToRTR, verbs.UDToRTS}
	}
	for i, state := range []verbs.QPState{verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend} {
		attr.State = state
		require.NoError(t, qp.Modify(attr, masks[i]), "to %v", state)
	}
}
