package rules

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// TestTable: the operations as ibv_post_send(3) lists them.
func TestTable(t *testing.T) {
	for op, has := range map[verbs.Opcode][3]bool{ // RC, UC, UD
		verbs.OpSend:        {true, true, true},
		verbs.OpSendImm:     {true, true, true},
		verbs.OpWrite:       {true, true, false},
		verbs.OpWriteImm:    {true, true, false},
		verbs.OpRead:        {true, false, false},
		verbs.OpCompareSwap: {true, false, false},
		verbs.OpFetchAdd:    {true, false, false},

		verbs.OpSendInvalidate:  {true, false, false},
		verbs.OpLocalInvalidate: {true, true, false},
		verbs.OpBindMW:          {true, true, false},
		verbs.OpAtomicWrite:     {true, false, false},
	} {
		for service, want := range has {
			service := verbs.QPType(service)
			err := CheckRequest(service, op, knownFlags)
			if want {
				require.NoError(t, err, "%v on %v", op, service)
				continue
			}
			require.ErrorIs(t, err, verbs.ErrInvalid, "%v on %v", op, service)
			assert.ErrorContains(t, err, "transport service "+service.String()+" has no such operation")
		}
	}
}

// XRC's sending end has the operations of RC, its receiving end none.
func TestXRC(t *testing.T) {
	for op := verbs.OpSend; op <= verbs.OpAtomicWrite; op++ {
		require.NoError(t, CheckRequest(verbs.XRCSend, op, knownFlags), "%v", op)
		require.ErrorIs(t, CheckRequest(verbs.XRCRecv, op, 0), verbs.ErrInvalid, "%v", op)
	}
}

func TestUnknown(t *testing.T) {
	for _, op := range []verbs.Opcode{-1, verbs.OpAtomicWrite + 1, 31, 32, math.MaxInt} {
		err := CheckRequest(verbs.RC, op, 0)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		assert.ErrorContains(t, err, "unknown operation")
	}
	for _, service := range []verbs.QPType{-1, 6, 200} {
		require.ErrorIs(t, CheckRequest(service, verbs.OpSend, 0), verbs.ErrInvalid)
	}
	err := CheckRequest(verbs.RC, verbs.OpSend, verbs.FlagSignaled|1<<20)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	assert.ErrorContains(t, err, "unknown flags 0x100000")
}

// SRD has the operations and flags of efadv_create_qp_ex(3).
func TestSRD(t *testing.T) {
	for op := verbs.OpSend; op <= verbs.OpRead; op++ {
		require.NoError(t, CheckRequest(verbs.SRD, op, verbs.FlagSignaled), "%v", op)
		err := CheckRequest(verbs.SRD, op, verbs.FlagSignaled|verbs.FlagInline)
		if op == verbs.OpSend || op == verbs.OpSendImm {
			require.NoError(t, err, "%v", op)
		} else {
			require.ErrorIs(t, err, verbs.ErrInvalid, "%v", op)
			assert.ErrorContains(t, err, "in sends only")
		}
	}
	for _, op := range []verbs.Opcode{verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite} {
		require.ErrorIs(t, CheckRequest(verbs.SRD, op, 0), verbs.ErrInvalid, "%v", op)
	}
	for _, flag := range []verbs.SendFlags{verbs.FlagSolicited, verbs.FlagFence} {
		err := CheckRequest(verbs.SRD, verbs.OpSend, verbs.FlagSignaled|flag)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		assert.ErrorContains(t, err, "only FlagSignaled and FlagInline")
	}
}
