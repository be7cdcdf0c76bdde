package device_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpen(t *testing.T) {
	d, err := device.Open("soft-lo")
	require.NoError(t, err)
	assert.Equal(t, "soft", d.Driver())
	require.NoError(t, d.Close())
}

func TestOpenUnknown(t *testing.T) {
	d, err := device.Open("nothing0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Nil(t, d)
	assert.Contains(t, err.Error(), "nothing0")
	list, err2 := device.List()
	require.NoError(t, err2)
	require.NotEmpty(t, list)
	for _, i := range list {
		assert.Contains(t, err.Error(), i.Name)
	}
}

func TestOpenBadOption(t *testing.T) {
	_, err := device.Open("soft-lo?loss=lots")
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

// Every process that opens soft-lo gets an address of its own.
func ExampleOpen() {
	dev, err := device.Open("soft-lo")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	port, err := dev.QueryPort(1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(dev.Name(), "is", port.State, "with a path MTU of", port.ActiveMTU)
	// Output: soft-lo is active with a path MTU of 4096
}

// The software device is there on any machine; adapters follow where there are some.
func ExampleList() {
	list, err := device.List()
	if err != nil {
		fmt.Println(err)
	}
	for _, d := range list {
		if d.Interface == "lo" && d.Driver == "soft" {
			fmt.Println(d.Name, d.Driver)
		}
	}
	// Output: soft-lo soft
}
