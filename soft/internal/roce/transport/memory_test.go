package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Only the function that watches one of the written bytes is called, and once.
func TestTell(t *testing.T) {
	type watcher struct {
		off, n uint64
		calls  int
		cancel func()
	}
	rapid.Check(t, func(t *rapid.T) {
		const size = 64
		r := &Region{Mem: make([]byte, size), Base: 4096}
		var all []*watcher
		span := func() (off, n uint64) {
			off = rapid.Uint64Range(0, size-1).Draw(t, "offset")
			return off, rapid.Uint64Range(1, size-off).Draw(t, "bytes")
		}
		t.Repeat(map[string]func(*rapid.T){
			"watch": func(t *rapid.T) {
				w := &watcher{}
				w.off, w.n = span()
				w.cancel = r.Watch(w.off, w.n, func() { w.calls++ })
				all = append(all, w)
			},
			"cancel": func(t *rapid.T) {
				if len(all) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(all)-1).Draw(t, "who")
				all[i].cancel()
				all[i].cancel()
				all = append(all[:i], all[i+1:]...)
			},
			"notify": func(t *rapid.T) {
				off, n := span()
				r.notify(r.Base+off, n)
				for _, w := range all {
					want := 0
					if off < w.off+w.n && w.off < off+n {
						want = 1
					}
					require.Equal(t, want, w.calls, "%d bytes from %d of those from %d to %d", n, off, w.off, w.off+w.n)
					w.calls = 0
				}
			},
			"": func(t *rapid.T) { require.Len(t, r.watches, len(all)) },
		})
	})
}

// A write into a region with thousands of sync events.
func BenchmarkTell(b *testing.B) {
	r := &Region{Mem: make([]byte, 1<<20)}
	for i := range uint64(4096) {
		r.Watch(8*i, 8, func() {})
	}
	b.ReportAllocs()
	for b.Loop() {
		r.notify(1<<16, 1024)
	}
}
