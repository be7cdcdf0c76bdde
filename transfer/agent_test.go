package transfer

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const all = mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic

// testContext ends what hangs.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open opens an agent that listens, on n devices.
func open(t testing.TB, n int, change ...func(c *Config)) *Agent {
	cfg := Config{Listen: "127.0.0.1:0"}
	for range n {
		dev, err := device.Open("soft-lo")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		cfg.Devices = append(cfg.Devices, dev)
	}
	for _, f := range change {
		f(&cfg)
	}
	a, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// Agents that have failed as often do not come back together, nor sooner or later than they should.
func TestBackOff(t *testing.T) {
	a := open(t, 1)
	for failures, most := range map[int]time.Duration{2: 100 * time.Millisecond, 3: 200 * time.Millisecond, 100: maxBackOff} {
		seen := map[time.Duration]bool{}
		for range 20 {
			pause := a.backOff(failures)
			require.LessOrEqual(t, pause, most)
			require.Greater(t, pause, most/2)
			seen[pause] = true
		}
		require.Greater(t, len(seen), 10)
	}
}

// opener is open, or efa.
type opener func(t testing.TB, n int, change ...func(c *Config)) *Agent

// overBoth tests agents with RC, and with SRD.
func overBoth(t *testing.T, f func(t *testing.T, open opener)) {
	t.Run("RC", func(t *testing.T) { f(t, open) })
	t.Run("SRD", func(t *testing.T) { f(t, efa) })
}

// register registers new memory.
func register(t testing.TB, a *Agent, name string, size int) *Segment {
	s, err := a.Register(name, make([]byte, size), all)
	require.NoError(t, err)
	return s
}

// dial returns a segment of b, as a sees it.
func dial(t testing.TB, a, b *Agent, name string) *RemoteSegment {
	p, err := a.Dial(testContext(t), b.Addrs()[0].String())
	require.NoError(t, err)
	s, err := p.Segment(testContext(t), name)
	require.NoError(t, err)
	return s
}

func submit(t testing.TB, a *Agent, b *Batch) *Handle {
	h, err := a.Submit(b)
	require.NoError(t, err)
	return h
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

// Items of all kinds do what they say, small ones and ones of many pieces, over one and several devices.
func TestBatch(t *testing.T) {
	for _, devices := range []int{1, 2} {
		t.Run(fmt.Sprint(devices), func(t *testing.T) {
			ctx := testContext(t)
			near, far := open(t, devices), open(t, devices)
			theirs := register(t, far, "blocks", 8<<20)
			mine := register(t, near, "", 8<<20)
			remote := dial(t, near, far, "blocks")
			require.Equal(t, 8<<20, remote.Len())

			var b Batch
			fill(mine.Bytes(), 1)
			b.Write(remote, 0, mine.Bytes()[:3<<20+17])
			b.Write(remote, 4<<20, mine.Bytes()[4<<20:][:1])
			h := submit(t, near, &b)
			require.NoError(t, h.Wait(ctx))
			require.Zero(t, b.Len())
			items, n := h.Progress()
			require.Equal(t, 2, items)
			require.EqualValues(t, 3<<20+18, n)
			require.True(t, bytes.Equal(mine.Bytes()[:3<<20+17], theirs.Bytes()[:3<<20+17]))
			require.Equal(t, mine.Bytes()[4<<20], theirs.Bytes()[4<<20])
			require.Zero(t, theirs.Bytes()[3<<20+17])

			fill(theirs.Bytes()[:4<<20], 2)
			counter := (*uint64)(unsafe.Pointer(&theirs.Bytes()[6<<20])) // other goroutines of this process change it
			atomic.StoreUint64(counter, 40)
			b.Read(remote, 100, mine.Bytes()[:2<<20])
			b.FetchAdd(remote, 6<<20, 2)
			h = submit(t, near, &b)
			require.NoError(t, h.Wait(ctx))
			require.True(t, bytes.Equal(theirs.Bytes()[100:][:2<<20], mine.Bytes()[:2<<20]))
			require.EqualValues(t, 40, h.Original(1))
			b.CompareSwap(remote, 6<<20, 42, 7)
			h = submit(t, near, &b)
			require.NoError(t, h.Wait(ctx))
			require.EqualValues(t, 42, h.Original(0))
			require.EqualValues(t, 7, atomic.LoadUint64(counter))
			require.EqualValues(t, 5, near.Counters().Items)
		})
	}
}

// Many small items, to several peers, need no allocation each.
func TestManySmallItems(t *testing.T) { overBoth(t, testManySmallItems) }

func testManySmallItems(t *testing.T, open opener) {
	near := open(t, 1)
	mine := register(t, near, "", 1<<20)
	fill(mine.Bytes(), 3)
	var remotes []*RemoteSegment
	var theirs []*Segment
	for range 3 {
		far := open(t, 1)
		theirs = append(theirs, register(t, far, "blocks", 1<<20))
		remotes = append(remotes, dial(t, near, far, "blocks"))
	}
	const items = 10_000
	var b Batch
	round := func() {
		b.Grow(items)
		for i := range items {
			at := i / 3 * 64
			b.Write(remotes[i%3], at, mine.Bytes()[at:][:64])
		}
		h, err := near.Submit(&b)
		if err == nil {
			err = h.Wait(context.Background())
		}
		require.NoError(t, err)
	}
	round()
	for _, s := range theirs {
		n := items / 3 * 64
		require.True(t, bytes.Equal(mine.Bytes()[:n], s.Bytes()[:n]))
	}
	if !raceEnabled {
		require.Less(t, testing.AllocsPerRun(3, round), 500.0)
	}
}

func TestLookUp(t *testing.T) { overBoth(t, testLookUp) }

func testLookUp(t *testing.T, open opener) {
	ctx := testContext(t)
	near, far := open(t, 1), open(t, 2)
	const n = 300 // more than fit into a reply
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("segment %03d", i))
	}
	for i := range n {
		register(t, far, names[(i*7)%n], 10+i)
	}
	register(t, far, "", 100)
	p, err := near.Dial(ctx, far.Addrs()[0].String())
	require.NoError(t, err)
	segments, err := p.Segments(ctx)
	require.NoError(t, err)
	require.Len(t, segments, n)
	for i, s := range segments {
		require.Equal(t, names[i], s.Name())
	}
	one, err := p.Segment(ctx, names[5])
	require.NoError(t, err)
	require.Same(t, segments[5], one)
	require.Equal(t, all&remotePermissions, one.Permissions())
	_, err = p.Segment(ctx, "none")
	require.ErrorIs(t, err, ErrNoSegment)
	require.ErrorContains(t, err, `"none"`)

	// Other memory by the same name is another segment.
	far.mu.Lock()
	i := slicesIndex(far.segments, names[5])
	far.mu.Unlock()
	require.NoError(t, i.Close())
	register(t, far, names[5], 5)
	two, err := p.Segment(ctx, names[5])
	require.NoError(t, err)
	require.Equal(t, 5, two.Len())
	require.True(t, one.Stale())
	var b Batch
	b.FetchAdd(one, 0, 1)
	_, err = near.Submit(&b)
	require.ErrorIs(t, err, ErrStale)
}

// The directory is not written again for memory that is not in it, such as that of look-ups: it can be large.
func TestUnpublishedMemory(t *testing.T) {
	a := open(t, 1)
	register(t, a, "blocks", 100)
	a.directory.mem[headLen]++
	before := bytes.Clone(a.directory.mem)
	require.NoError(t, register(t, a, "", 100).Close())
	require.True(t, bytes.Equal(before, a.directory.mem))
}

func slicesIndex(segments []*Segment, name string) *Segment {
	for _, s := range segments {
		if s.name == name {
			return s
		}
	}
	return nil
}

// What cannot work is refused at once, and named.
func TestRefused(t *testing.T) {
	near, far := open(t, 1), open(t, 1)
	readOnly, err := far.Register("read", make([]byte, 100), mmap.RemoteRead)
	require.NoError(t, err)
	mine := register(t, near, "mine", 1000)
	register(t, far, "atomics", 4096)
	remote := dial(t, near, far, readOnly.Name())
	atomics, err := remote.Peer().Segment(testContext(t), "atomics")
	require.NoError(t, err)
	submitErr := func(add func(b *Batch)) error {
		var b Batch
		b.Read(remote, 0, mine.Bytes()[:10])
		add(&b)
		_, err := near.Submit(&b)
		var item *ItemError
		require.ErrorAs(t, err, &item)
		require.Equal(t, 1, item.Item)
		require.Equal(t, 2, b.Len())
		return err
	}
	err = submitErr(func(b *Batch) { b.Write(remote, 3, mine.Bytes()[:10]) })
	require.ErrorIs(t, err, ErrPermission)
	require.EqualError(t, err, fmt.Sprintf(`submit a batch of 2 items: item 1: %v of 10 bytes at offset 3 of segment "read" of %s: permission missing: the segment allows RemoteRead, not RemoteWrite`, rdma.OpWrite, far.Addrs()[0]))
	require.ErrorIs(t, submitErr(func(b *Batch) { b.FetchAdd(remote, 0, 1) }), ErrPermission)
	require.ErrorIs(t, submitErr(func(b *Batch) { b.Read(remote, 91, mine.Bytes()[:10]) }), ErrRange)
	require.ErrorIs(t, submitErr(func(b *Batch) { b.Read(remote, -1, mine.Bytes()[:10]) }), ErrRange)
	require.ErrorIs(t, submitErr(func(b *Batch) { b.Read(remote, 0, nil) }), ErrRange)
	require.ErrorIs(t, submitErr(func(b *Batch) { b.Read(remote, 0, make([]byte, 10)) }), ErrNotRegistered)
	require.ErrorIs(t, submitErr(func(b *Batch) { b.Read(nil, 0, mine.Bytes()[:10]) }), ErrInvalid)

	require.ErrorIs(t, submitErr(func(b *Batch) { b.FetchAdd(atomics, 4, 1) }), ErrInvalid)

	_, err = near.Register("mine", make([]byte, 10), all)
	require.ErrorIs(t, err, ErrExists)
	_, err = near.Register("other", mine.Bytes()[900:], all)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `belongs to segment "mine"`)
	_, err = near.Register("other", make([]byte, 10), mmap.LocalReadWrite)
	require.ErrorIs(t, err, ErrPermission)
	_, err = near.Dial(testContext(t), "127.0.0.1")
	require.ErrorIs(t, err, ErrInvalid)
	_, err = Open(Config{})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = Open(Config{Devices: []verbs.Device{nil}})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = Open(Config{Devices: near.cfg.Devices, Depth: -1})
	require.ErrorIs(t, err, ErrRange)
	require.ErrorContains(t, err, "Config.Depth is -1, and can be 0 to 1024")
	_, err = Open(Config{Devices: near.cfg.Devices, SilenceTimeout: -5})
	require.ErrorIs(t, err, rdma.ErrRange)

	var none Batch
	none.Grow(-1)
	h := submit(t, near, &none)
	require.ErrorIs(t, h.Item(99), ErrRange)
	require.ErrorIs(t, h.Item(-1), ErrRange)
	require.Zero(t, h.Original(99))

	p := remote.Peer()
	p.Close()
	p.Close()
	var b Batch
	b.Read(remote, 0, mine.Bytes()[:10])
	_, err = near.Submit(&b)
	require.ErrorIs(t, err, ErrClosed)
	_, err = p.Segment(testContext(t), "read")
	require.ErrorIs(t, err, ErrClosed)
}

// An item that the peer refuses fails by itself; the others of the batch are done over another connection.
func TestItemRefusedByThePeer(t *testing.T) { overBoth(t, testItemRefusedByThePeer) }

func testItemRefusedByThePeer(t *testing.T, open opener) {
	ctx := testContext(t)
	near, far := open(t, 1), open(t, 1)
	good, bad := register(t, far, "good", 1<<20), register(t, far, "bad", 100)
	mine := register(t, near, "", 1<<20)
	fill(mine.Bytes(), 1)
	remote := dial(t, near, far, "good")
	gone, err := remote.Peer().Segment(ctx, "bad")
	require.NoError(t, err)
	require.NoError(t, bad.Close())
	var b Batch
	for i := range 100 {
		if i == 50 {
			b.Write(gone, 0, mine.Bytes()[:100])
		}
		b.Write(remote, i*100, mine.Bytes()[i*100:][:100])
	}
	h := submit(t, near, &b)
	err = h.Wait(ctx)
	require.ErrorIs(t, err, rdma.ErrRemoteAccess)
	require.ErrorContains(t, err, "1 of 101 items failed; the first is item 50: ")
	require.ErrorIs(t, h.Item(50), rdma.ErrRemoteAccess)
	require.NoError(t, h.Item(51))
	require.Equal(t, mine.Bytes()[:10_000], good.Bytes()[:10_000])
}

// Without a peer, items fail with the reason.
func TestNobodyThere(t *testing.T) { overBoth(t, testNobodyThere) }

func testNobodyThere(t *testing.T, open opener) {
	near := open(t, 1, func(c *Config) { c.DialTimeout = 500 * time.Millisecond })
	addr := Addr{AddrPort: netip.MustParseAddrPort("127.0.0.1:9")}
	if near.cfg.Transport == verbs.SRD {
		addr.QPN = 9
	}
	_, err := near.Dial(testContext(t), addr.String())
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "127.0.0.1:9")

	far := open(t, 1)
	register(t, far, "blocks", 100)
	mine := register(t, near, "", 100)
	remote := dial(t, near, far, "blocks")
	require.NoError(t, far.Close())
	var b Batch
	b.Read(remote, 0, mine.Bytes())
	require.Error(t, submit(t, near, &b).Wait(testContext(t)))
	require.NoError(t, mine.Close())
}

// A peer that was opened again has another epoch.
func TestStale(t *testing.T) {
	ctx := testContext(t)
	near, far := open(t, 1), open(t, 1)
	register(t, far, "blocks", 100)
	mine := register(t, near, "", 100)
	remote := dial(t, near, far, "blocks")
	addr := far.Addrs()[0].String()
	require.NoError(t, far.Close())
	again := open(t, 1, func(c *Config) { c.Listen = addr })
	register(t, again, "blocks", 100)
	var b Batch
	b.Read(remote, 0, mine.Bytes())
	err := submit(t, near, &b).Wait(ctx)
	require.ErrorIs(t, err, ErrStale)
	require.True(t, remote.Stale())
	remote, err = remote.Peer().Segment(ctx, "blocks")
	require.NoError(t, err)
	b.Read(remote, 0, mine.Bytes())
	require.NoError(t, submit(t, near, &b).Wait(ctx))
}

// A peer with several devices that was opened again elsewhere is found by all addresses that were dialled.
func TestOpenedElsewhere(t *testing.T) {
	ctx := testContext(t)
	near, first, second := open(t, 1, func(c *Config) { c.DialTimeout = time.Second }), open(t, 2), open(t, 1)
	elsewhere := second.Addrs()[0].String()
	require.NoError(t, second.Close())
	p, err := near.Dial(ctx, first.Addrs()[0].String(), elsewhere)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	again := open(t, 1, func(c *Config) { c.Listen = elsewhere })
	var b Batch
	b.Note(p, 1)
	require.NoError(t, submit(t, near, &b).Wait(ctx))
	_, err = again.Note(ctx)
	require.NoError(t, err)
}

// Closing an agent, canceling, and closing a peer end all items.
func TestEnds(t *testing.T) { overBoth(t, testEnds) }

func testEnds(t *testing.T, open opener) {
	for name, end := range map[string]struct {
		f   func(h *Handle, p *Peer, a *Agent)
		err error
	}{
		"agent":  {func(_ *Handle, _ *Peer, a *Agent) { _ = a.Close() }, ErrClosed},
		"peer":   {func(_ *Handle, p *Peer, _ *Agent) { p.Close() }, ErrClosed},
		"cancel": {func(h *Handle, _ *Peer, _ *Agent) { h.Cancel(); h.Cancel() }, ErrCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := open(t, 1), open(t, 1)
			register(t, far, "blocks", 16<<20)
			mine := register(t, near, "", 16<<20)
			remote := dial(t, near, far, "blocks")
			var b Batch
			for range 100 {
				b.Read(remote, 0, mine.Bytes())
			}
			b.Note(remote.Peer(), 1)
			h := submit(t, near, &b)
			require.ErrorIs(t, h.Err(), ErrPending)
			require.ErrorIs(t, mine.Close(), ErrInUse)
			end.f(h, remote.Peer(), near)
			require.ErrorIs(t, h.Wait(testContext(t)), end.err)
			if name != "agent" {
				require.NoError(t, mine.Close())
			}
		})
	}
}

// Progress counts the pieces of an item that goes on.
func TestProgress(t *testing.T) {
	near := open(t, 1)
	h := &Handle{agent: near, items: []item{{op: rdma.OpRead, pieces: 3, cut: 300, slice: make([]byte, 300), remote: &RemoteSegment{peer: &Peer{}}}}, left: 1, done: make(chan struct{})}
	sub := &subBatch{h: h, first: -1, left: 1}
	h.items[0].sub = sub
	for i, err := range []error{nil, ErrUnknown, nil} {
		near.mu.Lock()
		near.pieceEnded(&piece{sub: sub, item: &h.items[0], length: 100}, err)
		near.mu.Unlock()
		items, n := h.Progress()
		require.Equal(t, i/2, items)
		require.EqualValues(t, []int{100, 100, 200}[i], n)
	}
	require.ErrorIs(t, h.Err(), ErrUnknown)
}

// Urgent work goes before what waits, and of two peers each gets its turn.
func TestOrder(t *testing.T) { overBoth(t, testOrder) }

func testOrder(t *testing.T, open opener) {
	ctx := testContext(t)
	near := open(t, 1, func(c *Config) { c.Depth = 1 })
	mine := register(t, near, "", 1<<20)
	var remotes []*RemoteSegment
	for range 2 {
		far := open(t, 1)
		register(t, far, "blocks", 1<<20)
		remotes = append(remotes, dial(t, near, far, "blocks"))
	}
	var b Batch
	for range 2000 {
		b.Read(remotes[0], 0, mine.Bytes()[:64<<10])
	}
	long := submit(t, near, &b)
	b.Priority = Urgent
	b.Read(remotes[0], 0, mine.Bytes()[:1])
	urgent := submit(t, near, &b)
	b.Priority = Normal
	b.Read(remotes[1], 0, mine.Bytes()[:1])
	other := submit(t, near, &b)
	require.NoError(t, urgent.Wait(ctx))
	require.NoError(t, other.Wait(ctx))
	items, _ := long.Progress()
	require.Less(t, items, 2000)
	require.NoError(t, long.Wait(ctx))
}

// Notes come once, in order, after the data of their batches.
func TestNotes(t *testing.T) { overBoth(t, testNotes) }

func testNotes(t *testing.T, open opener) {
	ctx := testContext(t)
	near, far := open(t, 2), open(t, 2)
	theirs := register(t, far, "blocks", 1<<20)
	mine := register(t, near, "", 1<<20)
	remote := dial(t, near, far, "blocks")
	const n = 3000 // more than wait for Agent.Note
	var last *Handle
	for i := range n {
		var b Batch
		b.Note(remote.Peer(), uint32(i))
		if i == n-1 {
			fill(mine.Bytes(), 5)
			b.Write(remote, 0, mine.Bytes())
		}
		last = submit(t, near, &b)
	}
	seen := map[uint32]bool{}
	for range n {
		note, err := far.Note(ctx)
		require.NoError(t, err)
		require.False(t, seen[note.Value])
		seen[note.Value] = true
		require.Contains(t, near.Addrs(), note.From)
		require.Equal(t, near.epoch, note.Epoch)
		if note.Value == n-1 {
			require.True(t, bytes.Equal(mine.Bytes(), theirs.Bytes()))
		}
	}
	require.NoError(t, last.Wait(ctx))

	// A note is not sent if an item before it fails.
	gone := register(t, far, "gone", 100)
	segment, err := remote.Peer().Segment(ctx, "gone")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	var b Batch
	b.Note(remote.Peer(), 1)
	b.Write(segment, 0, mine.Bytes()[:100])
	h := submit(t, near, &b)
	require.Error(t, h.Wait(ctx))
	require.ErrorIs(t, h.Item(0), ErrNotSent)
	require.ErrorContains(t, h.Item(0), "item 0: note to "+far.Addrs()[0].String())
	b.Note(nil, 1)
	_, err = near.Submit(&b)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = open(t, 1, func(c *Config) { c.Listen = "" }).Note(ctx) // would never come
	require.ErrorIs(t, err, ErrInvalid)

	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = far.Note(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ended := make(chan error)
	go func() {
		_, err := far.Note(ctx)
		ended <- err
	}()
	require.NoError(t, far.Close())
	require.ErrorIs(t, <-ended, ErrClosed)
}

// A note says at which address its sender can be dialled, and which agent that is.
func TestNoteFrom(t *testing.T) { overBoth(t, testNoteFrom) }

func testNoteFrom(t *testing.T, open opener) {
	ctx := testContext(t)
	near, far := open(t, 1), open(t, 1)
	register(t, near, "blocks", 100)
	for _, sender := range []*Agent{near, open(t, 1, func(c *Config) { c.Listen = "" })} {
		p, err := sender.Dial(ctx, far.Addrs()[0].String())
		require.NoError(t, err)
		require.Equal(t, far.epoch, p.Epoch())
		var b Batch
		b.Note(p, 7)
		require.NoError(t, submit(t, sender, &b).Wait(ctx))
		note, err := far.Note(ctx)
		require.NoError(t, err)
		require.Equal(t, sender.epoch, note.Epoch)
		if sender != near {
			require.Zero(t, note.From.AddrPort.Port())
			continue
		}
		back, err := far.Dial(ctx, note.From.String())
		require.NoError(t, err)
		s, err := back.Segment(ctx, "blocks")
		require.NoError(t, err)
		require.Equal(t, note.Epoch, s.Epoch())
	}
}

// However many peers there are, only so many are dialled at a time.
func TestDialLimit(t *testing.T) {
	near := open(t, 1, func(c *Config) { c.DialTimeout = 200 * time.Millisecond })
	var wg sync.WaitGroup
	for range 3 * maxDials {
		wg.Go(func() {
			_, err := near.Dial(testContext(t), "127.0.0.1:9")
			assert.Error(t, err)
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	most := 0
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(time.Millisecond):
		}
		near.mu.Lock()
		dialing := 0
		for _, p := range near.peers {
			if p.paths[0].state == pathDialing {
				dialing++
			}
		}
		most = max(most, dialing)
		near.mu.Unlock()
	}
	require.Positive(t, most)
	require.LessOrEqual(t, most, maxDials)
	require.Zero(t, near.dialing)
}

// Peers that do not answer take no place from one that can be reached.
func TestDeadPeers(t *testing.T) {
	near, far := open(t, 1, func(c *Config) { c.DialTimeout = time.Hour }), open(t, 1)
	register(t, far, "blocks", 100)
	near.mu.Lock()
	for range 3 * maxDials {
		p := &Peer{agent: near, targets: []string{"127.0.0.1:9"}, gone: make(chan struct{})}
		p.paths = []*path{{peer: p, dev: near.devices[0], own: near.devices[0], failures: maxFailures}}
		near.peers = append(near.peers, p)
		p.connect()
	}
	near.mu.Unlock()
	dial(t, near, far, "blocks")
}

// What a device that ends had moves to another one; what the peer or the device refuses fails.
func TestRepeatable(t *testing.T) {
	for _, status := range []verbs.Status{verbs.StatusFlushed, verbs.StatusRetryExceeded, verbs.StatusRNRRetryExceeded, verbs.StatusGeneralError} {
		require.True(t, repeatable(&rdma.TaskError{Status: status}, true), status)
	}
	for _, status := range []verbs.Status{verbs.StatusRemoteAccessError, verbs.StatusRemoteInvalidRequest, verbs.StatusRemoteOperationError, verbs.StatusLocalProtectionError, verbs.StatusLocalLengthError} {
		require.False(t, repeatable(&rdma.TaskError{Status: status}, true), status)
	}
	require.True(t, repeatable(pe.ErrBadState, false)) // the context is Stopping
	require.True(t, repeatable(rdma.ErrNotReady, false))
	require.False(t, repeatable(rdma.ErrRange, false))
}

// Two connections through one device to different devices of the peer do not disturb each other.
func TestTwoWaysThroughOneDevice(t *testing.T) {
	near, far := open(t, 2), open(t, 2)
	register(t, far, "blocks", 100)
	s := dial(t, near, far, "blocks")
	near.mu.Lock()
	defer near.mu.Unlock()
	acc := s.peer.reached
	acc.Device = 0
	other := acc
	other.Device = 1
	first := &path{dev: near.devices[0], own: near.devices[0], acceptance: acc}
	second := &path{dev: near.devices[0], own: near.devices[1], acceptance: other}
	one, err := s.mapFor(first)
	require.NoError(t, err)
	two, err := s.mapFor(second)
	require.NoError(t, err)
	require.NotSame(t, one, two)
	again, err := s.mapFor(first)
	require.NoError(t, err)
	require.Same(t, one, again)
	second.dev = near.devices[1]
	moved, err := s.mapFor(second)
	require.NoError(t, err)
	require.NotSame(t, two, moved)
}

// A segment stays the same for as long as its memory and the peer's epoch do, whatever its name.
func TestSegmentOfAnEpoch(t *testing.T) {
	near, far := open(t, 1), open(t, 1)
	register(t, far, "directory", 100)
	one := dial(t, near, far, "directory")
	two, err := one.Peer().Segment(testContext(t), "directory")
	require.NoError(t, err)
	require.Same(t, one, two)
	near.mu.Lock()
	p := one.Peer()
	three := p.adopt([]record{*far.names[0]}, p.reached.Epoch+1)[0]
	near.mu.Unlock()
	require.NotSame(t, one, three)
	require.True(t, one.Stale())
}

// An end is free when the device is dead that it was connected to.
func TestDeadDeviceFreesEnds(t *testing.T) {
	far := open(t, 1)
	in := &incoming{dev: far.devices[0], conn: &rdma.Connection{}}
	in.place.Value = in
	far.mu.Lock()
	in.dev.accepted.Take(in.from)
	far.incoming[in.who.Path] = in
	far.mu.Unlock()
	require.NoError(t, far.Close())
	require.True(t, in.conn == nil)
}

// When segments are closed, the collector frees their memory, though the connection goes on; but for what the device has
// sent last.
func TestClosedMemoryIsCollected(t *testing.T) { overBoth(t, testClosedMemoryIsCollected) }

func testClosedMemoryIsCollected(t *testing.T, open opener) {
	near, far := open(t, 1), open(t, 1)
	register(t, far, "blocks", 8000)
	remote := dial(t, near, far, "blocks")
	var collected atomic.Int32
	func() {
		var b Batch
		var segments []*Segment
		for i := range 8 {
			mem := make([]byte, 1<<20)
			runtime.AddCleanup(&mem[0], func(int) { collected.Add(1) }, 0)
			s, err := near.Register("", mem, all)
			require.NoError(t, err)
			segments = append(segments, s)
			b.Write(remote, 1000*i, mem[:1000])
		}
		require.NoError(t, submit(t, near, &b).Wait(testContext(t)))
		for _, s := range segments {
			require.NoError(t, s.Close())
		}
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return collected.Load() >= 7
	}, time.Minute, 10*time.Millisecond)
}
