package verbs_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

// TestFrozen holds the core interfaces to the rule in the package comment: what is
// new becomes an optional interface.
func TestFrozen(t *testing.T) {
	core := map[reflect.Type][]string{
		reflect.TypeFor[verbs.Driver](): {"Devices", "Name", "Open"},
		reflect.TypeFor[verbs.Device](): {
			"AllocPD", "Close", "Counters", "CreateCQ", "DefaultPD", "Driver", "GIDs", "Name", "Query", "QueryPort", "SubscribeEvents",
		},
		reflect.TypeFor[verbs.PD]():  {"Close", "CreateAH", "CreateQP", "CreateSRQ", "Device", "RegMR"},
		reflect.TypeFor[verbs.MR]():  {"Access", "Addr", "Close", "LKey", "Len", "RKey"},
		reflect.TypeFor[verbs.CQ]():  {"Arm", "Capacity", "Close", "OnCompletion", "Poll"},
		reflect.TypeFor[verbs.SRQ](): {"Close", "PostRecv", "SetLimit"},
		reflect.TypeFor[verbs.QP]():  {"Close", "Modify", "Num", "PostRecv", "PostSend", "Query", "Type"},
		reflect.TypeFor[verbs.AH]():  {"Close"},
	}
	for seam, want := range core {
		assert.Equal(t, want, methods(seam), "%v", seam)
	}
	for _, optional := range []reflect.Type{reflect.TypeFor[verbs.DMABufPD](), reflect.TypeFor[verbs.ClosingDevice](), reflect.TypeFor[verbs.CMDevice](),
		reflect.TypeFor[verbs.WindowPD](), reflect.TypeFor[verbs.ExtendedCQ](), reflect.TypeFor[verbs.NumberedAH](),
		reflect.TypeFor[verbs.MulticastQP](), reflect.TypeFor[verbs.MulticastCM](),
		reflect.TypeFor[verbs.XRCDevice](), reflect.TypeFor[verbs.XRCDomain](), reflect.TypeFor[verbs.XRCSRQ](),
	} {
		assert.LessOrEqual(t, optional.NumMethod(), 2, "%v", optional)
	}
}

func methods(t reflect.Type) (names []string) {
	for i := range t.NumMethod() {
		names = append(names, t.Method(i).Name)
	}
	return names
}

// TestSizes: Poll copies completions. What makes them larger belongs beside them.
func TestSizes(t *testing.T) {
	assert.LessOrEqual(t, reflect.TypeFor[verbs.WC]().Size(), uintptr(64), "a WC fits into a cache line")
}
