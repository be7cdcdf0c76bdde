package srd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The heap against a plain list: the earliest timer is first, and each has the right index.
func TestTimers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h timers
		contexts := make([]Context, 20)
		want := make(map[*Context]time.Duration)
		for i := range contexts {
			contexts[i].timerIndex = noTimer
		}
		pick := func(t *rapid.T) *Context { return &contexts[rapid.IntRange(0, len(contexts)-1).Draw(t, "context")] }
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				c, at := pick(t), time.Duration(rapid.IntRange(1, 50).Draw(t, "at"))
				h.set(c, at)
				want[c] = at
			},
			"remove": func(t *rapid.T) {
				c := pick(t)
				h.remove(c)
				delete(want, c)
			},
			"": func(t *rapid.T) {
				require.Len(t, h, len(want))
				for i, x := range h {
					require.Equal(t, want[x.c], x.at)
					require.Equal(t, i, x.c.timerIndex)
					require.LessOrEqual(t, h[0].at, x.at)
				}
				for i := range contexts {
					if _, in := want[&contexts[i]]; !in {
						require.Equal(t, noTimer, contexts[i].timerIndex)
					}
				}
			},
		})
	})
}
