package main

import (
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The table and the list of pairs have the same operations.
func TestOperations(t *testing.T) {
	var names []string
	for _, p := range pair.Workloads() {
		o, err := operationByName(p.Operation)
		require.NoError(t, err)
		assert.Equal(t, p.Values, o.shape == value, p.Name)
		names = append(names, p.Operation)
	}
	names = append(names, "count") // which is not in the matrix
	slices.Sort(names)
	assert.ElementsMatch(t, operationNames(), slices.Compact(names))
}

func TestFlags(t *testing.T) {
	s, err := parse([]string{"-op", "send", "-as", "requester", "-g", "1", "-mtu", "512", "-size", "7", "-sge", "3", "-nc", "2"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "send", s.operation.name)
	assert.True(t, s.requester)
	assert.Equal(t, 1, *s.gid)
	assert.EqualValues(t, 512, s.mtu)
	assert.Equal(t, []int{7, 3, 2}, []int{s.size, s.sge, s.connections})

	s, err = parse([]string{"-op", "sync_event", "-as", "responder"}, io.Discard)
	require.NoError(t, err)
	assert.False(t, s.requester)
	assert.Nil(t, s.gid)
	assert.Equal(t, []int{0, 1, 1}, []int{s.size, s.sge, s.connections})
}

// Each connection and each size has data of its own; a piece is checked at its place.
func TestStream(t *testing.T) {
	first, second := make([]byte, 100), make([]byte, 100)
	out := newStream(200, 0)
	out.fill(first)
	out.fill(second)
	in := newStream(200, 0)
	require.NoError(t, in.check(first))
	require.NoError(t, in.check(second))
	assert.Equal(t, out.String(), in.String())
	require.ErrorContains(t, newStream(200, 0).check(second), "the data is wrong")
	require.ErrorContains(t, newStream(200, 1).check(first), "the data is wrong")
	require.ErrorContains(t, newStream(201, 0).check(first), "the data is wrong")
}

func TestDivide(t *testing.T) {
	for n, want := range map[int][]part{
		0:  {{0, 0}},
		1:  {{0, 1}},
		10: {{0, 10}},
		11: {{0, 10}, {10, 1}},
		30: {{0, 10}, {10, 10}, {20, 10}},
	} {
		assert.Equal(t, want, divide(n, 10))
	}
}

// The list has the data in order, and memory does not; nothing lies outside of the
// part's place.
func TestScatter(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	m, err := mmap.Alloc(dev, 20, mmap.LocalReadWrite)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	var bufs bufinv.Inventory
	defer func() { require.NoError(t, bufs.Close()) }()

	want := make([]byte, 10)
	newStream(10, 0).fill(want)
	for n, order := range map[int][]int{1: {0, 10}, 2: {5, 10, 0, 5}, 3: {6, 10, 3, 6, 0, 3}, 20: {9, 10, 8, 9, 7, 8, 6, 7, 5, 6, 4, 5, 3, 4, 2, 3, 1, 2, 0, 1}} {
		clear(m.Bytes())
		list := scatter(&bufs, m, 4, 10, n)
		require.NoError(t, load(list, newStream(10, 0)))
		assert.Equal(t, min(n, 10), list.ListLen())
		assert.Equal(t, want, list.AppendBytes(nil))
		require.NoError(t, unload(list, newStream(10, 0)))
		placed := make([]byte, 4)
		for i := 0; i < len(order); i += 2 {
			placed = append(placed, want[order[i]:order[i+1]]...)
		}
		assert.Equal(t, append(placed, make([]byte, 6)...), m.Bytes())
		require.NoError(t, list.Free())
	}
	assert.Nil(t, scatter(&bufs, m, 4, 0, 3))
	require.ErrorIs(t, scatter(&bufs, m, 18, 3, 2).Err(), bufinv.ErrRange)
	assert.Equal(t, bufs.Total(), bufs.Available())
}
