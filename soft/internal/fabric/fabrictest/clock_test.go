package fabrictest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
)

// Calls are made in the order of their times, and those of one time in the order in which they
// were asked for. A time that has passed is now.
func TestClockOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type call struct{ at, number int }
		c := Clock{Now: 10}
		var asked, made []call
		var ask func()
		ask = func() {
			at, number := rapid.IntRange(0, 30).Draw(t, "at"), len(asked)
			asked = append(asked, call{max(at, int(c.Now)), number})
			c.At(time.Duration(at), func() {
				made = append(made, call{int(c.Now), number})
				if rapid.Bool().Draw(t, "another") {
					ask()
				}
			})
		}
		for range rapid.IntRange(0, 10).Draw(t, "calls") {
			ask()
		}
		require.True(t, c.Run(time.Hour))
		require.False(t, c.Step())
		slices.SortStableFunc(asked, func(a, b call) int { return a.at - b.at })
		require.Equal(t, asked, made)
	})
}

// A deadline that moves is met where it is in the end. Calls of the same time are made first.
func TestClockWatch(t *testing.T) {
	t.Parallel()
	var c Clock
	var log []string
	note := func(what string) { log = append(log, fmt.Sprint(what, " at ", int(c.Now))) }
	deadlines := []time.Duration{30, 0}
	for i := range deadlines {
		c.Watch(func() time.Duration { return deadlines[i] }, func() {
			note(fmt.Sprint("deadline ", i))
			deadlines[i] = 0
		})
	}
	c.At(10, func() {
		note("call")
		deadlines[0], deadlines[1] = 40, 20
	})
	c.After(20, func() { note("call") })
	c.At(50, func() {
		note("call")
		deadlines[0] = 5
	})
	require.True(t, c.Run(time.Second))
	assert.Equal(t, []string{"call at 10", "call at 20", "deadline 1 at 20", "deadline 0 at 40", "call at 50", "deadline 0 at 50"}, log)
}

func TestClockLimits(t *testing.T) {
	t.Parallel()
	c := Clock{Now: 100}
	calls := 0
	var again func()
	again = func() {
		calls++
		c.After(10, again)
	}
	again()
	c.Pass(35)
	assert.Equal(t, []int{135, 4}, []int{int(c.Now), calls}, "at 100, 110, 120, 130")
	c.Pass(5)
	assert.Equal(t, []int{140, 5}, []int{int(c.Now), calls}, "what is due at the end happens")
	assert.True(t, c.RunUntil(30, func() bool { return calls == 8 }))
	assert.Equal(t, 170, int(c.Now))
	assert.False(t, c.RunUntil(30, func() bool { return calls == 12 }), "too late")
	assert.False(t, c.Run(100), "it never ends")
	again = func() {}
	assert.True(t, c.Run(100))
	assert.False(t, c.RunUntil(100, func() bool { return false }), "nothing is left")
	c.Watch(func() time.Duration { return 1 }, func() {})
	assert.Panics(t, func() { c.Pass(1) }, "a deadline that stays where it is")
}

// Carry makes a call for each arrival.
func TestClockCarry(t *testing.T) {
	t.Parallel()
	c := Clock{Now: 100}
	l := fabric.NewLink(fabric.LinkConfig{Latency: 10, Duplicate: 1, RandomMark: 1}, rand.New(rand.NewPCG(1, 0)))
	var times []int
	arrive := func(a fabric.Arrival) {
		assert.Equal(t, fabric.Arrival{At: c.Now, Marked: true}, a)
		times = append(times, int(c.Now))
	}
	c.Carry(l, 1000, true, arrive)
	require.True(t, c.Run(time.Second))
	assert.Equal(t, []int{110, 111}, times)
	l.Config.Loss = 1
	c.Carry(l, 1000, true, arrive)
	assert.False(t, c.Step())
}
