package roce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// replyPair is a pair of queue pairs whose programs reply to each message at once.
type replyPair struct {
	t    *testing.T
	x, y *side
}

// newReplyPair connects two devices by UDP that know each other's source port.
func newReplyPair(t *testing.T, a, b Config) replyPair {
	a.DisableLocal, b.DisableLocal = true, true
	x, y := openSide(t, a, 64), openSide(t, b, 64)
	x.path.SourceUDPPort, y.path.SourceUDPPort = y.source().Port(), x.source().Port()
	x.connect(y)
	y.connect(x)
	return replyPair{t, x, y}
}

// ack returns the state of a side's acknowledgement.
func (s *side) ack() delayedAck {
	q := s.qp.(*queuePair)
	defer q.lock().mu.Unlock()
	return q.ack
}

// repliedAtOnce sets the state of a side that has recently replied at once, which a busy
// machine may prevent.
func (s *side) repliedAtOnce() {
	q := s.qp.(*queuePair)
	l := q.lock()
	defer l.mu.Unlock()
	q.ack.pending, q.ack.arrived.sleeps, q.ack.replies = false, l.mu.attendance.sleeps, q.ack.threshold
}

func (c replyPair) send(from, to *side) {
	c.t.Helper()
	_, err := to.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{to.sge(0, 8)}}})
	require.NoError(c.t, err)
	from.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{from.sge(8, 8)}})
}

// await waits for n completions.
func (c replyPair) await(s *side, n int) []verbs.WC {
	c.t.Helper()
	wcs := s.wait(n)
	for _, wc := range wcs {
		require.Equal(c.t, verbs.StatusSuccess, wc.Status)
	}
	return wcs
}

// exchange sends a message, and the reply to it.
func (c replyPair) exchange() {
	c.t.Helper()
	c.send(c.x, c.y)
	c.await(c.y, 1)
	c.send(c.y, c.x)
	c.await(c.x, 2)
	c.await(c.y, 1)
}

// delay sends messages until y has one whose acknowledgement waits.
func (c replyPair) delay() {
	c.t.Helper()
	if c.y.dev.endpoints[0].socket.Features().MaxSegments == 1 {
		c.t.Skip("the system sends no trains of packets")
	}
	for begin := time.Now(); ; {
		c.y.repliedAtOnce()
		c.send(c.x, c.y)
		c.await(c.y, 1)
		if c.y.ack().waiting {
			return
		}
		c.await(c.x, 1)
		require.Less(c.t, time.Since(begin), 5*time.Minute, "no acknowledgement waits")
	}
}

// The acknowledgement of a message waits for the reply of a program that has recently replied
// at once. It is sent without a reply if the program polls again, sleeps, or closes the queue
// pair.
func TestDelayedAck(t *testing.T) {
	arm := func(t *testing.T, s *side) {
		for { // it is not armed while something is in it
			armed, err := s.cq.Arm(false)
			require.NoError(t, err)
			if armed {
				return
			}
			_, err = s.cq.Poll(s.wcs)
			require.NoError(t, err)
		}
	}
	for name, instead := range map[string]func(*testing.T, *side){
		"does something else": func(*testing.T, *side) {},
		"polls": func(t *testing.T, s *side) {
			_, err := s.cq.Poll(s.wcs)
			require.NoError(t, err)
			require.False(t, s.ack().waiting)
		},
		"sleeps": func(t *testing.T, s *side) {
			arm(t, s)
			require.False(t, s.ack().waiting)
		},
		"closes the queue pair": func(t *testing.T, s *side) { require.NoError(t, s.qp.Close()) },
		"resets the queue pair": func(t *testing.T, s *side) {
			require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newReplyPair(t, Config{}, Config{})
			c.delay()
			instead(t, c.y)
			c.await(c.x, 1)
		})
	}
	t.Run("replies", func(t *testing.T) {
		c := newReplyPair(t, Config{}, Config{})
		for range 10 {
			c.delay()
			c.send(c.y, c.x)
			require.False(t, c.y.ack().waiting)
			wcs := c.await(c.x, 2)
			require.Equal(t, verbs.WCSend, wcs[0].Opcode, "the request completes before the reply to it")
			require.Equal(t, verbs.WCRecv, wcs[1].Opcode)
			c.await(c.y, 1)
		}
	})
	t.Run("replies no longer", func(t *testing.T) {
		c := newReplyPair(t, Config{}, Config{})
		c.delay()
		before := c.y.ack().threshold
		c.await(c.x, 1)
		require.Equal(t, min(2*before, maxThreshold), c.y.ack().threshold)
		c.send(c.x, c.y)
		c.await(c.y, 1)
		require.False(t, c.y.ack().waiting, "it has not replied the last time")
		c.await(c.x, 1)
	})
	t.Run("is about to sleep", func(t *testing.T) {
		c := newReplyPair(t, Config{}, Config{})
		c.delay()
		c.send(c.y, c.x)
		c.await(c.x, 2)
		c.await(c.y, 1)
		arm(t, c.y)
		c.x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{c.x.sge(0, 8)}, RemoteAddr: c.y.mr.Addr(), RKey: c.y.mr.RKey()})
		_, err := c.y.cq.Poll(c.y.wcs) // as one does before it sleeps
		require.NoError(t, err)
		require.False(t, c.y.ack().waiting)
		c.await(c.x, 1)
	})
}

// A delayed acknowledgement is sent in time, even if the deadline of an earlier one passes in
// the same round.
func TestDelayedAckHasADeadline(t *testing.T) {
	c := newReplyPair(t, Config{}, Config{})
	for range 5 {
		c.delay()
		c.send(c.y, c.x)
		c.await(c.x, 2)
		c.send(c.x, c.y)
		time.Sleep(maxAckDelay + maxAckDelay/10)
		for n := 0; n == 0; {
			var err error
			n, err = c.y.cq.Poll(c.y.wcs)
			require.NoError(t, err)
		}
		s := c.y.shard()
		s.mu.Lock()
		waits, deadline, now := c.y.qp.(*queuePair).ack.waiting, s.mu.deadline, s.device.now()
		s.mu.Unlock()
		if waits {
			require.LessOrEqual(t, deadline, now+maxAckDelay)
			require.NotZero(t, deadline)
		}
		c.await(c.x, 1)
		for range 4 { // what else is there
			_, err := c.y.cq.Poll(c.y.wcs)
			require.NoError(t, err)
		}
	}
}

// Both ends delay their acknowledgements.
func TestDelayedAcksOfBothEnds(t *testing.T) {
	c := newReplyPair(t, Config{}, Config{})
	for begin := time.Now(); ; {
		c.delay()
		c.x.repliedAtOnce()
		c.send(c.y, c.x)
		c.await(c.x, 2)
		if c.x.ack().waiting {
			break
		}
		c.await(c.y, 1)
		require.Less(t, time.Since(begin), 5*time.Minute, "the other end's never waits")
	}
	c.await(c.y, 1)
}

// Acknowledgements are not delayed if that gains nothing, or if the peer may be another
// implementation.
func TestNoDelayedAck(t *testing.T) {
	t.Run("every packet by itself", func(t *testing.T) {
		c := newReplyPair(t, Config{}, Config{DisableSegmentation: true})
		for range 2 * minThreshold {
			c.exchange()
		}
		c.send(c.x, c.y)
		c.await(c.y, 1)
		require.False(c.t, c.y.ack().waiting)
		c.await(c.x, 1)
	})
	t.Run("congestion is controlled", func(t *testing.T) {
		c := newReplyPair(t, Config{}, Config{CongestionControl: true})
		require.NotNil(t, c.x.ack().endpoint)
		require.Nil(t, c.y.ack().endpoint)
	})
	t.Run("peer whose port is not known", func(t *testing.T) {
		x, y := openPair(t, Config{DisableLocal: true}, Config{DisableLocal: true}, 64)
		if x.source().Port() < admission.FirstSendPort {
			t.Skip("another process has the port of RoCEv2, so that x has a port that names its own")
		}
		q := y.qp.(*queuePair)
		require.False(t, q.mayDelayAck())
		c := replyPair{t, x, y}
		c.exchange()
		defer q.lock().mu.Unlock()
		require.True(t, q.mayDelayAck() || y.dev.endpoints[0].socket.Features().MaxSegments == 1, "it was learned, and is one of a device like this one")
	})
}

// repliedSoon sets the state of a side that has recently replied soon after it was woken.
func (s *side) repliedSoon() {
	q := s.qp.(*queuePair)
	l := q.lock()
	defer l.mu.Unlock()
	q.ack.pending, q.ack.replies, q.ack.soon = false, 0, q.ack.threshold
}

// sleep arms the completion queue of a side, which is empty.
func (s *side) sleep() {
	s.t.Helper()
	armed, err := s.cq.Arm(false)
	require.NoError(s.t, err)
	require.True(s.t, armed)
}

// delayForSleeper sends messages until y, which sleeps, has one whose acknowledgement waits.
func (c replyPair) delayForSleeper() {
	c.t.Helper()
	woken := make(chan struct{}, 1)
	c.y.cq.OnCompletion(func() { woken <- struct{}{} })
	for begin := time.Now(); ; {
		c.y.sleep()
		c.y.repliedSoon()
		c.send(c.x, c.y)
		<-woken
		waits := c.y.ack().waiting
		c.await(c.y, 1)
		if waits {
			return
		}
		c.await(c.x, 1)
		require.Less(c.t, time.Since(begin), 5*time.Minute, "no acknowledgement waits")
	}
}

// The acknowledgement of a message to a program that sleeps waits for its reply, if it has
// recently replied soon. Polls do not send it. It is sent without a reply if time passes, if the
// peer sends more, or if the program closes the queue pair.
func TestDelayedAckOfAProgramThatSleeps(t *testing.T) {
	pairs := map[string]func(t *testing.T) replyPair{
		"UDP": func(t *testing.T) replyPair {
			c := newReplyPair(t, Config{}, Config{})
			if c.y.dev.endpoints[0].socket.Features().MaxSegments == 1 {
				t.Skip("the system sends no trains of packets")
			}
			return c
		},
		"shared memory": func(t *testing.T) replyPair {
			x, y := openPair(t, Config{}, Config{}, 64)
			if !x.dev.main.mu.local.On() {
				t.Skip("no shared memory here")
			}
			awaitSharedMemory(x, y)
			return replyPair{t, x, y}
		},
	}
	for path, open := range pairs {
		for name, instead := range map[string]func(replyPair){
			"nothing": func(replyPair) {},
			"sleeps":  func(c replyPair) { c.y.sleep() },
			"more": func(c replyPair) {
				c.send(c.x, c.y)
				c.await(c.y, 1)
				require.False(c.t, c.y.ack().waiting)
			},
			"closes the queue pair": func(c replyPair) { require.NoError(c.t, c.y.qp.Close()) },
		} {
			t.Run(path+"/"+name, func(t *testing.T) {
				c := open(t)
				c.delayForSleeper()
				instead(c)
				sent := 1
				if name == "more" {
					sent = 2
				}
				c.await(c.x, sent)
				if name == "nothing" || name == "sleeps" {
					require.GreaterOrEqual(t, c.y.ack().threshold, 2*minThreshold)
					require.Zero(t, c.y.ack().soon)
				}
			})
		}
		t.Run(path+"/replies", func(t *testing.T) {
			c := open(t)
			for range 10 {
				c.delayForSleeper()
				_, err := c.y.cq.Poll(c.y.wcs) // a poll without a reply is no reason
				require.NoError(t, err)
				c.send(c.y, c.x)
				require.False(t, c.y.ack().waiting)
				wcs := c.await(c.x, 2)
				require.Equal(t, verbs.WCSend, wcs[0].Opcode, "the request completes before the reply to it")
				require.Equal(t, verbs.WCRecv, wcs[1].Opcode)
				c.await(c.y, 1)
			}
		})
	}
	// Otherwise two ends that send at the same time would wait for each other.
	t.Run("with requests of its own", func(t *testing.T) {
		c := pairs["UDP"](t)
		require.NoError(t, c.x.dev.SetFaults(faults.Faults{Loss: 1}))
		c.y.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{c.y.sge(0, 8)}, RemoteAddr: c.x.mr.Addr(), RKey: c.x.mr.RKey()})
		for range 3 {
			c.y.repliedSoon()
			c.send(c.x, c.y)
			c.await(c.y, 1)
			require.False(t, c.y.ack().waiting)
		}
		require.NoError(t, c.x.dev.SetFaults(faults.Faults{}))
		c.await(c.x, 3)
		c.await(c.y, 1)
	})
}

// A positive acknowledgement for the same queue pair that follows a message is handled before
// it. A NAK is not, since it would end the connection before the message is received.
func TestAcknowledgementFollows(t *testing.T) {
	packet := func(o wire.Opcode, syndrome wire.Syndrome) link.Datagram {
		b := make([]byte, o.HeaderLen()+wire.ICRCLen)
		p := wire.Packet{Opcode: o, DestQP: 7, AETH: wire.AETH{Syndrome: syndrome}}
		p.PutHeaders(b)
		return link.Datagram{Data: b}
	}
	message, ack := packet(wire.RCSendOnly, 0), packet(wire.RCAcknowledge, wire.Ack(wire.AckUnlimited))
	require.True(t, acknowledgementFollows([]link.Datagram{message, ack}))
	require.False(t, acknowledgementFollows([]link.Datagram{ack, message}))
	for _, syndrome := range []wire.Syndrome{wire.Nak(wire.NakRemoteAccess), wire.RNRNak(1)} {
		require.False(t, acknowledgementFollows([]link.Datagram{message, packet(wire.RCAcknowledge, syndrome)}))
	}
	ack.Src = netip.MustParseAddrPort("127.0.0.1:61000")
	require.False(t, acknowledgementFollows([]link.Datagram{message, ack}), "from somebody else")
}
