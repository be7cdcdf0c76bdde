// Package verbstest has what tests of drivers and of packages on verbs share.
package verbstest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// ToRTS is BringUp for tests.
func ToRTS(t testing.TB, qp verbs.QP, service verbs.QPType, attr verbs.QPAttr) {
	t.Helper()
	require.NoError(t, BringUp(qp, service, attr))
}

// BringUp takes a queue pair from Reset to RTS. attr has the attributes of all three transitions:
// each takes those that the transport service requires.
func BringUp(qp verbs.QP, service verbs.QPType, attr verbs.QPAttr) error {
	masks := []verbs.QPAttrMask{verbs.RCToInit, verbs.RCToRTR, verbs.RCToRTS}
	switch service {
	case verbs.UC:
		masks = []verbs.QPAttrMask{verbs.UCToInit, verbs.UCToRTR, verbs.UCToRTS}
	case verbs.UD:
		masks = []verbs.QPAttrMask{verbs.UDToInit, verbs.UDToRTR, verbs.UDToRTS}
	case verbs.SRD:
		masks = []verbs.QPAttrMask{verbs.SRDToInit, verbs.SRDToRTR, verbs.SRDToRTS}
	}
	for i, state := range []verbs.QPState{verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend} {
		attr.State = state
		if err := qp.Modify(attr, masks[i]); err != nil {
			return fmt.Errorf("to %v: %w", state, err)
		}
	}
	return nil
}
