package transport

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

type transition struct{ from, to verbs.QPState }

type attrRule struct{ required, optional verbs.QPAttrMask }

// The attributes of each transport service's transitions (IBTA 11.2.4.2, table
// 91; ibv_modify_qp(3)).
var rules = [...]map[transition]attrRule{verbs.RC: rcRules, verbs.UC: ucRules, verbs.UD: udRules}

var rcRules = map[transition]attrRule{
	{verbs.QPReset, verbs.QPInitialized}: {
		required: verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
	},
	{verbs.QPInitialized, verbs.QPInitialized}: {
		optional: verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
	},
	{verbs.QPInitialized, verbs.QPReadyToReceive}: {
		required: verbs.QPAttrAddress | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMinRNRTimer,
		optional: verbs.QPAttrPKeyIndex | verbs.QPAttrAccess,
	},
	{verbs.QPReadyToReceive, verbs.QPReadyToSend}: {
		required: verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrSQPSN |
			verbs.QPAttrMaxInitReadAtomic,
		optional: verbs.QPAttrAccess | verbs.QPAttrMinRNRTimer,
	},
	{verbs.QPReadyToSend, verbs.QPReadyToSend}: {
		optional: verbs.QPAttrAccess | verbs.QPAttrMinRNRTimer,
	},
	{verbs.QPReadyToSend, verbs.QPSendQueueDrained}: {},
	{verbs.QPSendQueueDrained, verbs.QPReadyToSend}: {
		optional: verbs.QPAttrAccess | verbs.QPAttrMinRNRTimer,
	},
}

var attrNames = []struct {
	mask verbs.QPAttrMask
	name string
}{
	{verbs.QPAttrPKeyIndex, "PKeyIndex"}, {verbs.QPAttrPort, "Port"}, {verbs.QPAttrAccess, "Access"},
	{verbs.QPAttrQKey, "QKey"}, {verbs.QPAttrAddress, "Address"}, {verbs.QPAttrPathMTU, "PathMTU"},
	{verbs.QPAttrTimeout, "Timeout"}, {verbs.QPAttrRetryCount, "RetryCount"}, {verbs.QPAttrRNRRetry, "RNRRetry"},
	{verbs.QPAttrRQPSN, "RQPSN"}, {verbs.QPAttrMaxInitReadAtomic, "MaxInitReadAtomic"},
	{verbs.QPAttrMaxDestReadAtomic, "MaxDestReadAtomic"}, {verbs.QPAttrMinRNRTimer, "MinRNRTimer"},
	{verbs.QPAttrSQPSN, "SQPSN"}, {verbs.QPAttrDestQPN, "DestQPN"},
}

func nameOf(mask verbs.QPAttrMask) string {
	for _, a := range attrNames {
		if mask&a.mask != 0 {
			return a.name
		}
	}
	return fmt.Sprintf("bits %#x", uint32(mask))
}

// Limits of what a reliable connection's attributes may hold.
const (
	MaxReadAtomic = 128
	maxPort       = 1
)

// Modify changes attributes and state; a refused change changes nothing.
func (q *QP) Modify(a verbs.QPAttr, mask verbs.QPAttrMask) error {
	to := q.state
	if mask&verbs.QPAttrState != 0 {
		to = a.State
	}
	given := mask &^ verbs.QPAttrState
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("modify queue pair %#x, %v to %v: %s: %w", q.num, q.state, to, fmt.Sprintf(format, args...), verbs.ErrInvalid)
	}
	switch to {
	case verbs.QPReset, verbs.QPError:
		if given != 0 {
			return refuse("attribute %s is not taken in this transition", nameOf(given))
		}
		if to == verbs.QPReset {
			q.state = verbs.QPReset
			q.reset()
		} else {
			if q.state == verbs.QPReset {
				return refuse("there is no such transition")
			}
			q.fail()
		}
		return nil
	}
	rule, ok := rules[q.kind][transition{q.state, to}]
	if !ok {
		return refuse("there is no such transition")
	}
	if missing := rule.required &^ given; missing != 0 {
		return refuse("attribute %s is missing", nameOf(missing))
	}
	if extra := given &^ (rule.required | rule.optional); extra != 0 {
		return refuse("attribute %s is not taken in this transition", nameOf(extra))
	}
	if name, why := badAttr(&a, given); name != "" {
		return refuse("attribute %s %s", name, why)
	}
	q.assign(&a, given)
	q.enter(to)
	return nil
}

// badAttr names the first attribute whose value is out of its range.
func badAttr(a *verbs.QPAttr, given verbs.QPAttrMask) (name, why string) {
	has := func(m verbs.QPAttrMask) bool { return given&m != 0 }
	switch {
	case has(verbs.QPAttrPKeyIndex) && a.PKeyIndex != 0:
		return "PKeyIndex", fmt.Sprintf("is %d, the table has one entry, 0", a.PKeyIndex)
	case has(verbs.QPAttrPort) && a.Port != maxPort:
		return "Port", fmt.Sprintf("is %d, the device has one port, 1", a.Port)
	case has(verbs.QPAttrPathMTU) && !a.PathMTU.Valid():
		return "PathMTU", fmt.Sprintf("is %d, it must be 256, 512, 1024, 2048 or 4096", a.PathMTU)
	case has(verbs.QPAttrDestQPN) && (a.DestQPN > 0xffffff || a.DestQPN < 2):
		return "DestQPN", fmt.Sprintf("is %#x, it must be from 2 to 0xffffff", a.DestQPN)
	case has(verbs.QPAttrRQPSN) && a.RQPSN > wire.PSNMask:
		return "RQPSN", fmt.Sprintf("is %#x, it has 24 bits", a.RQPSN)
	case has(verbs.QPAttrSQPSN) && a.SQPSN > wire.PSNMask:
		return "SQPSN", fmt.Sprintf("is %#x, it has 24 bits", a.SQPSN)
	case has(verbs.QPAttrTimeout) && a.Timeout > 31:
		return "Timeout", fmt.Sprintf("is %d, it must be from 0 to 31", a.Timeout)
	case has(verbs.QPAttrRetryCount) && a.RetryCount > 7:
		return "RetryCount", fmt.Sprintf("is %d, it must be from 0 to 7", a.RetryCount)
	case has(verbs.QPAttrRNRRetry) && a.RNRRetry > 7:
		return "RNRRetry", fmt.Sprintf("is %d, it must be from 0 to 7", a.RNRRetry)
	case has(verbs.QPAttrMinRNRTimer) && a.MinRNRTimer > 31:
		return "MinRNRTimer", fmt.Sprintf("is %d, it must be from 0 to 31", a.MinRNRTimer)
	case has(verbs.QPAttrMaxInitReadAtomic) && (a.MaxInitReadAtomic < 0 || a.MaxInitReadAtomic > MaxReadAtomic):
		return "MaxInitReadAtomic", fmt.Sprintf("is %d, it must be from 0 to %d", a.MaxInitReadAtomic, MaxReadAtomic)
	case has(verbs.QPAttrMaxDestReadAtomic) && (a.MaxDestReadAtomic < 0 || a.MaxDestReadAtomic > MaxReadAtomic):
		return "MaxDestReadAtomic", fmt.Sprintf("is %d, it must be from 0 to %d", a.MaxDestReadAtomic, MaxReadAtomic)
	}
	return "", ""
}

func (q *QP) assign(a *verbs.QPAttr, given verbs.QPAttrMask) {
	for _, f := range []struct {
		mask verbs.QPAttrMask
		set  func()
	}{
		{verbs.QPAttrPKeyIndex, func() { q.attr.PKeyIndex = a.PKeyIndex }},
		{verbs.QPAttrPort, func() { q.attr.Port = a.Port }},
		{verbs.QPAttrAccess, func() { q.attr.Access = a.Access }},
		{verbs.QPAttrQKey, func() { q.attr.QKey = a.QKey }},
		{verbs.QPAttrAddress, func() { q.attr.Address = a.Address }},
		{verbs.QPAttrPathMTU, func() { q.attr.PathMTU = a.PathMTU }},
		{verbs.QPAttrDestQPN, func() { q.attr.DestQPN = a.DestQPN }},
		{verbs.QPAttrRQPSN, func() { q.attr.RQPSN = a.RQPSN }},
		{verbs.QPAttrSQPSN, func() { q.attr.SQPSN = a.SQPSN }},
		{verbs.QPAttrTimeout, func() { q.attr.Timeout = a.Timeout }},
		{verbs.QPAttrRetryCount, func() { q.attr.RetryCount = a.RetryCount }},
		{verbs.QPAttrRNRRetry, func() { q.attr.RNRRetry = a.RNRRetry }},
		{verbs.QPAttrMinRNRTimer, func() { q.attr.MinRNRTimer = a.MinRNRTimer }},
		{verbs.QPAttrMaxInitReadAtomic, func() { q.attr.MaxInitReadAtomic = a.MaxInitReadAtomic }},
		{verbs.QPAttrMaxDestReadAtomic, func() { q.attr.MaxDestReadAtomic = a.MaxDestReadAtomic }},
	} {
		if given&f.mask != 0 {
			f.set()
		}
	}
}

// enter prepares the machines for the state reached.
func (q *QP) enter(to verbs.QPState) {
	from := q.state
	q.state = to
	switch {
	case from == verbs.QPInitialized && to == verbs.QPReadyToReceive:
		q.setPath(q.pathMTU(), 0)
		q.startResponder()
	case from == verbs.QPReadyToReceive && to == verbs.QPReadyToSend:
		q.setPath(q.pathMTU(), q.attr.Timeout)
		q.startRequester()
	case from == verbs.QPSendQueueError && to == verbs.QPReadyToSend:
		q.sendPSN = q.nextPSN // past what was flushed
	}
}

// pathMTU is the path's MTU; datagrams, whose path is any, go by the port's.
func (q *QP) pathMTU() verbs.MTU {
	if q.kind == verbs.UD {
		return q.portMTU
	}
	return q.attr.PathMTU
}
