package syncevent

import (
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// Publishers says which programs may change the value of an Event: a set, combined with |.
type Publishers uint8

// The publishers. Their values are part of the descriptor format.
const (
	PublishLocal  Publishers = 1 << iota // this program, with Set, Add and tasks
	PublishRemote                        // peers, through the exported descriptor
)

const bothPublish = PublishLocal | PublishRemote

// Has reports whether the set holds all of q.
func (p Publishers) Has(q Publishers) bool { return p&q == q }

// String names the publishers, joined with |.
func (p Publishers) String() string {
	var names []string
	if p.Has(PublishLocal) {
		names = append(names, "PublishLocal")
	}
	if p.Has(PublishRemote) {
		names = append(names, "PublishRemote")
	}
	if rest := p &^ bothPublish; rest != 0 || p == 0 {
		names = append(names, fmt.Sprintf("%#x", uint8(rest)))
	}
	return strings.Join(names, "|")
}

// The range of Config.PollInterval, and its default.
const (
	minPollInterval     = 50 * time.Microsecond
	maxPollInterval     = time.Second
	defaultPollInterval = 50 * time.Millisecond
)

// Config configures an Event. The zero value is usable.
type Config struct {
	// PD is the protection domain of the queue pairs through which peers reach
	// the event. Nil: the device's default.
	PD verbs.PD

	// Memory is 8 bytes of the caller's that hold the value, in the byte order of the host, at
	// an address that is a multiple of 8. Their content is the first value of the event. They
	// are pinned while they are registered with a device, and must not be used for anything
	// else until Close has returned. Nil: the event uses Buf or, without one, 8 zero bytes of
	// its own.
	Memory []byte
	// Buf is a buffer of 8 bytes in memory of this host, in place of Memory. New takes over
	// the caller's reference, also when New fails, and Close drops it. The memory map must be
	// LocalReadWrite. With a device, the map must be registered there and have RemoteRead; for
	// PublishRemote also RemoteWrite and, if the device has atomics, RemoteAtomic. The
	// exported descriptor has the key to the whole map.
	Buf *bufinv.Buf

	// Publishers are the programs that may change the value. Zero: PublishLocal. PublishRemote
	// needs a device.
	Publishers Publishers
	// NeverConcurrent promises that this program and its peers never change the value at the
	// same time, for example because they alternate. Without the promise, New refuses
	// PublishLocal|PublishRemote on devices whose atomics are not atomic to the processor
	// (IBTA 9.4.5.1), since an addition could be lost.
	NeverConcurrent bool

	// PollInterval is the longest time between two polls of the value while a wait sleeps: 50
	// µs to 1 s, as exact as timers of the runtime are. Zero: 50 ms, which costs some
	// thousandths of a processor. The first polls come sooner, after an eighth of the time
	// slept and at least 50 µs. Only changes that are not reported need polls: those of peers
	// on adapters and, with Memory or Buf, any change other than by Set, Add or a task.
	PollInterval time.Duration

	// Name appears in errors. Empty: none.
	Name string
}

// settings are a Config and the device given to New.
type settings struct {
	Config
	dev verbs.Device
}

// resolve fills in defaults, and checks everything but the memory.
func (cfg *settings) resolve() error {
	if cfg.dev == nil && cfg.PD != nil {
		cfg.dev = cfg.PD.Device()
	}
	if cfg.PD == nil && cfg.dev != nil {
		cfg.PD = cfg.dev.DefaultPD()
	}
	if cfg.Publishers == 0 {
		cfg.Publishers = PublishLocal
	}
	if cfg.PollInterval == 0 {
		cfg.PollInterval = defaultPollInterval
	}
	switch {
	case cfg.PD != nil && cfg.PD.Device() != cfg.dev:
		return fmt.Errorf("%w: the protection domain belongs to another device than %s; leave one of the two out", ErrInvalid, cfg.dev.Name())
	case cfg.Publishers&^bothPublish != 0:
		return fmt.Errorf("%w: publishers %v have unknown bits", ErrInvalid, cfg.Publishers)
	case cfg.Publishers.Has(PublishRemote) && cfg.dev == nil:
		return fmt.Errorf("%w: publishers %v require a device, and none is given", ErrInvalid, cfg.Publishers)
	case cfg.PollInterval < minPollInterval || cfg.PollInterval > maxPollInterval:
		return fmt.Errorf("%w: the poll interval is %v; give %v to %v", ErrRange, cfg.PollInterval, minPollInterval, maxPollInterval)
	case cfg.Memory != nil && cfg.Buf != nil:
		return fmt.Errorf("%w: both memory and a buffer are given; leave one out", ErrInvalid)
	}
	return nil
}

// atomics reports whether peers can do atomics on the device. It fails if they can, but not
// atomically to the processor, and both sides publish.
func (cfg *settings) atomics() (bool, error) {
	if !cfg.Publishers.Has(PublishRemote) {
		return false, nil
	}
	attr, err := cfg.dev.Query()
	if err != nil {
		return false, fmt.Errorf("query %s: %w", cfg.dev.Name(), err)
	}
	if cfg.Publishers.Has(PublishLocal) && attr.Atomics && !attr.AtomicsGlobal && !cfg.NeverConcurrent {
		return false, fmt.Errorf("%w: atomics of %s are not atomic to the processor, so this program and a peer must not both change the value (IBTA 9.4.5.1); "+
			"choose one publisher, or set NeverConcurrent if they never do so at the same time", ErrPublisher, cfg.dev.Name())
	}
	return attr.Atomics, nil
}

// permissions are the rights to the memory that peers need, and no more.
func (cfg *settings) permissions(atomics bool) mmap.Permission {
	if cfg.dev == nil {
		return mmap.LocalReadWrite
	}
	p := mmap.RemoteRead
	if cfg.Publishers.Has(PublishRemote) {
		p |= mmap.LocalReadWrite | mmap.RemoteWrite
	}
	if atomics {
		p |= mmap.RemoteAtomic
	}
	return p
}

// checkWord checks memory that is to hold the value.
func checkWord(what string, addr uint64, n int) error {
	switch {
	case n != wordSize:
		return fmt.Errorf("%w: the %s has %d bytes; give exactly 8", ErrRange, what, n)
	case addr%wordSize != 0:
		return fmt.Errorf("%w: the %s is at %#x, which is not a multiple of 8", ErrRange, what, addr)
	}
	return nil
}

func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
