package mmap

import (
	"math"
	"os"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestAlloc(t *testing.T) {
	dev := newDevice("fake0")
	const size = 10_001
	m, err := Alloc(dev, size, LocalReadWrite|RemoteRead|RelaxedOrdering)
	require.NoError(t, err)
	mem := m.Bytes()
	require.Len(t, mem, size)
	for _, b := range mem {
		require.Zero(t, b)
	}
	mem[size-1] = 1
	assert.Equal(t, uint64(uintptr(unsafe.Pointer(&mem[0]))), m.Addr())
	assert.Zero(t, m.Addr()%uint64(os.Getpagesize()))
	assert.Equal(t, size, m.Len())
	assert.False(t, m.Remote())
	assert.Zero(t, m.RKey())
	assert.Nil(t, m.UserData())
	assert.Equal(t, LocalReadWrite|RemoteRead|RelaxedOrdering, m.Permissions())
	assert.Equal(t, []verbs.Device{dev}, m.Friends(friend.Package{}).Devices())

	require.Len(t, dev.pd.live, 1)
	assert.Equal(t, &mem[0], &dev.pd.live[0].mem[0])
	assert.Len(t, dev.pd.live[0].mem, size)
	assert.Equal(t, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRelaxedOrdering, dev.pd.live[0].access)
	key, err := m.LKey(dev.pd)
	require.NoError(t, err)
	assert.Equal(t, dev.pd.live[0].key, key)

	require.NoError(t, m.Close())
	assert.Empty(t, dev.pd.live)
	assert.Nil(t, m.Bytes())
	require.NoError(t, m.Close(), "closing again")
	_, err = m.LKey(dev.pd)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, forFriends{m}.Hold(), ErrClosed)
	require.ErrorIs(t, m.AddDevice(newDevice("fake1")), ErrClosed)
	require.ErrorIs(t, m.RemoveDevice(dev), ErrClosed)
	_, err = m.Export(dev)
	require.ErrorIs(t, err, ErrClosed)
}

func TestRegister(t *testing.T) {
	dev := newDevice("fake0")
	mem := []byte("the caller's own memory")
	m, err := Register(dev, mem, LocalReadOnly)
	require.NoError(t, err)
	assert.Same(t, &mem[0], &m.Bytes()[0])
	assert.Equal(t, verbs.Access(0), dev.pd.live[0].access)
	require.NoError(t, m.Close())
	assert.Equal(t, "the caller's own memory", string(mem))
}

func TestRegisterTakesMemoryFromAnywhere(t *testing.T) {
	dev := newDevice("fake0")
	outside, err := Alloc(dev, 4096, LocalReadOnly)
	require.NoError(t, err)
	inside := make([]byte, 100)
	for _, mem := range [][]byte{outside.Bytes()[10:20], global[:], inside[3:7]} {
		m, err := Register(dev, mem, LocalReadOnly)
		require.NoError(t, err)
		require.NoError(t, m.Close())
	}
	require.NoError(t, outside.Close())
}

var global = [8]byte{1}

func TestNewErrors(t *testing.T) {
	dev := newDevice("fake0")
	refusing := newDevice("fake1")
	refusing.pd.refuse = true
	for name, c := range map[string]struct {
		dev  verbs.Device
		cfg  Config
		want error
	}{
		"no device":             {nil, Config{Size: 1}, ErrInvalid},
		"no size":               {dev, Config{}, ErrRange},
		"negative size":         {dev, Config{Size: -1}, ErrRange},
		"empty memory":          {dev, Config{Memory: []byte{}}, ErrRange},
		"memory and size":       {dev, Config{Memory: []byte("x"), Size: 1}, ErrInvalid},
		"unknown permission":    {dev, Config{Size: 1, Permissions: 1 << 20}, ErrInvalid},
		"remote write alone":    {dev, Config{Size: 1, Permissions: RemoteWrite}, ErrPermission},
		"remote atomic alone":   {dev, Config{Size: 1, Permissions: RemoteAtomic | RemoteRead}, ErrPermission},
		"the driver, allocated": {refusing, Config{Size: 1}, errDriver},
		"the driver, caller's":  {refusing, Config{Memory: []byte("x")}, errDriver},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.OnFree = func([]byte) { t.Error("OnFree was called") }
			m, err := New(c.dev, c.cfg)
			require.ErrorIs(t, err, c.want)
			assert.Nil(t, m)
		})
	}
	_, err := Register(dev, nil, LocalReadOnly)
	require.ErrorIs(t, err, ErrRange)
	_, err = Alloc(dev, math.MaxInt, LocalReadOnly)
	require.Error(t, err, "more than there is")
	assert.Empty(t, dev.pd.live)
}

func TestCloseOrder(t *testing.T) {
	dev := newDevice("fake0")
	calls := 0
	var m *Map
	m, err := New(dev, Config{Size: 4096, UserData: "mine", OnFree: func(mem []byte) {
		calls++
		assert.Empty(t, dev.pd.live, "no device reaches the memory any more")
		assert.Len(t, mem, 4096)
		mem[0] = 1 // still mapped
		assert.NoError(t, m.Close(), "methods can be called")
	}})
	require.NoError(t, err)
	assert.Equal(t, "mine", m.UserData())
	require.NoError(t, forFriends{m}.Hold())
	require.NoError(t, forFriends{m}.Hold())
	require.ErrorContains(t, m.Close(), ": 2 buffers use it;")
	require.NoError(t, forFriends{m}.Release())
	require.ErrorIs(t, m.Close(), ErrInUse)
	require.NoError(t, forFriends{m}.Release())
	require.ErrorIs(t, forFriends{m}.ReleaseFor(friend.MemoryWindow), ErrNotHeld)
	for range 2 {
		require.NoError(t, forFriends{m}.HoldFor(friend.MemoryWindow))
	}
	require.ErrorContains(t, m.Close(), ": 2 memory windows are bound to it;")
	require.NoError(t, forFriends{m}.ReleaseFor(friend.MemoryWindow))
	require.NoError(t, forFriends{m}.ReleaseFor(friend.MemoryWindow))
	assert.Zero(t, calls)
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	assert.Equal(t, 1, calls)
}

func TestCloseTriedAgain(t *testing.T) {
	one, two := newDevice("fake0"), newDevice("fake1")
	m, err := Alloc(one, 4096, LocalReadOnly)
	require.NoError(t, err)
	require.NoError(t, m.AddDevice(two))
	two.pd.refuseClose = true
	err = m.Close()
	require.ErrorIs(t, err, errDriver)
	assert.Contains(t, err.Error(), "fake1")
	assert.Len(t, m.Bytes(), 4096, "the memory stays while a device can reach it")
	require.NoError(t, forFriends{m}.Hold())
	require.NoError(t, forFriends{m}.Release())
	two.pd.refuseClose = false
	require.NoError(t, m.Close())
	assert.Empty(t, one.pd.live)
	assert.Empty(t, two.pd.live)
}

// A renewed Map is as a new one: peers with its old key reach nothing, and what they have written is gone.
func TestRenew(t *testing.T) {
	dev := newDevice("fake0")
	m, err := Alloc(dev, 64, LocalReadWrite|RemoteWrite)
	require.NoError(t, err)
	old, err := m.ExportKey(dev.pd)
	require.NoError(t, err)
	m.Bytes()[3] = 1
	require.NoError(t, forFriends{m}.Hold())
	require.ErrorIs(t, forFriends{m}.Renew(), ErrInUse)
	require.NoError(t, forFriends{m}.Release())
	require.NoError(t, forFriends{m}.Renew())
	require.Zero(t, m.Bytes()[3])
	next, err := m.ExportKey(dev.pd)
	require.NoError(t, err)
	require.NotEqual(t, old, next)
	require.Len(t, dev.pd.live, 1)
	require.Equal(t, next, dev.pd.live[0].RKey())
	lkey, err := m.LKey(dev.pd)
	require.NoError(t, err)
	require.Equal(t, dev.pd.live[0].LKey(), lkey)

	dev.pd.refuse = true
	require.ErrorIs(t, forFriends{m}.Renew(), errDriver)
	require.Empty(t, dev.pd.live)
	require.NoError(t, m.Close())
	require.ErrorIs(t, forFriends{m}.Renew(), ErrClosed)
}

func TestHoldAndRelease(t *testing.T) {
	m, err := Alloc(newDevice("fake0"), 1, LocalReadOnly)
	require.NoError(t, err)
	require.ErrorIs(t, forFriends{m}.Release(), ErrNotHeld)
	for range 3 {
		require.NoError(t, forFriends{m}.Hold())
	}
	err = m.Close()
	require.ErrorIs(t, err, ErrInUse)
	assert.Contains(t, err.Error(), "3 buffers")
	require.ErrorIs(t, m.AddDevice(newDevice("fake1")), ErrInUse)
	require.ErrorIs(t, m.RemoveDevice(m.Friends(friend.Package{}).Devices()[0]), ErrInUse)
	for range 3 {
		require.NoError(t, forFriends{m}.Release())
	}
	require.ErrorIs(t, forFriends{m}.Release(), ErrNotHeld)
	require.NoError(t, m.Close())
}

func TestSeveralDevices(t *testing.T) {
	one, two := newDevice("fake0"), newDevice("fake1")
	m, err := Alloc(one, 64, LocalReadWrite|RemoteWrite)
	require.NoError(t, err)
	_, err = m.LKey(two.pd)
	require.ErrorIs(t, err, ErrNotRegistered)
	_, err = m.Export(two)
	require.ErrorIs(t, err, ErrNotRegistered)

	require.NoError(t, m.AddDevice(two))
	require.ErrorIs(t, m.AddDevice(two), ErrExists)
	require.ErrorIs(t, m.AddDevice(nil), ErrInvalid)
	require.ErrorIs(t, m.AddPD(nil), ErrInvalid)
	require.ErrorIs(t, m.AddPD(one.pd), ErrExists)
	other, err := two.AllocPD()
	require.NoError(t, err)
	require.NoError(t, m.AddPD(other))
	assert.Equal(t, []verbs.Device{one, two}, m.Friends(friend.Package{}).Devices())

	key, err := m.LKey(other)
	require.NoError(t, err)
	assert.Equal(t, uint32(1001), key)

	require.ErrorIs(t, m.RemoveDevice(nil), ErrInvalid)
	require.ErrorIs(t, m.RemoveDevice(newDevice("fake2")), ErrNotRegistered)
	require.NoError(t, m.RemoveDevice(two))
	assert.Empty(t, two.pd.live)
	assert.Empty(t, other.(*fakePD).live)
	_, err = m.LKey(other)
	require.ErrorIs(t, err, ErrNotRegistered)
	require.NoError(t, m.AddDevice(two))

	two.pd.refuseClose = true
	require.ErrorIs(t, m.RemoveDevice(two), errDriver)
	two.pd.refuseClose = false
	bad := newDevice("fake3")
	bad.pd.refuse = true
	require.ErrorIs(t, m.AddDevice(bad), errDriver)
	require.NoError(t, m.Close())
	assert.Empty(t, one.pd.live)
	assert.Empty(t, two.pd.live)
}

// The device gives the address, and all devices of a Map have to give the same.
func TestAddressOfTheDevice(t *testing.T) {
	one, same, other := newDevice("fake0"), newDevice("fake1"), newDevice("fake2")
	one.pd.moved, same.pd.moved = 1<<32, 1<<32
	m, err := Alloc(one, 64, LocalReadWrite|RemoteWrite)
	require.NoError(t, err)
	assert.Equal(t, addressOf(m.Bytes())+1<<32, m.Addr())
	require.NoError(t, m.AddDevice(same))
	err = m.AddDevice(other)
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "make another map for fake2")
	assert.Empty(t, other.pd.live)
	assert.Equal(t, []verbs.Device{one, same}, m.Friends(friend.Package{}).Devices())
	remote, err := m.AsRemote(one)
	require.NoError(t, err)
	assert.Equal(t, m.Addr(), remote.Addr())
	require.NoError(t, m.Close())
}

func TestMapOfAnotherDomain(t *testing.T) {
	dev := newDevice("fake0")
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	m, err := New(dev, Config{Size: 8, PD: pd, Permissions: RemoteRead})
	require.NoError(t, err)
	assert.Empty(t, dev.pd.live)
	_, err = m.LKey(dev.pd)
	require.ErrorIs(t, err, ErrNotRegistered)
	_, err = m.ExportPD(dev.pd)
	require.ErrorIs(t, err, ErrNotRegistered)

	a, err := m.ExportPD(pd)
	require.NoError(t, err)
	b, err := m.Export(dev)
	require.NoError(t, err)
	assert.Equal(t, a, b, "the only registration on the device")
	require.NoError(t, m.Close())
}

func TestPermissionNames(t *testing.T) {
	assert.Equal(t, "LocalReadOnly", LocalReadOnly.String())
	assert.Equal(t, "LocalReadWrite|RemoteAtomic", (RemoteAtomic | LocalReadWrite).String())
	assert.Equal(t, "RemoteRead|0x100", (RemoteRead | 0x100).String())
	assert.Equal(t, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic,
		(LocalReadWrite | RemoteRead | RemoteWrite | RemoteAtomic).access())
}

// Whatever the interleaving, the Map is closed only while nobody holds it, and
// changes of devices do not disturb those who do.
func TestConcurrentUse(t *testing.T) {
	dev, extra := newDevice("fake0"), newDevice("fake1")
	m, err := Alloc(dev, 4096, LocalReadWrite|RemoteRead)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				if err := (forFriends{m}).Hold(); err != nil {
					assert.ErrorIs(t, err, ErrInUse)
					continue
				}
				_, err := m.LKey(dev.pd)
				assert.NoError(t, err)
				_ = m.Bytes()[0]
				assert.NoError(t, forFriends{m}.Release())
			}
		})
	}
	wg.Go(func() {
		for range 500 {
			if m.AddDevice(extra) == nil {
				for m.RemoveDevice(extra) != nil {
					runtime.Gosched()
				}
			}
		}
	})
	wg.Wait()
	assert.Empty(t, extra.pd.live)
	assert.Zero(t, m.users.Load())
	require.NoError(t, m.Close())
}

// A program that forgets Close must not be killed by the collector, nor lose
// memory that a device can still reach.
func TestForgottenMapStaysPinned(t *testing.T) {
	dev := newDevice("fake0")
	func() {
		m, err := Register(dev, make([]byte, 1<<16), LocalReadWrite)
		require.NoError(t, err)
		m.Bytes()[0] = 42
	}()
	for range 5 {
		runtime.GC()
		runtime.Gosched()
	}
	assert.Equal(t, byte(42), dev.pd.live[0].mem[0])
}

func TestZeroMap(t *testing.T) {
	var m Map
	_, err := m.LKey(newDevice("fake0").pd)
	require.ErrorIs(t, err, ErrNotRegistered)
	_, err = m.Export(newDevice("fake0"))
	require.ErrorIs(t, err, ErrPermission)
	require.NoError(t, m.Close())
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	dev, other := newDevice("fake0"), newDevice("fake1")
	m, err := Alloc(dev, 4096, LocalReadWrite)
	require.NoError(t, err)
	pd, foreign := dev.DefaultPD(), other.DefaultPD()
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = forFriends{m}.Hold()
		_, _ = m.LKey(pd)
		_, _ = m.LKey(foreign)
		_ = m.Addr() + uint64(m.Len()) + uint64(len(m.Bytes()))
		_ = forFriends{m}.Release()
		_ = forFriends{m}.Release()
	}))
	require.NoError(t, m.Close())
}

func BenchmarkLKey(b *testing.B) {
	dev := newDevice("fake0")
	m, err := Alloc(dev, 4096, LocalReadWrite)
	require.NoError(b, err)
	pd := dev.DefaultPD()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.LKey(pd); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, m.Close())
}
