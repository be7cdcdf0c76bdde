package syncevent

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/test/blocked"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestValue(t *testing.T) {
	e := open(t, nil, Config{Name: "door"})
	assert.Equal(t, `sync event "door"`, e.String())
	assert.Equal(t, PublishLocal, e.Publishers())
	assert.False(t, e.Remote())
	assert.Nil(t, e.Device())
	assert.Zero(t, get(t, e))
	require.NoError(t, e.Set(5))
	old, err := e.Add(7)
	require.NoError(t, err)
	assert.Equal(t, uint64(5), old)
	assert.Equal(t, uint64(12), get(t, e))
	_, err = e.Add(all - 11)
	require.NoError(t, err)
	assert.Zero(t, get(t, e), "addition wraps around")
}

func TestMemoryOfTheCaller(t *testing.T) {
	mem := words(1)
	*word(mem) = 40
	e := open(t, nil, Config{Memory: mem})
	_, err := e.Add(2)
	require.NoError(t, err)
	assert.Equal(t, uint64(42), *word(mem), "in the byte order of the host")
	assert.Equal(t, addressOf(mem), forFriends{e}.Addr())

	dev := openSoft(t)
	on := open(t, dev, Config{Memory: words(1), Publishers: PublishRemote})
	_, err = on.Export()
	require.NoError(t, err)
}

func TestBuffer(t *testing.T) {
	dev := openSoft(t)
	m, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite|mmap.RemoteAtomic)
	require.NoError(t, err)
	inv, err := bufinv.New(1)
	require.NoError(t, err)
	e, err := New(dev, Config{Buf: inv.Target(m, 64, 8), Publishers: PublishLocal | PublishRemote})
	require.NoError(t, err)
	assert.Equal(t, m.Addr()+64, forFriends{e}.Addr())
	require.NoError(t, e.Set(7))
	assert.Equal(t, uint64(7), *word(m.Bytes()[64:]))
	desc, err := e.Export()
	require.NoError(t, err)
	remote, err := Import(dev, desc)
	require.NoError(t, err)
	of, err := m.Export(dev)
	require.NoError(t, err)
	whole, err := mmap.Import(dev, of)
	require.NoError(t, err)
	assert.Equal(t, whole.RKey(), forFriends{remote}.RKey())
	assert.Zero(t, inv.Available())
	require.NoError(t, e.Close())
	assert.Equal(t, 1, inv.Available(), "the event had the only reference")
	require.NoError(t, m.Close())
}

// The map may live on: nobody watches it any more.
func TestBufferIsWatched(t *testing.T) {
	watches := 0
	adapter := newAdapter(openSoft(t))
	adapter.pd.watches = &watches
	m, err := mmap.Alloc(adapter, 64, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite|mmap.RemoteAtomic)
	require.NoError(t, err)
	inv, err := bufinv.New(1)
	require.NoError(t, err)
	for publishers, want := range map[Publishers]int{PublishLocal: 0, PublishRemote: 1} {
		e, err := New(adapter, Config{Buf: inv.Target(m, 0, 8), Publishers: publishers})
		require.NoError(t, err)
		assert.Equal(t, want, watches)
		require.NoError(t, e.Close())
		assert.Zero(t, watches)
	}
	require.NoError(t, m.Close())
}

func TestNewRefuses(t *testing.T) {
	dev, other := openSoft(t), openSoft(t)
	inv, err := bufinv.New(16)
	require.NoError(t, err)
	mapped := func(perm mmap.Permission) *mmap.Map {
		m, err := mmap.Alloc(dev, 4096, perm)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m
	}
	full := mapped(mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic)
	noAtomics := mapped(mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite)
	readOnly := mapped(mmap.RemoteRead)
	desc, err := full.Export(dev)
	require.NoError(t, err)
	imported, err := mmap.Import(dev, desc)
	require.NoError(t, err)
	freed := inv.Target(full, 0, 8)
	require.NoError(t, freed.Free())
	adapter := newAdapter(dev)

	for name, c := range map[string]struct {
		dev  verbs.Device
		cfg  Config
		want error
		says string
	}{
		"memory of 7 bytes":          {nil, Config{Memory: words(1)[:7]}, ErrRange, "7 bytes; give exactly 8"},
		"memory of 16 bytes":         {nil, Config{Memory: words(2)}, ErrRange, "16 bytes"},
		"empty memory":               {nil, Config{Memory: []byte{}}, ErrRange, "0 bytes"},
		"memory off by 4":            {nil, Config{Memory: words(2)[4:12]}, ErrRange, "not a multiple of 8"},
		"memory and a buffer":        {nil, Config{Memory: words(1), Buf: inv.Target(full, 0, 8)}, ErrInvalid, "leave one out"},
		"buffer of 7 bytes":          {nil, Config{Buf: inv.Target(full, 0, 7)}, ErrRange, "7 bytes; give exactly 8"},
		"buffer off by 1":            {nil, Config{Buf: inv.Target(full, 1, 8)}, ErrRange, "not a multiple of 8"},
		"buffer with an error":       {nil, Config{Buf: inv.Target(full, 4090, 8)}, bufinv.ErrRange, ""},
		"freed buffer":               {nil, Config{Buf: freed}, bufinv.ErrFreed, ""},
		"list":                       {nil, Config{Buf: bufinv.List(inv.Target(full, 0, 8), inv.Target(full, 8, 8))}, ErrInvalid, "one element"},
		"peer's buffer":              {nil, Config{Buf: inv.Target(imported, 0, 8)}, ErrInvalid, "memory of a peer"},
		"map that is read only":      {nil, Config{Buf: inv.Target(readOnly, 0, 8)}, mmap.ErrPermission, "requires LocalReadWrite"},
		"map without atomics":        {dev, Config{Buf: inv.Target(noAtomics, 0, 8), Publishers: PublishRemote}, mmap.ErrPermission, "RemoteAtomic"},
		"map of another device":      {other, Config{Buf: inv.Target(full, 0, 8)}, mmap.ErrNotRegistered, "soft"},
		"unknown publisher":          {nil, Config{Publishers: 4}, ErrInvalid, "unknown bits"},
		"peers without a device":     {nil, Config{Publishers: PublishRemote}, ErrInvalid, "require a device"},
		"another device's domain":    {other, Config{PD: dev.DefaultPD()}, ErrInvalid, "another device than soft-lo"},
		"poll interval too short":    {nil, Config{PollInterval: time.Nanosecond}, ErrRange, "50µs to 1s"},
		"poll interval too long":     {nil, Config{PollInterval: time.Minute}, ErrRange, "50µs to 1s"},
		"poll interval negative":     {nil, Config{PollInterval: -1}, ErrRange, "50µs to 1s"},
		"two publishers, an adapter": {adapter, Config{Publishers: bothPublish}, ErrPublisher, "NeverConcurrent"},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.Name = "door"
			e, err := New(c.dev, c.cfg)
			require.ErrorIs(t, err, c.want)
			assert.Nil(t, e)
			assert.ErrorContains(t, err, `make sync event "door": `)
			assert.ErrorContains(t, err, c.says)
		})
	}
	assert.Equal(t, inv.Total(), inv.Available(), "New takes over the buffer when it fails, too")
}

func TestNotInADMABuf(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("dma-bufs are Linux's")
	}
	adapter := newAdapter(openSoft(t))
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	m, err := mmap.New(adapter, mmap.Config{DMABuf: &mmap.DMABuf{FD: int(file.Fd()), Length: 4096}, Permissions: mmap.LocalReadWrite})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	inv, err := bufinv.New(1)
	require.NoError(t, err)
	defer func() { require.NoError(t, inv.Close()) }()
	_, err = New(nil, Config{Buf: inv.Target(m, 0, 8)})
	require.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "dma-buf")
}

func TestPublishers(t *testing.T) {
	adapter := newAdapter(openSoft(t))
	for _, cfg := range []settings{
		{Config{}, adapter},
		{Config{Publishers: PublishRemote}, adapter},
		{Config{Publishers: bothPublish, NeverConcurrent: true}, adapter},
		{Config{Publishers: bothPublish}, adapter.Device},
	} {
		e := open(t, cfg.dev, cfg.Config)
		want := mmap.RemoteRead
		if e.Publishers().Has(PublishRemote) {
			want |= mmap.LocalReadWrite | mmap.RemoteWrite | mmap.RemoteAtomic
		}
		assert.Equal(t, want, e.ownMap.Permissions(), "no right that is not needed")
		_, err := e.Add(1)
		if e.Publishers().Has(PublishLocal) {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrPublisher)
		require.ErrorIs(t, e.Set(1), ErrPublisher)
		assert.Zero(t, get(t, e))
	}

	adapter.attr.Atomics = false
	e := open(t, adapter, Config{Publishers: bothPublish})
	assert.False(t, e.Atomics())
	assert.Equal(t, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite, e.ownMap.Permissions())
	adapter.err = errors.New("the device is gone")
	_, err := New(adapter, Config{Publishers: PublishRemote})
	require.ErrorIs(t, err, adapter.err)

	assert.Equal(t, "PublishLocal|PublishRemote", bothPublish.String())
	assert.Equal(t, "PublishRemote|0x8", (PublishRemote | 8).String())
	assert.Equal(t, "0x0", Publishers(0).String())
}

func TestWaitRefuses(t *testing.T) {
	e := open(t, nil, Config{Name: "door"})
	ctx := context.Background()
	for name, c := range map[string]struct {
		condition Condition
		says      string
	}{
		"none":                     {Condition{}, "the zero value; make one with Equal"},
		"none, masked":             {Condition{}.Masked(1), "the zero value; make one with Equal"},
		"no mask":                  {Equal(0).Masked(0), "the mask is zero"},
		"no mask, not equal":       {NotEqual(1).Masked(0), "the mask is zero"},
		"no mask, greater":         {Greater(0).Masked(0), "the mask is zero"},
		"bits outside":             {Equal(0x11).Masked(0xf0), "0x11 has bits outside the mask 0xf0"},
		"bits outside, not equal":  {NotEqual(1).Masked(0xf0), "bits outside"},
		"greater than the largest": {Greater(all), "is greater than 0xffffffffffffffff"},
		"greater than the mask":    {Greater(0xff).Masked(0xf0), "no value under the mask 0xf0"},
		"as great as the mask":     {Greater(0xf0).Masked(0xf0), "no value under the mask 0xf0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := e.Wait(ctx, c.condition)
			require.ErrorIs(t, err, ErrInvalid)
			assert.ErrorContains(t, err, `wait for sync event "door"`)
			assert.ErrorContains(t, err, c.says)
		})
	}
	var none context.Context
	_, err := e.Wait(none, Equal(0))
	require.ErrorIs(t, err, ErrInvalid)
}

func TestWaitThatHolds(t *testing.T) {
	e := open(t, nil, Config{})
	require.NoError(t, e.Set(0xab5))
	ctx := context.Background()
	for _, wait := range []func() (uint64, error){
		func() (uint64, error) { return e.Wait(ctx, Equal(0xab5)) },
		func() (uint64, error) { return e.Wait(ctx, Equal(0xa05).Masked(0xf0f)) },
		func() (uint64, error) { return e.Wait(ctx, NotEqual(0xab4)) },
		func() (uint64, error) { return e.Wait(ctx, NotEqual(0).Masked(0x800)) },
		func() (uint64, error) { return e.Wait(ctx, Greater(0xab4)) },
		func() (uint64, error) { return e.Wait(ctx, Greater(0x9ff).Masked(0xf00)) },
		func() (uint64, error) { return e.Wait(ctx, Greater(3).Masked(0xf4)) },
	} {
		v, err := wait()
		require.NoError(t, err)
		assert.Equal(t, uint64(0xab5), v, "the whole value is returned")
	}
}

func TestWaitUntilTheContextEnds(t *testing.T) {
	e := open(t, nil, Config{Name: "door"})
	require.NoError(t, e.Set(7))
	ended, end := context.WithCancel(context.Background())
	end()
	_, err := e.Wait(ended, Equal(7))
	require.ErrorIs(t, err, context.Canceled)

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	_, err = e.Wait(ctx, Equal(8))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, `wait for sync event "door" == 0x8`)
	assert.ErrorContains(t, err, "its value is 0x7")

	reason := errors.New("the program ends")
	because, stop := context.WithCancelCause(context.Background())
	time.AfterFunc(5*time.Millisecond, func() { stop(reason) })
	_, err = e.Wait(because, Greater(0x10).Masked(0xf0))
	require.ErrorIs(t, err, reason)
	assert.ErrorContains(t, err, "& 0xf0 > 0x10")
	assert.Zero(t, e.sleepers.Load())
	assert.Empty(t, e.waiting)
}

// A wait that is roused in the moment that its context ends has its value.
func TestRousedWhileTheContextEnds(t *testing.T) {
	e := open(t, nil, Config{})
	for i := range uint64(2000) {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			v, err := e.sleep(ctx, Greater(i))
			if err == nil {
				assert.Equal(t, i+1, v)
				return
			}
			assert.ErrorIs(t, err, context.Canceled)
		})
		wg.Go(cancel)
		wg.Go(func() { assert.NoError(t, e.Set(i+1)) })
		wg.Wait()
	}
	for _, w := range e.freeWaiters {
		assert.Empty(t, w.wakeup, "a spare waiter has a wake-up meant for another")
	}
	assert.LessOrEqual(t, len(e.freeWaiters), 1)
}

func TestClosed(t *testing.T) {
	e, err := New(openSoft(t), Config{Publishers: bothPublish})
	require.NoError(t, err)
	require.NoError(t, forFriends{e}.Hold())
	require.NoError(t, forFriends{e}.Hold())
	err = e.Close()
	require.ErrorIs(t, err, ErrInUse)
	assert.ErrorContains(t, err, "2 waits and tasks")
	require.NoError(t, forFriends{e}.Release())
	require.NoError(t, forFriends{e}.Release())
	require.ErrorIs(t, forFriends{e}.Release(), ErrNotHeld)
	require.NoError(t, e.Close())

	require.NoError(t, e.Close(), "again")
	_, err = e.Get()
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, e.Set(1), ErrClosed)
	_, err = e.Add(1)
	require.ErrorIs(t, err, ErrClosed)
	_, err = e.Wait(context.Background(), Equal(0))
	require.ErrorIs(t, err, ErrClosed)
	_, err = e.Export()
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, forFriends{e}.Hold(), ErrClosed)
	require.ErrorIs(t, forFriends{e}.Release(), ErrNotHeld)
	e.changed()
	e.poll()
}

func TestCloseTriedAgain(t *testing.T) {
	adapter := newAdapter(openSoft(t))
	e, err := New(adapter, Config{})
	require.NoError(t, err)
	adapter.pd.refuse = errors.New("the device does not let go")
	require.ErrorIs(t, e.Close(), adapter.pd.refuse)
	require.NoError(t, e.Set(3))
	assert.Equal(t, uint64(3), get(t, e))
	adapter.pd.refuse = nil
	require.NoError(t, e.Close())
}

// Who closes an event that somebody else is closing learns how that ends.
func TestCloseTwiceAtATime(t *testing.T) {
	adapter := newAdapter(openSoft(t))
	e, err := New(adapter, Config{})
	require.NoError(t, err)
	refuse := errors.New("the device does not let go")
	second := make(chan error, 1)
	adapter.pd.refuse = refuse
	adapter.pd.closing = func() {
		adapter.pd.closing = nil
		go func() { second <- e.Close() }()
		blocked.Await(t, 1, "sync.Mutex.Lock", "syncevent.(*Event).Close")
	}
	require.ErrorIs(t, e.Close(), refuse)
	require.ErrorIs(t, <-second, refuse)
	adapter.pd.refuse = nil
	require.NoError(t, e.Close())
}

func TestCloseWaitsForCalls(t *testing.T) {
	e, err := New(nil, Config{})
	require.NoError(t, err)
	require.True(t, e.enter(oneCall), "a call is under way")
	closed := make(chan struct{})
	go func() {
		assert.NoError(t, e.Close())
		close(closed)
	}()
	for e.uses.Load() > 0 {
		runtime.Gosched()
	}
	require.ErrorIs(t, e.Set(1), ErrClosed, "none begins any more")
	select {
	case <-closed:
		t.Error("Close did not wait")
	case <-time.After(5 * time.Millisecond):
	}
	e.leave(oneCall)
	<-closed
}

// Closing takes the memory away from under nobody: on Linux, touching it then
// would end the program.
func TestCloseWhileOthersUseIt(t *testing.T) {
	dev := openSoft(t)
	for range 50 {
		e, err := New(dev, Config{Publishers: bothPublish})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		use := func(f func() error) {
			wg.Go(func() {
				for {
					if err := f(); err != nil {
						assert.True(t, errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled), "%v", err)
						return
					}
				}
			})
		}
		use(func() error { _, err := e.Get(); return err })
		use(func() error { _, err := e.Add(1); return err })
		use(func() error { e.changed(); _, err := e.Get(); return err })
		use(func() error { v, _ := e.Get(); _, err := e.Wait(ctx, Greater(v)); return err })
		time.AfterFunc(time.Millisecond, cancel)
		for {
			err := e.Close()
			if err == nil {
				break
			}
			require.ErrorIs(t, err, ErrInUse)
		}
		wg.Wait()
	}
}

func TestImportedEvent(t *testing.T) {
	dev := openSoft(t)
	e := open(t, dev, Config{Publishers: bothPublish})
	desc, err := e.Export()
	require.NoError(t, err)
	for _, form := range [][]byte{desc, []byte(descriptor.Armor(desc))} {
		r, err := Import(dev, form)
		require.NoError(t, err)
		assert.True(t, r.Remote())
		assert.Equal(t, forFriends{e}.Addr(), forFriends{r}.Addr())
		assert.NotZero(t, forFriends{r}.RKey())
		assert.False(t, forFriends{r}.Swapped())
		assert.True(t, r.Atomics())
		assert.Equal(t, e.Publishers(), r.Publishers())
		assert.Equal(t, dev, r.Device())

		_, err = r.Get()
		require.ErrorIs(t, err, ErrRemote)
		assert.ErrorContains(t, err, "package rdma")
		require.ErrorIs(t, r.Set(1), ErrRemote)
		_, err = r.Add(1)
		require.ErrorIs(t, err, ErrRemote)
		_, err = r.Wait(context.Background(), Equal(0))
		require.ErrorIs(t, err, ErrRemote)
		_, err = r.Wait(context.Background(), NotEqual(0))
		require.ErrorIs(t, err, ErrRemote)
		_, err = r.Wait(context.Background(), Greater(0))
		require.ErrorIs(t, err, ErrRemote)
		_, err = r.Export()
		require.ErrorIs(t, err, ErrRemote)

		require.NoError(t, forFriends{r}.Hold())
		require.ErrorIs(t, r.Close(), ErrInUse)
		require.NoError(t, forFriends{r}.Release())
		require.NoError(t, r.Close())
		require.NoError(t, r.Close(), "again")
	}
	_, err = open(t, nil, Config{}).Export()
	require.ErrorIs(t, err, ErrLocal)
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	e := open(t, openSoft(t), Config{Publishers: bothPublish})
	use := func() {
		_ = e.Set(1)
		_, _ = e.Add(1)
		_, _ = e.Get()
		_, _ = e.Wait(context.Background(), Equal(2))
	}
	assert.Zero(t, testing.AllocsPerRun(1000, use))
	w := e.startWaiter(Equal(1000))
	assert.Zero(t, testing.AllocsPerRun(1000, use), "with somebody asleep")
	require.True(t, e.cancelWaiter(w))
	e.reuseWaiter(w)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		w := e.startWaiter(Equal(1000))
		_ = e.Set(1000)
		<-w.wakeup
		e.reuseWaiter(w)
		_ = e.Set(0)
	}), "sleeping and waking")
}

func get(t *testing.T, e *Event) uint64 {
	t.Helper()
	v, err := e.Get()
	require.NoError(t, err)
	return v
}

// words is aligned memory.
func words(n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, n)))), 8*n)
}

func word(mem []byte) *uint64 { return (*uint64)(unsafe.Pointer(&mem[0])) }

// write changes memory as somebody would who does not know of the event.
func write(mem []byte, v uint64) { atomic.StoreUint64(word(mem), v) }
