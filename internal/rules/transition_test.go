package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

var limits = Limits{Ports: 1, PKeys: 1, InitReadAtomic: 16, DestReadAtomic: 16}

// The attributes that ibv_modify_qp(3) lists for the way to RTS.
var required = map[verbs.QPType]map[verbs.QPState]verbs.QPAttrMask{
	verbs.RC: {
		verbs.QPInitialized: verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
		verbs.QPReadyToReceive: verbs.QPAttrAddress | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMinRNRTimer,
		verbs.QPReadyToSend: verbs.QPAttrSQPSN | verbs.QPAttrMaxInitReadAtomic | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrTimeout,
	},
	verbs.UC: {
		verbs.QPInitialized:    verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
		verbs.QPReadyToReceive: verbs.QPAttrAddress | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN,
		verbs.QPReadyToSend:    verbs.QPAttrSQPSN,
	},
	verbs.UD: {
		verbs.QPInitialized:    verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey,
		verbs.QPReadyToReceive: 0,
		verbs.QPReadyToSend:    verbs.QPAttrSQPSN,
	},
	verbs.XRCSend: {
		verbs.QPInitialized:    verbs.UCToInit &^ verbs.QPAttrState,
		verbs.QPReadyToReceive: verbs.UCToRTR &^ verbs.QPAttrState,
		verbs.QPReadyToSend:    verbs.RCToRTS &^ verbs.QPAttrState,
	},
	verbs.XRCRecv: {
		verbs.QPInitialized:    verbs.RCToInit &^ verbs.QPAttrState,
		verbs.QPReadyToReceive: verbs.RCToRTR &^ verbs.QPAttrState,
		verbs.QPReadyToSend:    verbs.QPAttrSQPSN | verbs.QPAttrTimeout,
	},
	verbs.SRD: {
		verbs.QPInitialized:    verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey,
		verbs.QPReadyToReceive: 0,
		verbs.QPReadyToSend:    verbs.QPAttrSQPSN,
	},
}

func valid(to verbs.QPState) verbs.QPAttr {
	return verbs.QPAttr{State: to, Port: 1, PathMTU: 1024, DestQPN: 17, MaxInitReadAtomic: 1, MaxDestReadAtomic: 1}
}

func TestWayToRTS(t *testing.T) {
	for service, steps := range required {
		for to, mask := range steps {
			attr := valid(to)
			require.NoError(t, CheckTransition(service, to-1, &attr, mask|verbs.QPAttrState, limits), "%v to %v", service, to)
			for bit := verbs.QPAttrMask(2); bit <= verbs.QPAttrDestQPN; bit <<= 1 {
				err := CheckTransition(service, to-1, &attr, mask&^bit|verbs.QPAttrState, limits)
				if mask&bit != 0 {
					require.EqualError(t, err, "attribute "+AttributeName(bit)+" is missing")
				} else {
					require.NoError(t, err)
				}
			}
		}
	}
}

func TestNotTaken(t *testing.T) {
	attr := valid(verbs.QPReadyToSend)
	for service, steps := range required {
		mask := steps[verbs.QPReadyToSend] | verbs.QPAttrState
		assert.EqualError(t, CheckTransition(service, verbs.QPReadyToReceive, &attr, mask|verbs.QPAttrRQPSN, limits),
			"attribute RQPSN is not allowed in this transition")
	}
	attr.State = verbs.QPError
	assert.NoError(t, CheckTransition(verbs.RC, verbs.QPInitialized, &attr, verbs.QPAttrState, limits))
	assert.EqualError(t, CheckTransition(verbs.RC, verbs.QPInitialized, &attr, verbs.QPAttrState|verbs.QPAttrPort, limits),
		"attribute Port is not allowed in this transition")
	assert.EqualError(t, CheckTransition(verbs.RC, verbs.QPInitialized, &attr, verbs.QPAttrState|1<<30, limits),
		"attribute bits 0x40000000 is not allowed in this transition")
}

func TestNoTransition(t *testing.T) {
	for _, c := range []struct{ from, to verbs.QPState }{
		{verbs.QPReset, verbs.QPReadyToSend}, {verbs.QPReset, verbs.QPError}, {verbs.QPError, verbs.QPReadyToSend},
		{verbs.QPReadyToReceive, verbs.QPReadyToReceive}, {verbs.QPReadyToSend, verbs.QPInitialized},
		{verbs.QPInitialized, 99}, {-1, verbs.QPInitialized},
	} {
		attr := valid(c.to)
		assert.ErrorIs(t, CheckTransition(verbs.RC, c.from, &attr, verbs.QPAttrState, limits), errNoTransition, "%v to %v", c.from, c.to)
	}
	attr := valid(verbs.QPReset)
	assert.NoError(t, CheckTransition(verbs.UD, verbs.QPError, &attr, verbs.QPAttrState, limits))
	attr = valid(verbs.QPInitialized)
	for _, service := range []verbs.QPType{-1, 6} {
		assert.ErrorContains(t, CheckTransition(service, verbs.QPReset, &attr, verbs.QPAttrState, limits), "no transport service")
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		to   verbs.QPState
		spot func(*verbs.QPAttr)
		want string
	}{
		{verbs.QPInitialized, func(a *verbs.QPAttr) { a.Access = 1 << 31 }, "attribute Access has the unknown bits 0x80000000"},
		{verbs.QPInitialized, func(a *verbs.QPAttr) { a.PKeyIndex = 1 }, "attribute PKeyIndex is 1; it must be from 0 to 0"},
		{verbs.QPInitialized, func(a *verbs.QPAttr) { a.Port = 2 }, "attribute Port is 2; it must be from 1 to 1"},
		{verbs.QPReadyToReceive, func(a *verbs.QPAttr) { a.PathMTU = 1500 }, "attribute PathMTU is 1500; it must be 256, 512, 1024, 2048 or 4096"},
		{verbs.QPReadyToReceive, func(a *verbs.QPAttr) { a.DestQPN = 1 }, "attribute DestQPN is 0x1; it must be from 2 to 0xffffff"},
		{verbs.QPReadyToReceive, func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }, "attribute RQPSN is 0x1000000; it must be from 0 to 0xffffff"},
		{verbs.QPReadyToReceive, func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }, "attribute MinRNRTimer is 32; it must be from 0 to 31"},
		{verbs.QPReadyToReceive, func(a *verbs.QPAttr) { a.MaxDestReadAtomic = 17 }, "attribute MaxDestReadAtomic is 17; it must be from 0 to 16"},
		{verbs.QPReadyToSend, func(a *verbs.QPAttr) { a.SQPSN = 1 << 24 }, "attribute SQPSN is 0x1000000; it must be from 0 to 0xffffff"},
		{verbs.QPReadyToSend, func(a *verbs.QPAttr) { a.Timeout = 32 }, "attribute Timeout is 32; it must be from 0 to 31"},
		{verbs.QPReadyToSend, func(a *verbs.QPAttr) { a.RetryCount = 8 }, "attribute RetryCount is 8; it must be from 0 to 7"},
		{verbs.QPReadyToSend, func(a *verbs.QPAttr) { a.RNRRetry = 8 }, "attribute RNRRetry is 8; it must be from 0 to 7"},
		{verbs.QPReadyToSend, func(a *verbs.QPAttr) { a.MaxInitReadAtomic = -1 }, "attribute MaxInitReadAtomic is -1; it must be from 0 to 16"},
	} {
		attr := valid(c.to)
		c.spot(&attr)
		assert.EqualError(t, CheckTransition(verbs.RC, c.to-1, &attr, required[verbs.RC][c.to]|verbs.QPAttrState, limits), c.want)
	}
}

// An error names a range that exists even if the device's number of P_Keys is not known.
func TestUnknownNumberOfPKeys(t *testing.T) {
	attr := valid(verbs.QPInitialized)
	attr.PKeyIndex = -1
	err := CheckTransition(verbs.RC, verbs.QPReset, &attr, required[verbs.RC][verbs.QPInitialized]|verbs.QPAttrState, Limits{Ports: 1})
	assert.EqualError(t, err, "attribute PKeyIndex is -1; it must be from 0 to 65535")
}

func TestCheckAttributes(t *testing.T) {
	every := verbs.QPAttrDestQPN<<1 - 1
	attr := valid(verbs.QPReadyToSend)
	assert.NoError(t, CheckAttributes(&attr, every))
	assert.EqualError(t, CheckAttributes(&attr, every|1<<30), "unknown attribute: bits 0x40000000")
	attr.Access = verbs.AccessRemoteRead | 1<<20
	assert.EqualError(t, CheckAttributes(&attr, every), "attribute Access has the unknown bits 0x100000")
	assert.NoError(t, CheckAttributes(&attr, every&^verbs.QPAttrAccess))
	attr.PathMTU = 1500
	assert.EqualError(t, CheckAttributes(&attr, verbs.QPAttrPathMTU), "attribute PathMTU is 1500; it must be 256, 512, 1024, 2048 or 4096")
}
