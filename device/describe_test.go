package device_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestDescribe(t *testing.T) {
	_, err := device.Describe(nil)
	require.ErrorIs(t, err, verbs.ErrInvalid)

	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	d, err := device.Describe(dev)
	require.NoError(t, err)
	attr, err := dev.Query()
	require.NoError(t, err)
	gids, err := dev.GIDs(1)
	require.NoError(t, err)
	assert.Equal(t, attr, d.Attr)
	require.Len(t, d.Ports, attr.Ports)
	assert.Equal(t, gids, d.Ports[0].GIDs)
	assert.NotEmpty(t, d.Counters)

	text := d.String()
	for _, part := range []string{"device", "soft-lo", "port 1", "active", "path MTU", gids[0].GID.String(), "counters", d.Counters[0].Name, "RC, UC, UD, SRD", "timestamp"} {
		assert.Contains(t, text, part)
	}
	for line := range strings.Lines(text + "\n") {
		assert.Equal(t, strings.TrimRight(line, " \n")+"\n", line)
	}
	require.NoError(t, dev.Close())

	// One that cannot say everything is an error, not a part of it.
	for _, broken := range []verbs.Device{
		&silent{dev, "Query"}, &silent{dev, "QueryPort"}, &silent{dev, "GIDs"}, &silent{dev, "Counters"},
	} {
		_, err := device.Describe(broken)
		require.ErrorIs(t, err, errSilent)
		require.ErrorContains(t, err, "soft-lo")
	}
}

// The zero value prints, and so does a device that has next to nothing.
func TestDescriptionPrintsAnything(t *testing.T) {
	assert.NotEmpty(t, new(device.Description).String())
	d := device.Description{
		Attr:  verbs.DeviceAttr{Atomics: true, AtomicsGlobal: true, MaxMW: 5, MWTypes: verbs.MWTypeSet(verbs.MWType1, verbs.MWType2), Invalidation: true},
		Ports: []device.PortDescription{{Attr: verbs.PortAttr{LinkLayer: verbs.LinkInfiniBand, LID: 77, ActiveRate: 25e9}, GIDs: []verbs.GIDEntry{{Index: 3}}}},
	}
	for _, part := range []string{"unknown", "25 Gbit/s", "LID", "77", "GID 3", "to the processor", "5 of type 1 and type 2"} {
		assert.Contains(t, d.String(), part)
	}
}

// What a device has beside connections is there or said not to be.
func TestDescriptionLimits(t *testing.T) {
	all := device.Description{Attr: verbs.DeviceAttr{
		Transports: verbs.TransportSet(verbs.UD, verbs.SRD), MaxAH: 60, MaxMulticastGroups: 61, Invalidation: true, AtomicWrite: true,
		CompletionFields: verbs.WCTimestamp | verbs.WCSource, ClockFrequency: 62,
		SRD: verbs.SRDAttr{
			MaxSendWR: 1, MaxRecvWR: 2, MaxSendSGE: 3, MaxRecvSGE: 4, MaxReadSGE: 5, MaxInline: 6, MaxMessage: 7, MaxRDMA: 8,
			Read: true, Write: true, UnsolicitedWriteRecv: true, RNRRetry: true,
		},
	}}
	wantRows(t, &all, map[string]string{
		"transports": "UD, SRD", "address handles": "60", "multicast": "61 groups", "invalidation": "local, and by sends", "atomic writes": "8 bytes",
		"completion fields": "timestamp, source", "clock": "62 ticks a second",
		"queues": "1 sends, 2 receives", "buffers": "3 of a send, 4 of a receive, 5 of a read or write",
		"message": "7 bytes, inline up to 6", "reads": "8 bytes", "writes": "8 bytes",
		"unsolicited writes": "with immediate, without a receive", "RNR retries": "can be set",
	})
	all.Attr.SRD = verbs.SRDAttr{}
	wantRows(t, &all, map[string]string{"reads": "none", "writes": "none", "unsolicited writes": "none", "RNR retries": "cannot be set"})

	var none device.Description
	wantRows(t, &none, map[string]string{
		"transports": "none", "address handles": "none", "multicast": "none", "memory windows": "none", "invalidation": "none",
		"completion fields": "none", "clock": "none",
	})
	assert.NotContains(t, none.String(), "SRD", "it has no such queue pairs")
}

// wantRows compares rows of the table, by their labels.
func wantRows(t *testing.T, d *device.Description, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for line := range strings.Lines(d.String()) {
		label, value, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if _, asked := want[label]; asked {
			got[label] = strings.TrimSpace(value)
		}
	}
	assert.Equal(t, want, got)
}

var errSilent = errors.New("says nothing")

// silent is a device that one of the questions of Describe fails on.
type silent struct {
	verbs.Device
	on string
}

func (s *silent) fails(call string) error {
	if s.on == call {
		return errSilent
	}
	return nil
}

func (s *silent) Query() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{Ports: 1}, s.fails("Query")
}
func (s *silent) QueryPort(int) (verbs.PortAttr, error) {
	return verbs.PortAttr{}, s.fails("QueryPort")
}
func (s *silent) GIDs(int) ([]verbs.GIDEntry, error) { return nil, s.fails("GIDs") }
func (s *silent) Counters() ([]verbs.Counter, error) { return nil, s.fails("Counters") }
func (s *silent) Name() string                       { return "soft-lo" }

// All that there is to know about a device, for people.
func ExampleDescribe() {
	dev, err := device.Open("soft-lo")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	d, err := device.Describe(dev)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Name, "of driver", d.Driver, "has", len(d.Ports), "port") // fmt.Println(d) is a table of all
	// Output: soft-lo of driver soft has 1 port
}
