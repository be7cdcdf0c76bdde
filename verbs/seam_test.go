package verbs

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestFrozen holds the core interfaces to the rule in the package comment: what is
// new becomes an optional interface.
func TestFrozen(t *testing.T) {
	core := map[reflect.Type][]string{
		reflect.TypeFor[Driver](): {"Devices", "Name", "Open"},
		reflect.TypeFor[Device](): {
			"AllocPD", "Close", "Counters", "CreateCQ", "DefaultPD", "Driver", "GIDs", "Name", "Query", "QueryPort", "SubscribeEvents",
		},
		reflect.TypeFor[PD]():  {"Close", "CreateAH", "CreateQP", "CreateSRQ", "Device", "RegMR"},
		reflect.TypeFor[MR]():  {"Access", "Addr", "Close", "LKey", "Len", "RKey"},
		reflect.TypeFor[CQ]():  {"Arm", "Capacity", "Close", "OnCompletion", "Poll"},
		reflect.TypeFor[SRQ](): {"Close", "PostRecv", "SetLimit"},
		reflect.TypeFor[QP]():  {"Close", "Modify", "Num", "PostRecv", "PostSend", "Query", "Type"},
		reflect.TypeFor[AH]():  {"Close"},
	}
	for seam, want := range core {
		assert.Equal(t, want, methods(seam), "%v", seam)
	}
	for _, optional := range []reflect.Type{reflect.TypeFor[DMABufPD](), reflect.TypeFor[WatchableMR](), reflect.TypeFor[ClosingDevice](), reflect.TypeFor[CMDevice]()} {
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
	assert.LessOrEqual(t, reflect.TypeFor[WC]().Size(), uintptr(64), "a WC fits into a cache line")
}
