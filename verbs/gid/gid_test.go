package gid

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestChoose(t *testing.T) {
	entry := func(index int, typ verbs.GIDType, gid verbs.GID) verbs.GIDEntry {
		return verbs.GIDEntry{Index: index, Type: typ, GID: gid}
	}
	linkLocal := verbs.GID{0: 0xfe, 1: 0x80, 15: 1}
	global := verbs.GID{0: 0x20, 1: 1, 15: 1}
	four := verbs.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}
	table := []verbs.GIDEntry{
		entry(0, verbs.GIDRoCEv1, linkLocal), entry(1, verbs.GIDRoCEv2, linkLocal), entry(2, verbs.GIDRoCEv2, global),
		entry(3, verbs.GIDRoCEv1, four), entry(4, verbs.GIDRoCEv2, four),
	}
	for n, want := range map[int]int{5: 4, 4: 2, 3: 2, 2: 1} {
		got, err := Choose(table[:n], verbs.LinkEthernet, nil)
		require.NoError(t, err)
		assert.Equal(t, want, got.Index, "of the first %d", n)
	}
	_, err := Choose(table[:1], verbs.LinkEthernet, nil)
	require.ErrorIs(t, err, errs.ErrGID)
	_, err = Choose(table, verbs.LinkEthernet, new(3))
	require.ErrorIs(t, err, errs.ErrGID)
	require.ErrorContains(t, err, "4 (10.0.0.1, RoCEv2)")
	got, err := Choose(table, verbs.LinkEthernet, new(1))
	require.NoError(t, err)
	assert.Equal(t, 1, got.Index)
	for _, layer := range []verbs.LinkLayer{verbs.LinkInfiniBand, verbs.LinkUnspecified} {
		got, err = Choose([]verbs.GIDEntry{entry(0, verbs.GIDInfiniBand, linkLocal)}, layer, nil)
		require.NoError(t, err)
		assert.Equal(t, 0, got.Index)
		_, err = Choose(table, layer, nil)
		require.ErrorIs(t, err, errs.ErrGID)
	}
}
