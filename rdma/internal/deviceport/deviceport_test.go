package deviceport

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// device is a device with one port.
type device struct {
	verbs.Device
	attr  verbs.PortAttr
	table []verbs.GIDEntry
}

func (d *device) Name() string                          { return "test" }
func (d *device) QueryPort(int) (verbs.PortAttr, error) { return d.attr, nil }
func (d *device) GIDs(int) ([]verbs.GIDEntry, error)    { return d.table, nil }
func entry(index int, addr netip.Addr) verbs.GIDEntry {
	return verbs.GIDEntry{Index: index, Type: verbs.GIDRoCEv2, GID: verbs.GIDFromAddr(addr)}
}

// The first address stays that of the port, whatever its index. Another one serves while it is gone.
func TestRefresh(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	d := &device{attr: verbs.PortAttr{State: verbs.PortActive, ActiveMTU: 4096, LinkLayer: verbs.LinkEthernet}}
	d.table = []verbs.GIDEntry{entry(0, a), entry(1, b)}
	p, err := New(d, 1, &d.attr, nil, 1024)
	require.NoError(t, err)
	require.Equal(t, State{GID: entry(0, a), MTU: 1024}, *p.State())
	require.False(t, p.Chosen())
	refresh := func(changes bool, table ...verbs.GIDEntry) State {
		d.table = table
		changed, err := p.Refresh()
		require.NoError(t, err)
		assert.Equal(t, changes, changed)
		return *p.State()
	}
	assert.Equal(t, 0, refresh(false, entry(0, a), entry(1, b)).GID.Index)
	assert.Equal(t, entry(3, a), refresh(true, entry(0, b), entry(3, a)).GID)
	assert.Equal(t, entry(0, b), refresh(true, entry(0, b)).GID)
	assert.Equal(t, b, p.IP())
	assert.Equal(t, entry(1, a), refresh(true, entry(0, b), entry(1, a)).GID)
	d.attr.ActiveMTU = 512
	assert.Equal(t, verbs.MTU(512), refresh(true, d.table...).MTU)

	d.attr.State = verbs.PortDown
	_, err = p.Refresh()
	require.ErrorIs(t, err, errs.ErrDevice)
	assert.Equal(t, a, p.IP(), "the state stays")
	assert.Contains(t, Problem(d, 1, a), "port 1 of test is down")
	d.attr.State = verbs.PortActive
	assert.Empty(t, Problem(d, 1, a))
	assert.Contains(t, Problem(d, 1, netip.MustParseAddr("192.0.2.3")), "no longer in the GID table")
	assert.Contains(t, AnyProblem(d, 1, netip.MustParseAddr("192.0.2.3")), "any port of test")
}

// An address that was chosen by its index is never replaced by another.
func TestChosenAddress(t *testing.T) {
	d := &device{attr: verbs.PortAttr{State: verbs.PortActive, ActiveMTU: 4096, LinkLayer: verbs.LinkEthernet}}
	d.table = []verbs.GIDEntry{entry(0, netip.MustParseAddr("192.0.2.1")), entry(1, netip.MustParseAddr("192.0.2.2"))}
	p, err := New(d, 1, &d.attr, new(1), 0)
	require.NoError(t, err)
	require.True(t, p.Chosen())
	d.table = d.table[:1]
	_, err = p.Refresh()
	require.ErrorIs(t, err, errs.ErrGID)
	_, err = New(d, 1, &d.attr, new(1), 0)
	require.ErrorIs(t, err, errs.ErrGID)
}
