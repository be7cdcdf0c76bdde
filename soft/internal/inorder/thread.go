//go:build gc && go1.26 && !go1.27 && linux && (amd64 || arm64) && !purego && !race

package inorder

import (
	"math/bits"
	"runtime"
	"sync"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/goroutine"
)

//go:linkname cheaprand runtime.cheaprand
func cheaprand() uint32

//go:linkname random runtime.rand
func random() uint64

//go:linkname nanotime runtime.nanotime
func nanotime() int64

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// layout is where fields of a thread's record are, in words. Zero: unknown.
type layout struct {
	processor int
	inUse     int // the counter that disables the pcvalue cache; a miss draws a random number
	chacha    int // the state of rand: 32 numbers, 4 words of the seed, the index and how many, a counter
	cheap     int // the state of cheaprand
}

func (l layout) known() bool { return l.cheap > 0 }

const (
	chachaWords = 38
	// betweenWords are between inUse and chacha, and the entries of the cache are before inUse.
	betweenWords           = 3
	cacheWords, entryWords = 48, 3
	// pointer is the index of the pointer to the record in that of a goroutine.
	pointer = 6
	// betweenGoroutine are the words from the pointer to a thread's goroutine to that to its processor.
	betweenGoroutine = 3
	// step is what cheaprand adds to its state.
	step = 0xa0761d6478bd642f
	// most is how many words are searched.
	most = 250
	// near is how far apart two records on the heap are at most.
	near = 1 << 36
	// globalEvery: of so many goroutines that go on, one is from the queue that Gosched puts them in.
	globalEvery = 61
	// longest is how many ns may be between two calls of Seed. Goroutines are preempted after 10 ms.
	longest = 5_000_000
)

type record [most]uint64

// processor is the record of one.
type processor struct {
	id, status uint32
	_          uint64
	ticks      uint32 // counts goroutines that go on
	_          uint32
	_          [3]uint64
	thread     *record
}

// current returns the record of the calling goroutine's thread, which must not change: the goroutine is pinned.
func current() *record {
	id := goroutine.Current() // which is where the record of the goroutine is
	g := *(**[pointer + 1]*record)(unsafe.Pointer(&id))
	return g[pointer]
}

// processorOf returns the record of a thread's processor.
func (l layout) processorOf(m *record) *processor {
	return *(**processor)(unsafe.Pointer(&m[l.processor]))
}

var fields = sync.OnceValue(find)

// find finds the fields, and tries them.
func find() (l layout) {
	number := procPin()
	defer procUnpin()
	m, g := current(), uint64(goroutine.Current())
	for i := range most - betweenGoroutine {
		l.processor = i + betweenGoroutine
		// The processor's record is on the heap, as is that of the goroutine.
		if m[i] != g || m[l.processor]-g+near >= 2*near || m[l.processor]%8 != 0 {
			continue
		}
		if p := l.processorOf(m); p.id == uint32(number) && p.status == 1 && p.thread == m {
			break
		}
	}
	if l.processor == most-1 {
		return layout{}
	}
	runtime.Callers(0, make([]uintptr, 10)) // fills the cache
	before := *m
	cheaprand()
	for i := cacheWords + 1 + betweenWords + chachaWords; i < most; i++ {
		if m[i]-before[i] == step {
			l.cheap, l.chacha, l.inUse = i, i-chachaWords, i-chachaWords-betweenWords-1
		}
	}
	if l.cheap == 0 || before[l.inUse] != 0 || !l.draws(m) {
		return layout{}
	}
	entries := before[l.inUse-cacheWords : l.inUse]
	for i := 0; i < len(entries); i += entryWords {
		if pc := uintptr(entries[i]); pc != 0 && runtime.FuncForPC(pc) == nil {
			return layout{}
		}
	}
	return l
}

// draws reports whether rand takes its numbers from where they are supposed to be.
func (l layout) draws(m *record) bool {
	for range 2 { // at the first there may be no number left
		before := *m
		x := random()
		i, n := uint32(before[l.cheap-2]), uint32(before[l.cheap-2]>>32)
		if n != 32 && n != 28 || before[l.cheap-1] > 12 {
			return false
		}
		if i < n {
			return x == before[l.chacha+int(i)] && uint32(m[l.cheap-2]) == i+1
		}
	}
	return false
}

// thread is a thread whose record was changed, and what was in there.
type thread struct {
	record *record
	saved  [chachaWords + 1]uint64
}

// Seed makes what the runtime chooses until the next call follow from the seed, the instant and the place
// of an event, and from how many there were at this instant.
func (o *Order) Seed(seed, instant, place uint64) {
	l := fields()
	if !l.known() {
		return
	}
	procPin()
	defer procUnpin()
	m, now := current(), nanotime()
	if o.thread.record != nil && (m != o.thread.record || now-o.seeded > longest) {
		o.disturbed = true
	}
	o.seeded = now
	if m != o.thread.record { // a system call has taken another one
		o.thread.restore()
		o.thread = thread{m, [chachaWords + 1]uint64(m[l.chacha:])}
		m[l.inUse]++
	}
	seed = o.next(seed, instant, place)
	for i := l.chacha; i < l.cheap; i++ {
		m[i] = mix(seed + uint64(i)*step)
	}
	m[l.cheap-2], m[l.cheap-1] = 32<<32, 0 // the first of 32 numbers is next
	m[l.cheap] = withoutCacheUpdates(seed)
	p := l.processorOf(m)
	p.ticks += globalEvery + 1 - p.ticks%globalEvery // forward: one that stands still lets a goroutine be preempted
}

// withoutCacheUpdates returns a state of cheaprand whose next numbers are no multiples of 1,024: at such a
// number the runtime changes a cache of type assertions, and where these miss, it takes one number more.
func withoutCacheUpdates(seed uint64) uint64 {
	const enough = 768 // numbers until the next call of Seed
	for x, n := seed, 0; n < enough; n++ {
		x += step
		if hi, lo := bits.Mul64(x, x^0xe7037ed1a0b428db); (hi^lo)&1023 == 0 {
			seed = mix(seed + step)
			x, n = seed, -1
		}
	}
	return seed
}

// restore undoes what Seed has done to the thread.
func (t *thread) restore() {
	if t.record == nil {
		return
	}
	l := fields()
	t.record[l.inUse]--
	copy(t.record[l.chacha:], t.saved[:])
}
