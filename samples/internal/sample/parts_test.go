package sample

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/soft"
)

func TestParts(t *testing.T) {
	s, _ := newSession(t, requesterProgram, nil)
	for n, want := range map[int][]Part{
		0:  {{0, 0}},
		1:  {{0, 1}},
		10: {{0, 10}},
		11: {{0, 10}, {10, 1}},
		30: {{0, 10}, {10, 10}, {20, 10}},
	} {
		assert.Equal(t, want, s.Parts(n, 10))
		assert.Equal(t, len(want), Tasks(n, 10))
	}
}

// The list has the data in order, and memory does not; nothing lies outside of the
// part's place.
func TestLoad(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	m, err := mmap.Alloc(dev, 20, mmap.LocalReadWrite)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	bufs, err := bufinv.New(8)
	require.NoError(t, err)
	defer func() { require.NoError(t, bufs.Close()) }()

	data := []byte("0123456789abcdefghij")
	for n, want := range map[int]string{1: "456789abcd", 2: "9abcd45678", 3: "abcd789456", 20: "dcba987654"} {
		clear(m.Bytes())
		if n > bufs.Total() {
			require.NoError(t, bufs.Expand(n))
		}
		list, err := Load(bufs, m, Part{4, 10}, n, data)
		require.NoError(t, err)
		assert.Equal(t, min(n, 10), list.ListLen())
		assert.Equal(t, data[4:14], list.AppendBytes(nil))
		assert.Equal(t, "\x00\x00\x00\x00"+want+"\x00\x00\x00\x00\x00\x00", string(m.Bytes()))
		require.NoError(t, list.Free())
	}
	none, err := Load(bufs, m, Part{4, 0}, 3, data)
	require.NoError(t, err)
	assert.Nil(t, none)
	_, err = Load(bufs, m, Part{18, 3}, 2, append(data, 0))
	require.ErrorIs(t, err, bufinv.ErrRange)
	assert.Equal(t, bufs.Total(), bufs.Available())
}
