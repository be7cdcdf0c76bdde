package plan

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var wide = Limits{Memory: 1 << 30, Connections: 1000, Engines: 16}

func TestTestNames(t *testing.T) {
	require.Len(t, Tests(), 12)
	for _, test := range slices.Concat(Tests(), BatchTests()) {
		again, err := ParseTest(test.String())
		require.NoError(t, err)
		assert.Equal(t, test, again)
		b, err := json.Marshal(test)
		require.NoError(t, err)
		var decoded Test
		require.NoError(t, json.Unmarshal(b, &decoded))
		assert.Equal(t, test, decoded)
	}
	_, err := ParseTest("write")
	assert.ErrorContains(t, err, "write_bw")
	assert.NotEmpty(t, Test{Op: 99, Kind: 7}.String())
}

func TestDefaultsAreValid(t *testing.T) {
	for _, test := range slices.Concat(Tests(), BatchTests()) {
		p := Plan{Test: test}
		p.Complete()
		require.NoError(t, p.Validate(wide), "%v", test)
		again := p
		again.Complete()
		assert.Equal(t, p, again)
	}
}

// With many connections, a test without a depth is one that can be made.
func TestDefaultDepth(t *testing.T) {
	for _, c := range []struct{ connections, batch, want int }{
		{1, 1, DefaultDepth}, {1024, 1, DefaultDepth}, {10_000, 1, 13}, {10_000, 64, 64}, {1 << 16, 1, 2},
	} {
		p := Plan{Test: Tests()[0], Connections: c.connections, Batch: c.batch}
		p.Complete()
		assert.Equal(t, c.want, p.Depth, "%v", c)
		require.NoError(t, p.Validate(Limits{Memory: math.MaxInt64, Connections: 1 << 16, Engines: 1}))
	}
}

func TestWrongPlans(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *Plan)
		want   string
	}{
		"no size":                 {func(p *Plan) { p.Sizes = nil }, "0 sizes"},
		"too many sizes":          {func(p *Plan) { p.Sizes = make([]int, maxSizes+1) }, "sizes"},
		"empty":                   {func(p *Plan) { p.Sizes = []int{8, 0} }, "size is 0"},
		"negative":                {func(p *Plan) { p.Sizes = []int{-1} }, "size is -1"},
		"huge":                    {func(p *Plan) { p.Sizes = []int{math.MaxInt} }, "size is"},
		"atomics of 16":           {func(p *Plan) { p.Test.Op, p.Sizes = FetchAdd, []int{16} }, "atomic operations have 8"},
		"memory":                  {func(p *Plan) { p.Sizes = []int{1 << 30} }, "bytes of memory"},
		"memory to verify":        {func(p *Plan) { p.Sizes, p.Verify, p.Depth = []int{1 << 20}, true, 1000 }, "bytes of memory"},
		"rounds":                  {func(p *Plan) { p.Rounds = 0 }, "rounds"},
		"connections":             {func(p *Plan) { p.Connections = 1001 }, "connections is 1001"},
		"no engine":               {func(p *Plan) { p.Engines = 0 }, "engines is 0"},
		"negative engines":        {func(p *Plan) { p.Engines = math.MinInt }, "engines"},
		"engines":                 {func(p *Plan) { p.Engines = 17 }, "engines is 17"},
		"idle engine":             {func(p *Plan) { p.Engines = 2 }, "each engine needs at least one"},
		"depth":                   {func(p *Plan) { p.Depth = math.MaxInt }, "depth"},
		"operations":              {func(p *Plan) { p.Depth, p.Connections = maxDepth, 1000 }, "operations"},
		"receives":                {func(p *Plan) { p.Test.Op, p.RecvDepth = Send, 0 }, "receives"},
		"batch":                   {func(p *Plan) { p.Batch = p.Depth + 1 }, "batch"},
		"moderation":              {func(p *Plan) { p.Moderation = 0 }, "completion"},
		"iterations and duration": {func(p *Plan) { p.Duration = time.Second }, "choose one"},
		"neither":                 {func(p *Plan) { p.Iterations = 0 }, "choose one"},
		"iterations":              {func(p *Plan) { p.Iterations = math.MaxInt64 }, "iterations"},
		"duration":                {func(p *Plan) { p.Iterations, p.Duration = 0, math.MaxInt64 }, "duration"},
		"warm-up":                 {func(p *Plan) { p.WarmUp = -1 }, "warm-up"},
		"timeout":                 {func(p *Plan) { p.AckTimeout = -1 }, "timeout"},
		"MTU":                     {func(p *Plan) { p.MTU = 1500 }, "path MTU"},
		"service level":           {func(p *Plan) { p.SL = 16 }, "service level"},
		"traffic class":           {func(p *Plan) { p.TrafficClass = 256 }, "traffic class"},
		"inline":                  {func(p *Plan) { p.Inline = maxInline + 1 }, "inline"},
		"latency of two":          {func(p *Plan) { p.Test.Kind, p.Connections = Latency, 2 }, "one connection"},
		"latency both ways":       {func(p *Plan) { p.Test.Kind, p.Bidirectional = Latency, true }, "one message at a time"},
		"peers":                   {func(p *Plan) { p.Test.Kind, p.Connections = Batches, maxPeers+1 }, "peers is 257"},
		"no items":                {func(p *Plan) { p.Test.Kind, p.Batch = Batches, 0 }, "batch is 0"},
		"items":                   {func(p *Plan) { p.Test.Kind, p.Batch = Batches, maxItems+1 }, "batch is"},
		"depth of agents":         {func(p *Plan) { p.Test.Kind, p.Depth = Batches, maxItemDepth+1 }, "depth is 1025"},
		"engines of agents":       {func(p *Plan) { p.Test.Kind, p.Connections, p.Engines = Batches, 2, 2 }, "-engines cannot"},
		"MTU of agents":           {func(p *Plan) { p.Test.Kind, p.MTU = Batches, 1024 }, "-m cannot"},
		"asleep for a write":      {func(p *Plan) { p.Test.Kind, p.Events = Latency, true }, "write_imm_lat"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Plan{Test: Test{Write, Bandwidth}}
			p.Complete()
			c.change(&p)
			assert.ErrorContains(t, p.Validate(wide), c.want)
		})
	}
}

// Slots of a valid plan lie within the memory, and apart where data are verified.
func TestLayout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Plan{
			Test:        rapid.SampledFrom(slices.Concat(Tests(), BatchTests())).Draw(t, "test"),
			Sizes:       rapid.SliceOfN(rapid.IntRange(1, 1<<16), 1, 4).Draw(t, "sizes"),
			Depth:       rapid.IntRange(1, 32).Draw(t, "depth"),
			Connections: rapid.IntRange(1, 40).Draw(t, "connections"),
			Engines:     rapid.IntRange(1, 8).Draw(t, "engines"),
			Verify:      rapid.Bool().Draw(t, "verify"),
			Batch:       rapid.IntRange(1, 40).Draw(t, "batch"),
		}
		p.Complete()
		if p.Validate(wide) != nil {
			t.Skip("not valid")
		}
		total, conns := int64(0), 0
		for e := range p.Engines {
			l := p.Layout(e)
			total += l.Size()
			n := p.ConnectionsOf(e)
			conns += n
			require.LessOrEqual(t, n, p.ConnectionsOf(0))
			used := map[int]bool{}
			if p.Test.Kind == Batches {
				n = p.Batch
				require.True(t, !p.Verify || l.Out == n && l.In == n)
			}
			for c := range n {
				for i := range p.Depth {
					slot := l.Slot(c, i)
					require.Less(t, slot, l.Out)
					if p.Test.Op != Send {
						require.Less(t, slot, l.In)
					}
					if p.Verify && p.Test.Kind == Bandwidth && !p.Test.Op.Atomic() {
						require.False(t, used[slot])
					}
					used[slot] = true
				}
			}
			if p.Verify && p.Test.Op == Send {
				require.GreaterOrEqual(t, l.In, p.RecvDepth)
			}
			for _, s := range p.Sizes {
				require.LessOrEqual(t, s, l.Stride)
			}
			require.LessOrEqual(t, int64(l.InOffset(l.In-1)+l.Stride), l.Size())
		}
		require.Equal(t, p.Connections, conns)
		require.Equal(t, p.Memory(), total)
	})
}

func TestStepsTakeSizesInTurns(t *testing.T) {
	p := Plan{Sizes: []int{2, 4}, Rounds: 2}
	var got [][2]int
	for i := range p.Steps() {
		round, size := p.Step(i)
		got = append(got, [2]int{round, size})
	}
	assert.Equal(t, [][2]int{{0, 2}, {0, 4}, {1, 2}, {1, 4}}, got)
}

func TestWhoPolls(t *testing.T) {
	write := Plan{Test: Test{Write, Bandwidth}}
	assert.True(t, write.Polls(false))
	assert.False(t, write.Polls(true), "it waits for nothing")
	batches := Plan{Test: Test{Write, Batches}}
	assert.False(t, batches.Polls(false), "an agent sleeps")
	send := Plan{Test: Test{Send, Bandwidth}}
	assert.True(t, send.Polls(true))
	send.Events = true
	assert.False(t, send.Polls(true))
	assert.Equal(t, 23, len(AllSizes()))
}
