package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// devices are those of a server that only notes what is asked of it.
type devices struct {
	mu     sync.Mutex
	next   uint16                                         // the port that a part chooses
	listen func(device string, addr netip.AddrPort) error // nil: no error
	at     map[string][]netip.AddrPort                    // by device, those that are open
}

type devicesPart struct {
	*devices
	name string
}

func (d *devices) open(name string) (Part, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[string][]netip.AddrPort{}
	}
	if _, ok := d.at[name]; ok {
		return nil, fmt.Errorf("%s is open", name)
	}
	d.at[name] = nil
	return &devicesPart{d, name}, nil
}

func (p *devicesPart) Listen(addr netip.AddrPort) (uint16, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr.Port() == 0 {
		p.next++
		addr = netip.AddrPortFrom(addr.Addr(), p.next)
	}
	if p.listen != nil {
		if err := p.listen(p.name, addr); err != nil {
			return 0, err
		}
	}
	p.at[p.name] = append(p.at[p.name], addr)
	return addr.Port(), nil
}

func (p *devicesPart) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.at, p.name)
	return nil
}

func ignore([]netip.AddrPort, error) {}

// All addresses have one port, which the first of them chooses.
func TestServe(t *testing.T) {
	d := devices{next: 99}
	e, err := Serve(0, d.open, ignore)
	require.NoError(t, err)
	assert.Contains(t, e.Addrs(), netip.MustParseAddrPort("127.0.0.1:100"))
	d.mu.Lock()
	assert.NotEmpty(t, d.at["soft-lo"])
	d.mu.Unlock()
	for _, a := range e.Addrs() {
		assert.EqualValues(t, 100, a.Port())
	}
	require.NoError(t, e.Close())
	assert.Empty(t, d.at)
}

// A port that is free on the first device, and in use on another one, is not taken.
func TestServeFindsPort(t *testing.T) {
	d := devices{next: 99, listen: func(name string, addr netip.AddrPort) error {
		if name == "soft-lo" && addr.Port() < 102 {
			return verbs.ErrInUse
		}
		return nil
	}}
	e, err := Serve(0, d.open, ignore)
	require.NoError(t, err)
	for _, a := range e.Addrs() {
		assert.GreaterOrEqual(t, a.Port(), uint16(102))
		assert.Equal(t, e.Addrs()[0].Port(), a.Port())
	}
	require.NoError(t, e.Close())
	assert.Empty(t, d.at)
}

// Serve fails if an address cannot be served, and names it.
func TestServeFails(t *testing.T) {
	broken := errors.New("broken")
	d := devices{listen: func(_ string, addr netip.AddrPort) error {
		if addr.Addr().IsLoopback() && addr.Addr().Is4() {
			return broken
		}
		return nil
	}}
	_, err := Serve(7, d.open, ignore)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "serve 127.0.0.1 of interface lo")
	assert.Empty(t, d.at)
}

// An address that the system still checks is no failure. One that its interface's device does not have
// gets a device of its own.
func TestServeOthers(t *testing.T) {
	localhost := netip.MustParseAddr("127.0.0.1")
	d := devices{listen: func(name string, addr netip.AddrPort) error {
		switch {
		case addr.Addr() != localhost:
			return fmt.Errorf("bind: %w", syscall.EADDRNOTAVAIL)
		case strings.HasPrefix(name, "soft-lo"):
			return verbs.ErrInvalid
		}
		return nil
	}}
	e, err := Serve(7, d.open, ignore)
	require.NoError(t, err)
	assert.Equal(t, []netip.AddrPort{netip.AddrPortFrom(localhost, 7)}, e.Addrs())
	d.mu.Lock()
	assert.True(t, slices.Contains(d.at["soft-127.0.0.1"], netip.AddrPortFrom(localhost, 7)), "%v", d.at)
	d.mu.Unlock()
	require.NoError(t, e.Close())
}
