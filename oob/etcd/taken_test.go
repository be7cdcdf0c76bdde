package etcd

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A responder that stays open after its requester has gone is not taken again.
func TestUsedResponderStaysTaken(t *testing.T) {
	c, cfg := newClient(t), directory(t)
	first, used := newCarrier(c, cfg), newCarrier(c, cfg)
	gotFirst, gotUsed := exchange(t, first, requester(), "of first"), exchange(t, used, responder(), "of used")
	for _, got := range []func() (string, error){gotFirst, gotUsed} {
		_, err := got()
		require.NoError(t, err)
	}
	require.NoError(t, first.Close(true))

	second, free := newCarrier(c, cfg), newCarrier(c, cfg)
	gotSecond := exchange(t, second, requester(), "of second")
	gotFree := exchange(t, free, responder(), "of free")
	theirs, err := gotSecond()
	require.NoError(t, err)
	assert.Equal(t, "of free", theirs)
	_, err = gotFree()
	require.NoError(t, err)
	require.NoError(t, used.Done(forever(t)))
	require.NoError(t, errors.Join(second.Close(true), free.Close(true), used.Close(true)))
	assertEmpty(t, c, cfg)
}
