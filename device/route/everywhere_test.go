package route

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// machine is a host, and a server on its devices that only notes what is asked of it.
type machine struct {
	mu      sync.Mutex
	places  []place
	failure error // of listing them
	changed func()
	next    uint16                                         // the port that a part chooses
	refuse  func(device string) error                      // of opening a device; nil: none
	listen  func(device string, addr netip.AddrPort) error // nil: no error
	opened  int
	parts   map[string]*machinePart // those that are open
	added   []netip.AddrPort
	failed  []string
}

type machinePart struct {
	*machine
	name    string
	at      []netip.AddrPort
	done    chan struct{}
	why     error
	closing chan struct{} // Close waits for it; nil: it does not
}

func (m *machine) open(name string) (Part, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened++
	if m.refuse != nil {
		if err := m.refuse(name); err != nil {
			return nil, err
		}
	}
	if m.parts == nil {
		m.parts = map[string]*machinePart{}
	}
	if m.parts[name] != nil {
		return nil, fmt.Errorf("%s is open", name)
	}
	m.parts[name] = &machinePart{machine: m, name: name, done: make(chan struct{})}
	return m.parts[name], nil
}

func (p *machinePart) Listen(addr netip.AddrPort) (uint16, func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr.Port() == 0 {
		p.next++
		addr = netip.AddrPortFrom(addr.Addr(), p.next)
	}
	if p.listen != nil {
		if err := p.listen(p.name, addr); err != nil {
			return 0, nil, err
		}
	}
	if slices.Contains(p.at, addr) {
		return 0, nil, verbs.ErrInUse
	}
	p.at = append(p.at, addr)
	return addr.Port(), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.at = slices.DeleteFunc(p.at, func(a netip.AddrPort) bool { return a == addr })
	}, nil
}

func (p *machinePart) Done() <-chan struct{} { return p.done }

func (p *machinePart) Close() error {
	if p.closing != nil {
		<-p.closing
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.parts, p.name)
	return p.why
}

func (m *machine) config() ServeConfig {
	return ServeConfig{Open: m.open,
		Added: func(addrs []netip.AddrPort) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.added = append(m.added, addrs...)
		},
		Failed: func(err error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.failed = append(m.failed, err.Error())
		}}
}

// opens returns how often a device was opened.
func (m *machine) opens() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opened
}

// part returns the part on a device; nil: it is not open.
func (m *machine) part(device string) *machinePart {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.parts[device]
}

// at returns the addresses at which a device listens.
func (m *machine) at(device string) []netip.AddrPort {
	p := m.part(device)
	m.mu.Lock()
	defer m.mu.Unlock()
	return p.at
}

// Of places that are 10.0.0.N of the interface eN.
func placeOf(n int) place {
	return place{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), fmt.Sprintf("e%d", n), n}
}

func addrOf(n int) netip.AddrPort { return netip.AddrPortFrom(placeOf(n).addr, 7) }

// simulated has the machine serve port 7 in virtual time, at the places 1 and 2 first.
func simulated(t *testing.T, m *machine, test func(t *testing.T, e *Everywhere)) {
	synctest.Test(t, func(t *testing.T) {
		m.places = []place{placeOf(1), placeOf(2)}
		list := func() ([]place, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return slices.Clone(m.places), m.failure
		}
		e, err := serve(7, m.config(), list, func(ctx context.Context, subscribed, changed func()) {
			m.changed = changed
			subscribed()
			<-ctx.Done()
		})
		require.NoError(t, err)
		test(t, e)
		require.NoError(t, e.Close())
		require.Empty(t, m.parts)
	})
}

// set sets the places, and waits until nothing more happens at present.
func (m *machine) set(failure error, places ...place) {
	m.mu.Lock()
	m.places, m.failure = places, failure
	m.mu.Unlock()
	m.changed()
	m.pause(settle)
}

func (m *machine) pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// loopback returns the place of 127.0.0.1 on this host.
func loopback(t *testing.T) place {
	list, err := places()
	require.NoError(t, err)
	i := slices.IndexFunc(list, func(p place) bool { return p.addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) })
	if i < 0 {
		t.Skip("this host has no loopback interface that is up")
	}
	return list[i]
}

// All addresses have one port, which the first of them chooses.
func TestServe(t *testing.T) {
	lo := loopback(t)
	m := machine{next: 99}
	e, err := Serve(0, m.config())
	require.NoError(t, err)
	assert.EqualValues(t, 100, e.Port())
	assert.Contains(t, e.Addrs(), netip.MustParseAddrPort("127.0.0.1:100"))
	assert.NotEmpty(t, m.at(softDevice(lo.name)))
	for _, a := range e.Addrs() {
		assert.EqualValues(t, 100, a.Port())
	}
	require.NoError(t, e.Close())
	assert.Empty(t, m.parts)
	assert.Empty(t, e.Addrs())
}

// A port that is free on the first device, and in use on another one, is not taken.
func TestServeFindsPort(t *testing.T) {
	lo := loopback(t)
	m := machine{next: 99, listen: func(name string, addr netip.AddrPort) error {
		if name == softDevice(lo.name) && addr.Port() < 102 {
			return verbs.ErrInUse
		}
		return nil
	}}
	e, err := Serve(0, m.config())
	require.NoError(t, err)
	assert.GreaterOrEqual(t, e.Port(), uint16(102))
	for _, a := range e.Addrs() {
		assert.Equal(t, e.Port(), a.Port())
	}
	require.NoError(t, e.Close())
	assert.Empty(t, m.parts)
}

// Serve fails if an address cannot be served, and names it.
func TestServeFails(t *testing.T) {
	lo := loopback(t)
	broken := errors.New("broken")
	m := machine{listen: func(_ string, addr netip.AddrPort) error {
		if addr.Addr() == lo.addr {
			return broken
		}
		return nil
	}}
	_, err := Serve(7, m.config())
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "serve 127.0.0.1 of interface "+lo.name)
	assert.Empty(t, m.parts)
}

// An address that goes while Serve starts is no failure.
func TestServeVanishing(t *testing.T) {
	m := &machine{}
	m.listen = func(device string, _ netip.AddrPort) error {
		if device == "soft-e2" {
			m.places = []place{placeOf(1)}
			return errors.New("no such network interface")
		}
		return nil
	}
	simulated(t, m, func(t *testing.T, e *Everywhere) {
		require.Equal(t, []netip.AddrPort{addrOf(1)}, e.Addrs())
		m.pause(time.Hour)
		require.Empty(t, m.failed)
		require.Nil(t, m.part("soft-e2"))
	})
}

// An address that the system still checks is no failure. One that its interface's device does not have
// gets a device of its own, at any UDP port.
func TestServeOthers(t *testing.T) {
	lo := loopback(t)
	m := machine{
		listen: func(name string, addr netip.AddrPort) error {
			switch {
			case addr.Addr() != lo.addr:
				return fmt.Errorf("bind: %w", syscall.EADDRNOTAVAIL)
			case name == softDevice(lo.name):
				return verbs.ErrInvalid
			}
			return nil
		},
	}
	e, err := Serve(7, m.config())
	require.NoError(t, err)
	at := []netip.AddrPort{netip.AddrPortFrom(lo.addr, 7)}
	assert.Equal(t, at, e.Addrs())
	assert.Equal(t, at, m.at("soft-127.0.0.1:0"))
	require.NoError(t, e.Close())
}

// Without a listener at any address, Addrs is empty, and Port is not.
func TestAddressesComeAndGo(t *testing.T) {
	m := &machine{}
	simulated(t, m, func(t *testing.T, e *Everywhere) {
		require.Equal(t, []netip.AddrPort{addrOf(1), addrOf(2)}, e.Addrs())
		m.set(nil, placeOf(2), placeOf(3))
		require.Equal(t, []netip.AddrPort{addrOf(2), addrOf(3)}, e.Addrs())
		require.Equal(t, []netip.AddrPort{addrOf(3)}, m.added)

		other := placeOf(2)
		other.addr = addrOf(9).Addr()
		m.set(nil, placeOf(2), placeOf(3), other)
		require.Equal(t, []netip.AddrPort{addrOf(2), addrOf(9)}, m.at("soft-e2"))
		for range 2 { // an address of a device that stays goes, and comes back
			m.set(nil, placeOf(3), other)
			require.Equal(t, []netip.AddrPort{addrOf(9)}, m.at("soft-e2"))
			m.set(nil, placeOf(2), placeOf(3), other)
			require.Equal(t, []netip.AddrPort{addrOf(9), addrOf(2)}, m.at("soft-e2"))
		}
		m.set(nil)
		require.Empty(t, e.Addrs())
		require.EqualValues(t, 7, e.Port())
		m.set(nil, placeOf(1))
		require.Equal(t, []netip.AddrPort{addrOf(1)}, e.Addrs())
		require.Empty(t, m.failed)
	})
}

// While the system does not list the addresses, what is served stays. Then it is asked again.
func TestListingFails(t *testing.T) {
	m := &machine{refuse: func(device string) error {
		if device == "soft-e3" {
			return syscall.EADDRNOTAVAIL
		}
		return nil
	}}
	simulated(t, m, func(t *testing.T, e *Everywhere) {
		m.set(nil, placeOf(2), placeOf(3)) // the one is to be closed, and the other tried again
		m.set(syscall.ENOBUFS)
		require.Equal(t, []netip.AddrPort{addrOf(2)}, e.Addrs())
		m.pause(time.Hour)
		require.Equal(t, []string{syscall.ENOBUFS.Error()}, m.failed)
		m.set(syscall.ENOBUFS)
		m.mu.Lock()
		m.places, m.failure = []place{placeOf(4)}, nil
		m.mu.Unlock()
		m.pause(lastRetry)
		require.Equal(t, []netip.AddrPort{addrOf(4)}, e.Addrs())
	})
}

// A device that fails ends only its part, which is opened again.
func TestDeviceFails(t *testing.T) {
	m := &machine{}
	simulated(t, m, func(t *testing.T, e *Everywhere) {
		kept := m.part("soft-e2")
		for n := 1; n <= 3; n++ {
			p := m.part("soft-e1")
			p.why = errors.New("it is broken")
			close(p.done)
			m.pause(3 * settle)
			require.Equal(t, []netip.AddrPort{addrOf(2)}, e.Addrs())
			require.Len(t, m.failed, n)
			require.Equal(t, "device soft-e1: it is broken", m.failed[n-1])
			m.pause(firstRetry << n / 2) // longer each time
			require.Equal(t, []netip.AddrPort{addrOf(1), addrOf(2)}, e.Addrs())
			require.Len(t, m.added, n)
		}
		require.Same(t, kept, m.part("soft-e2"))
	})
}

// A part that takes long to close delays no other address, and its own ones wait for it.
func TestSlowClose(t *testing.T) {
	m := &machine{}
	simulated(t, m, func(t *testing.T, e *Everywhere) {
		slow := m.part("soft-e1")
		slow.closing = make(chan struct{})
		m.set(nil, placeOf(2), placeOf(3))
		m.pause(idleTime)
		require.Equal(t, []netip.AddrPort{addrOf(2), addrOf(3)}, e.Addrs())
		m.set(nil, placeOf(1), placeOf(2), placeOf(3))
		m.pause(time.Hour)
		require.Equal(t, []netip.AddrPort{addrOf(2), addrOf(3)}, e.Addrs())
		close(slow.closing)
		m.pause(settle)
		require.Equal(t, []netip.AddrPort{addrOf(1), addrOf(2), addrOf(3)}, e.Addrs())
		require.Empty(t, m.failed)

		last := m.part("soft-e3")
		last.closing = make(chan struct{})
		closed := false
		go func() { _ = e.Close(); closed = true }()
		synctest.Wait()
		require.False(t, closed)
		close(last.closing)
		synctest.Wait()
		require.True(t, closed)
	})
}

// A part is closed when it has had no address for a while. One whose address comes back before that goes on.
func TestFlap(t *testing.T) {
	m := &machine{}
	simulated(t, m, func(t *testing.T, e *Everywhere) {
		p := m.part("soft-e1")
		for range 3 {
			m.set(nil, placeOf(2))
			require.Equal(t, []netip.AddrPort{addrOf(2)}, e.Addrs())
			m.pause(idleTime - 2*settle)
			m.set(nil, placeOf(1), placeOf(2))
			m.pause(time.Hour)
			require.Equal(t, []netip.AddrPort{addrOf(1), addrOf(2)}, e.Addrs())
			require.Same(t, p, m.part("soft-e1"))
		}
		m.set(nil, placeOf(2))
		m.pause(idleTime)
		require.Nil(t, m.part("soft-e1"))
		require.Empty(t, m.failed)
	})
}

// An address that moves to another interface is served there when the device that had it is closed, so that
// the next one gets its UDP port.
func TestAddressMoves(t *testing.T) {
	m := &machine{}
	simulated(t, m, func(t *testing.T, e *Everywhere) {
		at := func(n int, name string, index int) place {
			p := placeOf(n)
			p.name, p.index = name, index
			return p
		}
		m.set(nil, placeOf(1), placeOf(2), at(3, "e1", 1))
		for i, name := range []string{"br0", "br1", "br1"} { // the last is deleted, and made again
			for device, p := range m.parts {
				if device != "soft-e2" {
					p.closing = make(chan struct{})
				}
			}
			before := maps.Clone(m.parts)
			m.set(nil, at(4, name, 9+i), at(1, name, 9+i), placeOf(2), at(3, "e1", 1))
			m.pause(time.Hour)
			require.Equal(t, before, m.parts) // no other is opened
			for _, p := range before {
				if p.closing != nil {
					close(p.closing)
				}
			}
			m.pause(0)
			require.Equal(t, []netip.AddrPort{addrOf(1), addrOf(2), addrOf(3), addrOf(4)}, e.Addrs())
			require.Equal(t, []netip.AddrPort{addrOf(4), addrOf(1)}, m.at("soft-"+name))
			require.Equal(t, []netip.AddrPort{addrOf(3)}, m.at("soft-e1"))
			require.Len(t, m.parts, 3)
		}
		require.Empty(t, m.failed)
	})
}

// What fails is told once, and tried less and less often. An address that is being checked is tried when
// something changes, and is told of only if it never comes.
func TestRetries(t *testing.T) {
	var checked atomic.Bool
	inUse := placeOf(4) // its device opens, and closes without an address
	inUse.addr = placeOf(9).addr
	m := &machine{
		refuse: func(device string) error {
			switch {
			case device == "soft-e3":
				return verbs.ErrInUse
			case device == "soft-10.0.0.4:0":
				return syscall.EADDRNOTAVAIL
			}
			return nil
		},
		listen: func(device string, addr netip.AddrPort) error {
			switch {
			case addr == addrOf(9):
				return verbs.ErrInUse
			case device == "soft-e4" && !checked.Load():
				return verbs.ErrInvalid
			}
			return nil
		},
	}
	simulated(t, m, func(t *testing.T, e *Everywhere) {
		before := m.opens()
		m.set(nil, placeOf(1), placeOf(2), placeOf(3))
		for range 1000 { // other interfaces come and go
			m.changed()
			m.pause(time.Hour / 1000)
		}
		require.Less(t, m.opens()-before, 70)
		require.Len(t, m.failed, 1)
		require.Contains(t, m.failed[0], "serve 10.0.0.3 of interface e3")

		for range 20 { // as many changes as an interface has that comes
			m.set(nil, placeOf(1), placeOf(2), inUse, placeOf(4))
		}
		require.Len(t, m.failed, 2)
		require.Contains(t, m.failed[1], "serve 10.0.0.9 of interface e4")
		before = m.opens()
		m.pause(2 * time.Second) // nothing changes
		require.Less(t, m.opens()-before, 10)
		checked.Store(true)
		m.changed()
		m.pause(settle)
		require.Equal(t, []netip.AddrPort{addrOf(1), addrOf(2), addrOf(4)}, e.Addrs())
		checked.Store(false)
		m.set(nil, placeOf(1), placeOf(2))
		m.set(nil, placeOf(1), placeOf(2), inUse, placeOf(4))
		before = m.opens()
		m.pause(time.Hour)
		require.Less(t, m.opens()-before, 300)
		require.Len(t, m.failed, 4)
		require.Contains(t, m.failed[3], "serve 10.0.0.4 of interface e4")
	})
}
