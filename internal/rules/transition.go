package rules

import (
	"errors"
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/verbs"
)

// Limits are a device's limits for the attributes of its queue pairs.
type Limits struct {
	Ports          int // numbered from 1
	PKeys          int // entries of the P_Key table; zero if not known
	InitReadAtomic int // greatest MaxInitReadAtomic
	DestReadAtomic int // greatest MaxDestReadAtomic
}

var attributes = []struct {
	mask   verbs.QPAttrMask
	name   string
	assign func(to, from *verbs.QPAttr)
}{
	{verbs.QPAttrPKeyIndex, "PKeyIndex", func(to, from *verbs.QPAttr) { to.PKeyIndex = from.PKeyIndex }},
	{verbs.QPAttrPort, "Port", func(to, from *verbs.QPAttr) { to.Port = from.Port }},
	{verbs.QPAttrAccess, "Access", func(to, from *verbs.QPAttr) { to.Access = from.Access }},
	{verbs.QPAttrQKey, "QKey", func(to, from *verbs.QPAttr) { to.QKey = from.QKey }},
	{verbs.QPAttrAddress, "Address", func(to, from *verbs.QPAttr) { to.Address = from.Address }},
	{verbs.QPAttrPathMTU, "PathMTU", func(to, from *verbs.QPAttr) { to.PathMTU = from.PathMTU }},
	{verbs.QPAttrTimeout, "Timeout", func(to, from *verbs.QPAttr) { to.Timeout = from.Timeout }},
	{verbs.QPAttrRetryCount, "RetryCount", func(to, from *verbs.QPAttr) { to.RetryCount = from.RetryCount }},
	{verbs.QPAttrRNRRetry, "RNRRetry", func(to, from *verbs.QPAttr) { to.RNRRetry = from.RNRRetry }},
	{verbs.QPAttrRQPSN, "RQPSN", func(to, from *verbs.QPAttr) { to.RQPSN = from.RQPSN }},
	{verbs.QPAttrMaxInitReadAtomic, "MaxInitReadAtomic", func(to, from *verbs.QPAttr) { to.MaxInitReadAtomic = from.MaxInitReadAtomic }},
	{verbs.QPAttrMaxDestReadAtomic, "MaxDestReadAtomic", func(to, from *verbs.QPAttr) { to.MaxDestReadAtomic = from.MaxDestReadAtomic }},
	{verbs.QPAttrMinRNRTimer, "MinRNRTimer", func(to, from *verbs.QPAttr) { to.MinRNRTimer = from.MinRNRTimer }},
	{verbs.QPAttrSQPSN, "SQPSN", func(to, from *verbs.QPAttr) { to.SQPSN = from.SQPSN }},
	{verbs.QPAttrDestQPN, "DestQPN", func(to, from *verbs.QPAttr) { to.DestQPN = from.DestQPN }},
}

// Assign copies the given attributes, but not the state.
func Assign(to, from *verbs.QPAttr, given verbs.QPAttrMask) {
	for _, a := range attributes {
		if given&a.mask != 0 {
			a.assign(to, from)
		}
	}
}

// AttributeName is the name of the first attribute in the mask, as package verbs spells it.
func AttributeName(mask verbs.QPAttrMask) string {
	for _, a := range attributes {
		if mask&a.mask != 0 {
			return a.name
		}
	}
	return fmt.Sprintf("bits %#x", uint32(mask))
}

var errNoTransition = errors.New("there is no such transition")

// CheckTransition says why a queue pair of the service in the state from cannot make the
// change. The mask says which attributes are given; without QPAttrState the state stays. Its
// errors name the attribute at fault; the caller adds the queue pair and the states.
func CheckTransition(service verbs.QPType, from verbs.QPState, attr *verbs.QPAttr, mask verbs.QPAttrMask, limits Limits) error {
	to := from
	if mask&verbs.QPAttrState != 0 {
		to = attr.State
	}
	given := mask &^ verbs.QPAttrState
	var rule attrs
	switch {
	case to == verbs.QPReset, to == verbs.QPError && from != verbs.QPReset:
	default:
		if service < 0 || int(service) >= len(transitions) {
			return fmt.Errorf("there is no transport service %v", service)
		}
		var ok bool
		if rule, ok = transitions[service][step{from, to}]; !ok {
			return errNoTransition
		}
	}
	if missing := rule.required &^ given; missing != 0 {
		return fmt.Errorf("attribute %s is missing", AttributeName(missing))
	}
	if extra := given &^ (rule.required | rule.optional); extra != 0 {
		return fmt.Errorf("attribute %s is not allowed in this transition", AttributeName(extra))
	}
	return checkValues(attr, given, limits)
}

// CheckAttributes reports an attribute, or an enumerated value of one, that package verbs does
// not define. CheckTransition includes it.
func CheckAttributes(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	unknown := mask &^ verbs.QPAttrState
	for _, a := range attributes {
		unknown &^= a.mask
	}
	if unknown != 0 {
		return fmt.Errorf("unknown attribute: %s", AttributeName(unknown))
	}
	return checkCodes(attr, mask)
}

func checkCodes(a *verbs.QPAttr, given verbs.QPAttrMask) error {
	if given&verbs.QPAttrPathMTU != 0 && !a.PathMTU.Valid() {
		return fmt.Errorf("attribute PathMTU is %d; it must be 256, 512, 1024, 2048 or 4096", a.PathMTU)
	}
	if unknown := a.Access &^ QueuePairRights; given&verbs.QPAttrAccess != 0 && unknown != 0 {
		return fmt.Errorf("attribute Access has the unknown bits %#x", uint32(unknown))
	}
	return nil
}

const most24 = 0xffffff // of queue pair and packet sequence numbers

// checkValues names the first attribute whose value is out of its range.
func checkValues(a *verbs.QPAttr, given verbs.QPAttrMask, l Limits) error {
	if given&verbs.QPAttrPKeyIndex != 0 && (a.PKeyIndex < 0 || l.PKeys > 0 && a.PKeyIndex >= l.PKeys) {
		last := math.MaxUint16 // if the number of entries is not known
		if l.PKeys > 0 {
			last = l.PKeys - 1
		}
		return outOfRange("PKeyIndex", a.PKeyIndex, 0, last)
	}
	if err := checkCodes(a, given); err != nil {
		return err
	}
	for _, f := range [...]struct {
		mask       verbs.QPAttrMask
		value, low uint32
	}{
		{verbs.QPAttrDestQPN, a.DestQPN, 2}, // 0 and 1 are for management (IBTA 3.3)
		{verbs.QPAttrRQPSN, a.RQPSN, 0},
		{verbs.QPAttrSQPSN, a.SQPSN, 0},
	} {
		if given&f.mask != 0 && (f.value < f.low || f.value > most24) {
			return fmt.Errorf("attribute %s is %#x; it must be from %d to %#x", AttributeName(f.mask), f.value, f.low, most24)
		}
	}
	for _, f := range [...]struct {
		mask             verbs.QPAttrMask
		value, low, high int
	}{
		{verbs.QPAttrPort, a.Port, 1, l.Ports},
		{verbs.QPAttrTimeout, int(a.Timeout), 0, 31},
		{verbs.QPAttrRetryCount, int(a.RetryCount), 0, 7},
		{verbs.QPAttrRNRRetry, int(a.RNRRetry), 0, 7},
		{verbs.QPAttrMinRNRTimer, int(a.MinRNRTimer), 0, 31},
		{verbs.QPAttrMaxInitReadAtomic, a.MaxInitReadAtomic, 0, l.InitReadAtomic},
		{verbs.QPAttrMaxDestReadAtomic, a.MaxDestReadAtomic, 0, l.DestReadAtomic},
	} {
		if given&f.mask != 0 && (f.value < f.low || f.value > f.high) {
			return outOfRange(AttributeName(f.mask), f.value, f.low, f.high)
		}
	}
	return nil
}

func outOfRange(name string, value, low, high int) error {
	return fmt.Errorf("attribute %s is %d; it must be from %d to %d", name, value, low, high)
}
