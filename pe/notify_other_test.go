//go:build !linux

package pe_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

func TestNoNotificationDescriptorHere(t *testing.T) {
	e := newEngine(t, pe.Config{})
	_, err := e.NotificationFD()
	assert.ErrorIs(t, err, pe.ErrNotSupported)
	var un *pe.UnsupportedError
	require.True(t, errors.As(err, &un))
	assert.Equal(t, runtime.GOOS, un.Platform)
	assert.ErrorIs(t, e.Arm(), pe.ErrNotSupported)
	assert.NoError(t, e.Clear())
}
