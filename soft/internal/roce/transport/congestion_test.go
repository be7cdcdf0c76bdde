package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The share of a link that each sender to one receiver gets, by how the link signals
// congestion.
func TestSendersShareALink(t *testing.T) {
	t.Parallel()
	marking := gigabit
	marking.Mark = packets(20)
	shallow := gigabit // its queue is full before a round trip shows it
	shallow.Queue, shallow.Rate = packets(60), 1_250_000_000
	for name, l := range map[string]fabric.LinkConfig{"delay": gigabit, "marks": marking, "losses": shallow} {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpSend} {
			for _, n := range []int{1, 2, 16, 64} {
				if name == "losses" && op == verbs.OpRead && n == 64 {
					continue // some of them wait for time-outs again and again
				}
				if testing.Short() && op == verbs.OpSend && n > 2 {
					continue // the packets are as long as those of writes
				}
				t.Run(fmt.Sprintf("%s/%v/%d", name, op, n), func(t *testing.T) {
					t.Parallel()
					b := newBottleneck(t, l)
					for range n {
						b.connect(op, 32<<10, 1024, true).warmUp()
					}
					for _, c := range b.conns {
						c.start()
					}
					least, fair, d := 0.8, 0.9, 500*time.Millisecond
					if name == "losses" { // each costs a window
						least, fair, d = 0.7, 0.7, 50*time.Millisecond
					}
					if name == "delay" && op == verbs.OpRead && n == 64 {
						fair = 0.8 // some of them lose packets at time-outs alone
					}
					if testing.Short() && name != "losses" {
						switch {
						case n < 64:
							d /= 5
						case op != verbs.OpRead:
							d /= 2 // so many take longer to find their rates
						}
					}
					b.Pass(d) // to find the rate
					shares := b.shares(d)
					t.Log(b.describe(shares))
					assert.GreaterOrEqual(t, b.used(shares), least)
					assert.GreaterOrEqual(t, fairness(shares), fair)
				})
			}
		}
	}
}

// Many senders begin at the same moment, before they know anything of the path, and lose
// nearly all of their first packets. None of them is left behind.
func TestSendersBeginAtOnce(t *testing.T) {
	t.Parallel()
	const packet = 4096 + headerLen
	b := newBottleneck(t, fabric.LinkConfig{Rate: 625_000_000, Queue: 160 * packet, Mark: 32 * packet, Latency: 4 * time.Microsecond})
	for range 128 {
		b.connect(verbs.OpWrite, 64<<10, 4096, true)
	}
	for _, c := range b.conns {
		c.start()
	}
	b.Pass(900 * time.Millisecond)
	shares := b.shares(300 * time.Millisecond)
	t.Log(b.describe(shares))
	starved := 0
	for _, share := range shares {
		if share == 0 {
			starved++
		}
	}
	assert.Zero(t, starved, "senders that complete nothing")
	assert.GreaterOrEqual(t, fairness(shares), 0.8)
}

// More senders than packets fit into the queue of a fast switch, whose marks are all that slows
// them: the round trip stays below the target.
func TestSendersShareAFastLink(t *testing.T) {
	t.Parallel()
	b := newBottleneck(t, fabric.LinkConfig{Rate: 3_125_000_000, Queue: 512 << 10, Mark: 128 << 10, Latency: 4 * time.Microsecond})
	for range 256 {
		b.connect(verbs.OpWrite, 64<<10, 4096, true).start()
	}
	b.Pass(200 * time.Millisecond)
	shares := b.shares(100 * time.Millisecond)
	t.Log(b.describe(shares))
	assert.GreaterOrEqual(t, b.used(shares), 0.9)
	assert.GreaterOrEqual(t, fairness(shares), 0.9)
}

// Senders start and stop.
func TestSendersJoinAndLeave(t *testing.T) {
	t.Parallel()
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		t.Run(op.String(), func(t *testing.T) {
			t.Parallel()
			b := newBottleneck(t, gigabit)
			for range 4 {
				b.connect(op, 32<<10, 1024, true).start()
			}
			d := 500 * time.Millisecond
			if testing.Short() {
				d /= 4
			}
			b.Pass(d)
			for range 4 {
				b.connect(op, 32<<10, 1024, true).start()
			}
			b.Pass(d)
			shares := b.shares(d)
			t.Log(b.describe(shares))
			assert.GreaterOrEqual(t, fairness(shares), 0.8, "with those that have joined")
			for _, c := range b.conns[2:] {
				c.stopped = true
			}
			b.Pass(d)
			shares = b.shares(d)
			assert.GreaterOrEqual(t, b.used(shares), 0.8, "those that stay take the rest")
			assert.GreaterOrEqual(t, fairness(shares[:2]), 0.8)
		})
	}
}

// Congestion marks that are unrelated to the load reduce the rate, but end no connection.
func TestRandomMarks(t *testing.T) {
	t.Parallel()
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		for _, p := range []float64{0.01, 0.5, 1} {
			t.Run(fmt.Sprintf("%v/%v", op, p), func(t *testing.T) {
				t.Parallel()
				l := gigabit
				l.RandomMark = p
				b := newBottleneck(t, l)
				for range 4 {
					b.connect(op, 32<<10, 1024, true).start()
				}
				d := time.Second
				if testing.Short() {
					d /= 5
				}
				b.Pass(d)
				for _, share := range b.shares(d) {
					assert.Greater(t, share, 100e3, "bytes a second")
				}
			})
		}
	}
}

// Losses that are unrelated to the load leave the window as large as without congestion
// control.
func TestRandomLosses(t *testing.T) {
	t.Parallel()
	d := time.Second
	if testing.Short() {
		d /= 5
	}
	rate := func(controlled bool) float64 {
		l := gigabit
		l.Loss = 0.05
		l.Rate *= 100
		b := newBottleneck(t, l)
		b.connect(verbs.OpWrite, 32<<10, 1024, controlled).start()
		b.Pass(100 * time.Millisecond)
		return sum(b.shares(d))
	}
	with, without := rate(true), rate(false)
	t.Logf("%.0f MB/s, %.0f MB/s without", with/1e6, without/1e6)
	assert.Greater(t, with, without/2)
}

// During a flood of notifications a connection keeps a minimum rate, and afterwards it gets
// the whole link again.
func TestFloodOfNotifications(t *testing.T) {
	t.Parallel()
	b := newBottleneck(t, gigabit)
	c := b.connect(verbs.OpWrite, 32<<10, 1024, true)
	c.start()
	before, notifications := c.bytes, 100_000
	if testing.Short() {
		notifications /= 5
	}
	for range notifications {
		c.client.receive(&wire.Packet{Opcode: wire.CNP, PKey: wire.DefaultPKey, BECN: true, DestQP: c.client.qp.Num()}, b.Now)
		b.Pass(10 * time.Microsecond)
	}
	assert.Greater(t, c.bytes-before, notifications, "bytes, 100 kB a second")
	assert.NotZero(t, c.client.counters.NotificationsHandled)
	assert.NotZero(t, c.client.counters.NotificationsIgnored)
	recovery := time.Duration(notifications) * 10 * time.Microsecond // as long as the flood
	b.Pass(recovery)
	shares := b.shares(recovery)
	t.Log(b.describe(shares))
	assert.GreaterOrEqual(t, b.used(shares), 0.8, "after the flood")
}

// A receiver of marked packets sends a CNP, at most one in 50 µs.
func TestNotifications(t *testing.T) {
	t.Parallel()
	for _, kind := range []verbs.QPType{verbs.RC, verbs.UC} {
		r := newRig(t, options{kind: kind})
		r.server.qp.SetCongestionControl(true)
		r.client.qp.SetCongestionControl(true)
		notifications := func() (n int) {
			for _, p := range r.server.transmit(r.now) {
				if p.Opcode == wire.CNP {
					require.Equal(t, uint32(clientQPN), p.DestQP)
					require.True(t, p.BECN)
					n++
				}
			}
			return n
		}
		r.client.post(r.wr(1, verbs.OpWrite, 20*256))
		data := r.client.transmit(r.now)
		require.Len(t, data, 20)
		for i := range data {
			r.server.qp.Marked(&data[i], r.now)
			r.server.take(r.now, data[i])
		}
		assert.Equal(t, 1, notifications())
		r.server.qp.Marked(&data[0], r.now)
		assert.Zero(t, notifications(), "too early")
		r.now += notificationInterval
		assert.Zero(t, notifications())
		r.server.qp.Marked(&data[0], r.now)
		assert.Equal(t, 1, notifications())
		r.server.qp.Marked(&wire.Packet{Opcode: wire.RCAcknowledge}, r.now+time.Second)
		assert.Zero(t, notifications(), "nothing but data fills queues")
		assert.Equal(t, uint64(22), r.server.counters.MarkedPackets)
		assert.Equal(t, uint64(2), r.server.counters.NotificationsSent)
	}
}

// A notification changes nothing if the queue pair sends nothing or has no congestion control.
func TestNotificationsIgnored(t *testing.T) {
	t.Parallel()
	for _, controlled := range []bool{false, true} {
		r := newRig(t, options{})
		r.client.qp.SetCongestionControl(controlled)
		before := r.client.qp.congestionWindow
		r.client.take(r.now, wire.Packet{Opcode: wire.CNP, BECN: true, DestQP: clientQPN})
		assert.Equal(t, before, r.client.qp.congestionWindow)
		assert.Equal(t, uint64(1), r.client.counters.NotificationsIgnored)
		assert.Zero(t, r.client.counters.NotificationsHandled)
		assert.Empty(t, r.client.transmit(r.now))
	}
}

// The BECN bit has the effect of a CNP.
func TestBackwardNotification(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.qp.SetCongestionControl(true)
	r.client.post(r.wr(1, verbs.OpWrite, 40*256))
	before := r.client.qp.congestionWindow
	r.server.take(r.now, r.client.transmit(r.now)...)
	back := r.server.transmit(r.now)
	require.NotEmpty(t, back)
	back[0].BECN = true
	r.client.take(r.now, back[0])
	assert.Less(t, r.client.qp.congestionWindow, before)
	assert.Equal(t, uint64(1), r.client.counters.NotificationsHandled)
}

// An unreliable connection slows down for notifications, and recovers.
func TestUnreliableConnectionObeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{kind: verbs.UC, mtu: 1024, depth: 4096, arena: 64 << 10})
	r.client.qp.SetCongestionControl(true)
	send := func(d time.Duration) (packets int) {
		for end := r.now + d; r.now < end; r.now += 50 * time.Microsecond {
			for r.client.qp.sq.Len() < 8 {
				r.client.post(r.wr(1, verbs.OpWrite, 64<<10))
			}
			if at := r.client.qp.Deadline(); at != 0 && at <= r.now {
				r.client.qp.Timeout(r.now)
			}
			packets += len(r.client.transmit(r.now))
			r.client.send.take()
		}
		return packets
	}
	free := send(20 * time.Millisecond)
	for range 20 {
		r.client.take(r.now, wire.Packet{Opcode: wire.CNP, BECN: true, DestQP: clientQPN})
		send(100 * time.Microsecond)
	}
	slow := send(5 * time.Millisecond)
	assert.Less(t, 4*slow, free/4, "a quarter of the rate at most")
	assert.NotZero(t, slow)
	send(time.Second)
	assert.GreaterOrEqual(t, send(20*time.Millisecond), free*9/10, "it has recovered")
}

// After a change to a path that is not shared, such as shared memory, it does not count as
// congested.
func TestControlEndsWithThePath(t *testing.T) {
	t.Parallel()
	b := newBottleneck(t, gigabit)
	c := b.connect(verbs.OpWrite, 32<<10, 1024, true)
	c.start()
	for range 200 {
		c.client.receive(&wire.Packet{Opcode: wire.CNP, BECN: true, DestQP: c.client.qp.Num()}, b.Now)
		b.Pass(100 * time.Microsecond)
	}
	require.Less(t, c.client.qp.congestionWindow, 8)
	c.client.qp.SetCongestionControl(false)
	c.server.qp.SetCongestionControl(false)
	assert.Zero(t, c.client.qp.spacing)
	c.client.pump()
	assert.Greater(t, b.used(b.shares(time.Second)), 0.5)
}
