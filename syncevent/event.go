package syncevent

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

const wordSize = 8

// Event is a 64-bit value that one program waits for and another changes. New makes one of
// this program; Import makes a handle of a peer's. All methods are safe for concurrent use.
type Event struct {
	name       string
	publishers Publishers
	atomics    bool // peers may add
	remote     bool
	addr       uint64
	dev        verbs.Device
	host       host.Host // of dev

	// Of an imported event.
	rkey    uint32
	swapped bool

	// Of an event of this program.
	word            *uint64
	mem             []byte // keeps memory of the Go heap reachable
	pd              verbs.PD
	ownMap          *mmap.Map // nil without a device, and with a Buf
	buf             *bufinv.Buf
	m               *mmap.Map // ownMap, or that of buf
	unwatch         func()    // nil: not watched
	removeCloseHook func()    // undoes OnClose of the device; nil: none

	// uses counts calls under way, and in its upper half the holds (waits and tasks). It is
	// negative once the event is closed.
	uses    atomic.Int64
	closing sync.Mutex // serialises Close, which may fail

	sleepers atomic.Int64 // len(waiting), read without the lock

	mu            sync.Mutex // held only for work that cannot block
	waiting       []*waiter
	freeWaiters   []*waiter
	needsPolling  bool      // some changes of the value do not call changed
	pollScheduled bool      // the timer runs
	pollDue       time.Time // when the timer expires
	lastSleep     time.Time // when the newest of waiting was added
	interval      time.Duration
	timer         host.Timer
}

const (
	oneCall = 1
	oneHold = 1 << 32
	closed  = math.MinInt64 / 2 // far enough below zero
)

// New makes an Event that peers reach through dev. If dev is nil, New uses the device of
// Config.PD. Without a device, the event stays in this program and cannot be exported. Errors
// match ErrInvalid, ErrRange and ErrPublisher, or are those of the buffer, the memory map and
// the device.
func New(dev verbs.Device, cfg Config) (*Event, error) {
	e, err := create(settings{cfg, dev})
	if err != nil {
		_ = cfg.Buf.Free() // err says more than an error of Free
		return nil, fmt.Errorf("make sync event%s: %w", quoted(cfg.Name), err)
	}
	return e, nil
}

func create(cfg settings) (*Event, error) {
	if err := cfg.resolve(); err != nil {
		return nil, err
	}
	atomics, err := cfg.atomics()
	if err != nil {
		return nil, err
	}
	e := &Event{
		name: cfg.Name, publishers: cfg.Publishers, atomics: atomics,
		dev: cfg.dev, host: host.Of(cfg.dev), pd: cfg.PD, interval: cfg.PollInterval,
		needsPolling: cfg.Memory != nil || cfg.Buf != nil,
	}
	if err := e.findMemory(&cfg); err != nil {
		return nil, err
	}
	e.word = (*uint64)(unsafe.Pointer(unsafe.SliceData(e.mem)))
	switch {
	case e.buf != nil:
		e.addr = e.buf.Addr()
	case e.m != nil:
		e.addr = e.m.Addr()
	default:
		e.addr = addressOf(e.mem)
	}
	e.timer = e.host.AfterFunc(time.Hour, e.poll)
	e.timer.Stop()
	if err := e.watch(); err != nil {
		return nil, errors.Join(err, e.releaseMemory())
	}
	if owner, ok := e.dev.(verbs.ClosingDevice); ok {
		e.removeCloseHook = owner.OnClose(e.Close) // the device calls it before it closes the memory
	}
	return e, nil
}

// findMemory chooses the memory of the value, or allocates it.
func (e *Event) findMemory(cfg *settings) error {
	perm := cfg.permissions(e.atomics)
	if cfg.Memory != nil {
		if err := checkWord("memory", addressOf(cfg.Memory), len(cfg.Memory)); err != nil {
			return err
		}
	}
	switch {
	case cfg.Buf != nil:
		if err := checkBuf(cfg, perm|mmap.LocalReadWrite); err != nil {
			return err
		}
		e.buf, e.m, e.mem = cfg.Buf, cfg.Buf.Map(), cfg.Buf.Memory()
	case cfg.dev != nil:
		size := wordSize
		if cfg.Memory != nil {
			size = 0
		}
		m, err := mmap.New(cfg.dev, mmap.Config{Memory: cfg.Memory, Size: size, PD: cfg.PD, Permissions: perm})
		if err != nil {
			return err
		}
		e.ownMap, e.m, e.mem = m, m, m.Bytes()
	case cfg.Memory != nil:
		e.mem = cfg.Memory
	default:
		e.mem = unsafe.Slice((*byte)(unsafe.Pointer(new(uint64))), wordSize)
	}
	return nil
}

// checkBuf checks a buffer that is to hold the value.
func checkBuf(cfg *settings, need mmap.Permission) error {
	b := cfg.Buf
	switch {
	case b.Err() != nil:
		return b.Err()
	case b.Remote():
		return fmt.Errorf("%w: the buffer is memory of a peer; import the sync event that the peer exports", ErrInvalid)
	case b.Memory() == nil:
		return fmt.Errorf("%w: the buffer is in a dma-buf, which this program cannot access; give other memory", ErrInvalid)
	case b.Next() != nil:
		return fmt.Errorf("%w: the buffer is a list; give one element", ErrInvalid)
	}
	for _, addr := range []uint64{b.Addr(), addressOf(b.Memory())} { // peers use one, this program the other
		if err := checkWord("buffer", addr, b.Len()); err != nil {
			return err
		}
	}
	if have := b.Map().Permissions(); !have.Has(need) {
		return fmt.Errorf("%w: the buffer's memory map has %v; the sync event requires %v", mmap.ErrPermission, have, need)
	}
	if cfg.PD == nil {
		return nil
	}
	if _, err := b.Map().LKey(cfg.PD); err != nil {
		return fmt.Errorf("use the buffer on %s: %w", cfg.dev.Name(), err)
	}
	return nil
}

// watch asks the device to report writes of peers to the value.
func (e *Event) watch() error {
	if e.m == nil || !e.publishers.Has(PublishRemote) {
		return nil
	}
	cancel, complete, err := e.m.Friends(friend.Package{}).Watch(int(e.addr-e.m.Addr()), wordSize, e.changed)
	if err != nil {
		return err
	}
	e.unwatch = cancel
	e.needsPolling = e.needsPolling || !complete
	return nil
}

// String names the event.
func (e *Event) String() string {
	return "sync event" + quoted(e.name)
}

func quoted(name string) string {
	if name == "" {
		return ""
	}
	return " " + strconv.Quote(name)
}

// Remote reports whether the event is imported: its value is in a peer's memory.
func (e *Event) Remote() bool { return e.remote }

// Addr is the address of the value, in the memory of its owner.
func (s forFriends) Addr() uint64 {
	e := s.Event
	return e.addr
}

// RKey is the remote key of an imported event. Of others it is zero.
func (s forFriends) RKey() uint32 {
	e := s.Event
	return e.rkey
}

// Swapped reports whether an imported event belongs to a host of the other byte order. Reads
// and writes of its 8 bytes must then reverse them. Atomics need not: they carry numbers (IBTA
// 9.4.5).
func (s forFriends) Swapped() bool {
	e := s.Event
	return e.swapped
}

// Publishers says which programs may change the value. This program may change an imported
// event, with tasks of package rdma, if PublishRemote is in the set.
func (e *Event) Publishers() Publishers { return e.publishers }

// Atomics reports whether peers may add to the value: PublishRemote is among the
// publishers, and the owner's device has atomics.
func (e *Event) Atomics() bool { return e.atomics }

// Device is the device given to New or Import, through which peers or this program reach the
// event, or nil.
func (e *Event) Device() verbs.Device { return e.dev }

// enter counts a use, and returns false if the event is closed.
func (e *Event) enter(unit int64) bool {
	if e.uses.Add(unit) >= 0 {
		return true
	}
	e.uses.Add(-unit)
	return false
}

func (e *Event) leave(unit int64) { e.uses.Add(-unit) }

// begin is enter for calls that read or change the value.
func (e *Event) begin(op string, unit int64) error {
	switch {
	case e.remote:
		return fmt.Errorf("%s %v: %w: its value is in the memory of a peer; use the sync event tasks of package rdma", op, e, ErrRemote)
	case !e.enter(unit):
		return fmt.Errorf("%s %v: %w", op, e, ErrClosed)
	}
	return nil
}

// beginChange is begin for a call that changes the value.
func (e *Event) beginChange(op string) error {
	if err := e.mayPublish(op); err != nil {
		return err
	}
	return e.begin(op, oneCall)
}

func (e *Event) mayPublish(op string) error {
	if e.word != nil && !e.publishers.Has(PublishLocal) {
		return fmt.Errorf("%s %v: %w: its publishers are %v; make it with PublishLocal too", op, e, ErrPublisher, e.publishers)
	}
	return nil
}

// Get returns the value. It fails with ErrRemote on an imported event and with
// ErrClosed on a closed one.
func (e *Event) Get() (uint64, error) {
	if err := e.begin("get", oneCall); err != nil {
		return 0, err
	}
	defer e.leave(oneCall)
	return e.load(), nil
}

// Set sets the value and wakes the waits whose condition it fulfils. It allocates nothing, and
// takes a lock only while a wait sleeps. It fails like Get, and with ErrPublisher unless
// PublishLocal is among the event's publishers.
func (e *Event) Set(v uint64) error {
	if err := e.beginChange("set"); err != nil {
		return err
	}
	defer e.leave(oneCall)
	e.set(v)
	return nil
}

// Add adds to the value atomically, modulo 2^64, and returns the value before. It fails, and
// wakes waits, like Set.
func (e *Event) Add(v uint64) (old uint64, err error) {
	if err := e.beginChange("add to"); err != nil {
		return 0, err
	}
	defer e.leave(oneCall)
	return e.add(v), nil
}

func (e *Event) load() uint64 { return atomic.LoadUint64(e.word) }

func (e *Event) set(v uint64) {
	atomic.StoreUint64(e.word, v)
	e.wake()
}

func (e *Event) add(v uint64) uint64 {
	old := atomic.AddUint64(e.word, v) - v
	e.wake()
	return old
}

// Hold counts one more user, such as a task. Until the matching Release, Close fails with
// ErrInUse. Hold fails with ErrClosed on a closed event.
func (s forFriends) Hold() error {
	e := s.Event
	if !e.enter(oneHold) {
		return fmt.Errorf("use %v: %w", e, ErrClosed)
	}
	return nil
}

// Release undoes one Hold. Without one it fails with ErrNotHeld.
func (s forFriends) Release() error {
	e := s.Event
	for {
		n := e.uses.Load()
		if n < oneHold {
			return fmt.Errorf("release %v: %w: more releases than holds", e, ErrNotHeld)
		}
		if e.uses.CompareAndSwap(n, n-oneHold) {
			return nil
		}
	}
}

// Close ends the event. When Close has returned, the memory is the caller's again, and
// exported descriptors are void. It fails with ErrInUse while waits are under way or tasks
// hold the event. If the device fails to deregister the memory, the event stays open and Close
// may be called again. Closing again does nothing. The device that the event was made on calls
// Close when it is closed itself.
func (e *Event) Close() error {
	e.closing.Lock()
	defer e.closing.Unlock()
	for {
		n := e.uses.Load()
		switch {
		case n < 0:
			return nil
		case n >= oneHold:
			return fmt.Errorf("close %v: %w by %d waits and tasks; end the waits and free the tasks first", e, ErrInUse, n/oneHold)
		}
		if e.uses.CompareAndSwap(n, n+closed) {
			break
		}
	}
	for e.uses.Load() != closed {
		runtime.Gosched() // calls under way do not block, so they end soon
	}
	if err := e.releaseMemory(); err != nil {
		e.uses.Add(-closed)
		return fmt.Errorf("close %v: %w", e, err)
	}
	if e.removeCloseHook != nil {
		e.removeCloseHook()
	}
	if err := e.buf.Free(); err != nil {
		return fmt.Errorf("close %v: %w", e, err)
	}
	return nil
}

// releaseMemory releases what New acquired, except the buffer.
func (e *Event) releaseMemory() error {
	if e.word == nil {
		return nil // imported
	}
	if e.ownMap != nil {
		// This comes first, because it may fail, and then the event stays open.
		if err := e.ownMap.Close(); err != nil {
			return err
		}
	}
	if e.unwatch != nil {
		e.unwatch()
	}
	e.timer.Stop()
	return nil
}
