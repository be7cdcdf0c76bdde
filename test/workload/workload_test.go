package main

import (
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/pair"
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

// The buffers have the data in order, and memory does not; nothing lies outside of the part's place.
func TestScatter(t *testing.T) {
	for n, want := range map[int][]part{1: {{4, 10}}, 2: {{9, 5}, {4, 5}}, 3: {{11, 3}, {8, 3}, {4, 4}}} {
		assert.Equal(t, want, scatter(4, 10, n))
	}
	assert.Len(t, scatter(4, 10, 20), 10)
	assert.Empty(t, scatter(4, 0, 3))
}
