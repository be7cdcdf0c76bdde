package lane_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// lanesFixture is a group with several lanes, each with a device of its own. The fixtures have no
// other group.
type lanesFixture struct {
	verbs.CQ
	group lane.Group
	lanes []*fixture
}

func newLanesFixture(t require.TestingT, lanes, depth, most int) *lanesFixture {
	f := &lanesFixture{}
	f.group.Attach(f, most, func(*verbs.WC) {})
	for range lanes {
		one := &fixture{device: newDevice()}
		f.lanes = append(f.lanes, one)
		var err error
		one.lane, err = f.group.Open(pd{d: one.device}, verbs.QPInit{}, depth, one)
		require.NoError(t, err)
		require.NoError(t, one.lane.Connect(verbs.QPAttr{}))
	}
	return f
}

// Poll implements verbs.CQ.
func (f *lanesFixture) Poll(wcs []verbs.WC) (n int, err error) {
	for _, l := range f.lanes {
		m := copy(wcs[n:], l.done)
		l.done = l.done[m:]
		n += m
	}
	return n, nil
}

// push gives a lane more requests, numbered from first.
func (f *lanesFixture) push(l *fixture, first, n int) {
	for i := range n {
		j := &job{f: l, number: first + i}
		f.group.Add(&j.Request, j)
		l.lane.Push(&j.Request)
	}
}

// complete completes n requests of a lane, and posts what there is room for then.
func (f *lanesFixture) complete(t require.TestingT, l *fixture, n int) {
	l.complete(n, verbs.StatusSuccess)
	_, err := f.group.Poll()
	require.NoError(t, err)
	f.group.Post()
}

// posted is how many requests each lane has at its device.
func (f *lanesFixture) posted() (list []int) {
	for _, l := range f.lanes {
		list = append(list, l.lane.Posted())
	}
	return list
}

// Where one lane has all requests at the device that the group may have, each of the others can
// have one, time after time. What becomes free goes to the lanes in turn.
func TestEachLanePostsOne(t *testing.T) {
	f := newLanesFixture(t, 4, 8, 4)
	stuck, b, c, idle := f.lanes[0], f.lanes[1], f.lanes[2], f.lanes[3]
	f.push(stuck, 0, 9)
	f.push(b, 0, 9)
	f.push(c, 0, 9)
	f.group.Post()
	require.Equal(t, []int{4, 1, 1, 0}, f.posted())
	for i := range 3 {
		f.complete(t, c, 1)
		require.Len(t, c.ends, i+1)
		require.Equal(t, []int{4, 1, 1, 0}, f.posted())
		require.False(t, f.group.HasWork(), "no lane is looked at again before there is room")
		require.Equal(t, 3, f.group.NoRoom())
	}
	f.push(idle, 0, 1)
	f.push(stuck, 9, 1)
	f.group.Post()
	require.Equal(t, []int{4, 1, 1, 1}, f.posted())
	require.Equal(t, 3, f.group.NoRoom())

	f.complete(t, idle, 1)
	f.complete(t, stuck, 3)
	require.Equal(t, []int{2, 1, 1, 0}, f.posted(), "the first in turn")
	f.complete(t, stuck, 1)
	require.Equal(t, []int{1, 2, 1, 0}, f.posted(), "the second")
	f.complete(t, b, 1)
	require.Equal(t, []int{1, 1, 2, 0}, f.posted(), "the third")
}

// A lane that waits for room and ends is forgotten at once.
func TestALaneThatEndsWaitsForNoRoom(t *testing.T) {
	for name, end := range map[string]func(*lane.Lane) error{"shut": (*lane.Lane).Shut, "closed": (*lane.Lane).Close} {
		t.Run(name, func(t *testing.T) {
			f := newLanesFixture(t, 2, 8, 4)
			f.push(f.lanes[0], 0, 9)
			f.push(f.lanes[1], 0, 9)
			f.group.Post()
			require.Equal(t, 2, f.group.NoRoom())
			require.NoError(t, end(f.lanes[1].lane))
			require.Equal(t, 1, f.group.NoRoom())
			require.Equal(t, 9, f.lanes[1].lane.Flush())
			f.group.Post()
			require.Equal(t, []int{4, 0}, f.posted())
		})
	}
}

// A lane that waited for room posts what it gets after it was reset, or posts no more of the old.
func TestALaneThatWaitedStartsAnew(t *testing.T) {
	for name, anew := range map[string]func(l *fixture) error{
		"reset": func(l *fixture) error {
			l.device.posted = nil
			return errors.Join(l.lane.Reset(), l.lane.Connect(verbs.QPAttr{}))
		},
		"stop posting": func(l *fixture) error {
			l.lane.StopPosting(nil)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLanesFixture(t, 2, 8, 4)
			l := f.lanes[1]
			f.push(f.lanes[0], 0, 9)
			f.push(l, 0, 9)
			f.group.Post()
			require.Equal(t, []int{4, 1}, f.posted())
			require.Equal(t, 2, f.group.NoRoom())
			require.NoError(t, anew(l))
			f.push(l, 9, 2) // a signal, and one more
			f.group.Post()
			require.Equal(t, []int{4, 1}, f.posted())
			for len(l.device.posted) > 0 {
				f.complete(t, l, 1)
			}
			require.Equal(t, []end{{9, verbs.StatusSuccess}, {10, verbs.StatusSuccess}}, l.ends[len(l.ends)-2:])
			require.False(t, f.group.HasWork())
		})
	}
}

// Whatever lanes do: the requests at the device are never more than the group may have and one of
// each lane, no lane waits while there is room for it, and all requests end in order.
func TestRoomOfSeveralLanes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lanes, depth, most := rapid.IntRange(1, 5).Draw(rt, "lanes"), rapid.IntRange(1, 9).Draw(rt, "depth"), rapid.IntRange(1, 12).Draw(rt, "most")
		f := newLanesFixture(rt, lanes, depth, most)
		pushed := make([]int, lanes)
		check := func() {
			total := 0
			for _, n := range f.posted() {
				total += n
			}
			if lanes == 1 {
				require.LessOrEqual(rt, total, most)
			}
			require.LessOrEqual(rt, total, most+lanes)
			for i, l := range f.lanes {
				n := l.lane.Posted()
				require.LessOrEqual(rt, n, depth)
				if l.lane.IsUp() && len(l.ends)+n < pushed[i] {
					require.True(rt, n == depth || n > 0 && total >= most, "lane %d waits with %d posted of %d, %d in total of %d", i, n, depth, total, most)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			i := rapid.IntRange(0, lanes-1).Draw(rt, "lane")
			l := f.lanes[i]
			switch rapid.IntRange(0, 6).Draw(rt, "step") {
			case 0, 1:
				n := rapid.IntRange(1, 12).Draw(rt, "requests")
				f.push(l, pushed[i], n)
				pushed[i] += n
			case 2, 3:
				l.complete(rapid.IntRange(0, len(l.posted)).Draw(rt, "completed"), verbs.StatusSuccess)
			case 4:
				_, err := f.group.Poll()
				require.NoError(rt, err)
			case 5:
				l.lane.Hold()
			case 6:
				if !l.lane.IsUp() {
					l.lane.Connected()
				}
			}
			if rapid.Bool().Draw(rt, "flush") {
				f.group.Post()
				require.False(rt, f.group.HasWork())
				check()
			}
		}
		for _, l := range f.lanes {
			if !l.lane.IsUp() {
				l.lane.Connected()
			}
		}
		f.group.Post()
		check()
		for waiting := true; waiting; {
			waiting = false
			for i, l := range f.lanes {
				f.complete(rt, l, len(l.posted))
				check()
				waiting = waiting || len(l.ends) < pushed[i]
			}
		}
		for _, l := range f.lanes {
			for i, e := range l.ends {
				require.Equal(rt, end{i, verbs.StatusSuccess}, e)
			}
		}
		require.False(rt, f.group.HasWork())
		require.Zero(rt, f.group.NoRoom())
	})
}

// Lanes that have no room allocate nothing, and are not looked at when others post.
func TestLanesWithoutRoomAllocateNothing(t *testing.T) {
	f := newLanesFixture(t, 3, 8, 4)
	f.push(f.lanes[0], 0, 9)
	f.push(f.lanes[1], 0, 9)
	one := f.lanes[2]
	j := &job{f: one}
	f.group.Add(&j.Request, j)
	two := &job{f: one}
	f.group.Add(&two.Request, two)
	done := make([]verbs.WC, 1)
	round := func() {
		one.ends, one.posted = one.ends[:0], one.posted[:0]
		one.lane.Push(&j.Request)
		one.lane.Push(&two.Request)
		for range 2 {
			f.group.Post()
			done[0].ID = one.posted[len(one.posted)-1].ID
			one.done = done
			if n, err := f.group.Poll(); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	round()
	assert.Zero(t, testing.AllocsPerRun(100, round))
	assert.Len(t, one.ends, 2)
}
