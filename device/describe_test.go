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
	for _, part := range []string{"device", "soft-lo", "port 1", "active", "path MTU", gids[0].GID.String(), "counters", d.Counters[0].Name} {
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
	for _, part := range []string{"unknown", "25 Gbit/s", "LID", "77", "GID 3", "to the processor", "5 of type 1 and type 2, with invalidation"} {
		assert.Contains(t, d.String(), part)
	}
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
