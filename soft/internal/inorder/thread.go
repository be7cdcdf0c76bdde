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

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// layout is where fields of the record are, in words. Zero: unknown.
type layout struct {
	preempt int // why the goroutine is not to be preempted: a string
	inUse   int // whether the cache of lookups by program counter is, which takes random numbers when it misses
	chacha  int // the state of rand: 32 numbers, 4 words of the seed, the index and how many, a counter
	simple  int // the state of cheaprand
}

func (l layout) known() bool { return l.simple > 0 && l.preempt > 0 }

const (
	chachaWords = 38
	// betweenWords are between inUse and chacha, and the entries of the cache are before inUse.
	betweenWords           = 3
	cacheWords, entryWords = 48, 3
	// pointer is the index of the pointer to the record in that of a goroutine.
	pointer = 6
	// step is what cheaprand adds to its state.
	step = 0xa0761d6478bd642f
	// most is how many words are searched.
	most = 250
)

// record returns the record of the calling goroutine's thread, which must not change: the goroutine is pinned.
func record() *[most]uint64 {
	id := goroutine.Current() // which is where the record of the goroutine is
	g := *(**[pointer + 1]*[most]uint64)(unsafe.Pointer(&id))
	return g[pointer]
}

var fields = sync.OnceValue(find)

// find finds the fields.
func find() (l layout) {
	procPin()
	defer procUnpin()
	m := record()
	before := *m
	procPin() // it counts in the word behind the string
	after := *m
	procUnpin()
	for i := 2; i < most && l.preempt == 0; i++ {
		if after[i]-before[i] == 1 && before[i-1] == 0 && before[i-2] == 0 {
			l.preempt = i - 2
		}
	}
	runtime.Callers(0, make([]uintptr, 10)) // fills the cache
	before = *m
	cheaprand()
	for i := cacheWords + 1 + betweenWords + chachaWords; i < most; i++ {
		if m[i]-before[i] == step {
			l.simple, l.chacha, l.inUse = i, i-chachaWords, i-chachaWords-betweenWords-1
		}
	}
	if l.simple == 0 || before[l.inUse] != 0 {
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

// thread is a thread whose record was changed, and what was in there.
type thread struct {
	record *[most]uint64
	was    [chachaWords + 1]uint64
}

// Seed makes what the runtime chooses until the next call follow from the seed.
func (o *Order) Seed(seed uint64) {
	l := fields()
	if !l.known() {
		return
	}
	procPin()
	defer procUnpin()
	m := record()
	if m != o.thread.record { // a system call has taken another one
		o.thread.restore()
		o.thread = thread{m, [chachaWords + 1]uint64(m[l.chacha:])}
	}
	*(*string)(unsafe.Pointer(&m[l.preempt])) = "a simulation runs"
	m[l.inUse] = 1
	for i := l.chacha; i < l.simple; i++ {
		m[i] = mix(seed + uint64(i)*step)
	}
	m[l.simple-2], m[l.simple-1] = 32<<32, 0 // the first of 32 numbers is next
	m[l.simple] = calm(seed)
}

// calm returns a state of cheaprand whose next numbers are no multiples of 1,024: at such a number the
// runtime changes a cache of type assertions, and where these miss, it takes one number more.
func calm(seed uint64) uint64 {
	const enough = 768 // numbers until the next call of Seed
	for {
		seed = mix(seed + step)
		x, n := seed, 0
		for ; n < enough; n++ {
			x += step
			if hi, lo := bits.Mul64(x, x^0xe7037ed1a0b428db); (hi^lo)&1023 == 0 {
				break
			}
		}
		if n == enough {
			return seed
		}
	}
}

// restore undoes what Seed has done.
func (t *thread) restore() {
	if t.record == nil {
		return
	}
	l := fields()
	*(*string)(unsafe.Pointer(&t.record[l.preempt])) = ""
	t.record[l.inUse] = 0
	copy(t.record[l.chacha:], t.was[:])
}
