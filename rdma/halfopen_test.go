package rdma

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// halfOpen makes connections of the peer's to a server that never connects, until so many
// of them are active: they send the ready signal.
func (n *peersRig) halfOpen(active int) (conns []*Connection) {
	n.t.Helper()
	for found := 0; found < active; {
		conn, _, err := n.peer.Export()
		require.NoError(n.t, err)
		_, desc, err := n.server.Export()
		require.NoError(n.t, err)
		require.NoError(n.t, conn.Connect(desc))
		conn.finishTransition()
		if conn.establishment.(*rcSignal).active {
			found++
		}
		conns = append(conns, conn)
	}
	return conns
}

// finishTransition waits until no helper has the queue pair.
func (conn *Connection) finishTransition() {
	for conn.transition.running {
		conn.ctx.manager.work()
		if s := conn.ctx.host.Scheduler(); s != nil {
			s.Idle()
		} else {
			runtime.Gosched()
		}
	}
}

// deadlineRuns runs the deadlines of a half-open connection for as long as it would have them if
// all of that time had passed, and returns how often it was looked at, and how many signals it
// has sent.
func (n *peersRig) deadlineRuns(conn *Connection, until time.Duration) (visits, signals int) {
	n.t.Helper()
	signal := conn.establishment.(*rcSignal)
	began, sending := signal.started, false
	for conn.State() == Connecting && conn.deadline.At().Sub(began) <= until {
		if signal.posted && !sending {
			signals++
		}
		sending = signal.posted
		n.server.deadlines.work() // nothing of it is due
		conn.due(conn.deadline.At())
		conn.finishTransition()
		n.peer.Flush()
		visits++
	}
	return visits, signals
}

// If the device never gives up, unacknowledged ready signals become rarer, and each is
// withdrawn: an hour without a limit has only some of them, and with the default limit they
// end after a minute.
func TestReadySignalsBecomeRarer(t *testing.T) {
	for _, c := range []struct {
		cfg           Config
		until         time.Duration
		fewest, most  int // signals in all
		failsAtTheEnd bool
	}{
		{cfg: Config{AckTimeout: Forever}, until: time.Hour, fewest: 12, most: 30, failsAtTheEnd: true},
		{cfg: Config{ConnectTimeout: Forever, AckTimeout: Forever}, until: time.Hour, fewest: 700, most: 740}, // 4 s and 1 s
		{cfg: Config{ConnectTimeout: time.Second}, until: time.Hour, fewest: 1, most: 1, failsAtTheEnd: true},
	} {
		sim.Check(t, 2, func(s *sim.Sim) {
			n := newSimPeersRig(s, c.cfg)
			conns := n.halfOpen(1)
			conn := conns[len(conns)-1]
			visits, signals := n.deadlineRuns(conn, c.until)
			require.GreaterOrEqual(s, signals, c.fewest)
			require.LessOrEqual(s, signals, c.most)
			require.LessOrEqual(s, visits, 2*c.most+2, "each is sent once, and taken back once")
			if c.failsAtTheEnd {
				require.ErrorIs(s, conn.Err(), ErrTimeout)
			} else {
				require.Equal(s, Connecting, conn.State())
			}
		})
	}
}

// If a device does not report writes, the words of passive ends are polled, less often with
// time.
func TestPollsBecomeRarer(t *testing.T) { sim.Check(t, 2, testPollsBecomeRarer) }

func testPollsBecomeRarer(s *sim.Sim) {
	t := s.TB
	n := newSimPeersRig(s, Config{ConnectTimeout: Forever})
	var passive *Connection
	for passive == nil {
		conn, _, err := n.peer.Export()
		require.NoError(t, err)
		_, desc, err := n.server.Export()
		require.NoError(t, err)
		require.NoError(t, conn.Connect(desc))
		conn.finishTransition()
		if signal := conn.establishment.(*rcSignal); !signal.active {
			passive = conn
		}
	}
	signal := passive.establishment.(*rcSignal)
	require.True(t, passive.deadline.At().IsZero(), "nothing is to be done for it")
	signal.cancel()
	signal.cancel = nil
	signal.schedule(signal.started)
	visits, _ := n.deadlineRuns(passive, time.Hour)
	require.LessOrEqual(t, visits, 7200+1000, "every 500 ms in the end")
	require.GreaterOrEqual(t, visits, 7200)
}

// Passes of the engine handle half-open connections only when these have something to do. The
// number of times depends on the time that passes, not on the number of passes.
func TestHalfOpenConnectionsAreLeftAlone(t *testing.T) {
	sim.Check(t, 2, testHalfOpenConnectionsAreLeftAlone)
}

func testHalfOpenConnectionsAreLeftAlone(s *sim.Sim) {
	t := s.TB
	const active, writes = 50, 500
	n := newSimPeersRig(s, Config{ConnectTimeout: Forever, MaxConnections: 1000, Keepalive: None})
	_, busy, _ := n.connect()
	half := n.halfOpen(active)
	now := time.Now()
	for _, conn := range half {
		signal := conn.establishment.(*rcSignal)
		signal.started = now.Add(-time.Hour) // for as long as they have waited
		if signal.active {
			require.NoError(t, signal.withdraw(now))
			conn.finishTransition()
			signal.retryAt = now.Add(longestPause)
			signal.schedule(now)
		}
	}
	for range 2000 { // reports of connections
		must(n.engine.Progress())
	}
	task := must(n.writes.Write(busy, nil, nil))
	n.keep = true
	handled := 0
	for range writes {
		require.NoError(t, task.Submit())
		for task.InFlight() {
			handled += must(n.engine.Progress())
		}
	}
	// Each is sent, and taken back, within the least time that both take.
	rounds := int(time.Since(now)/(longestPause+longestSignal)) + 1
	require.NoError(t, task.Free())
	require.GreaterOrEqual(t, handled, writes)
	require.LessOrEqual(t, handled, writes+2*active*rounds)
}

// The peer is Ready, and the acknowledgement of the signal was lost: in the pauses between
// signals the end that waits can take what the peer sends.
func TestQueuePairIsUpBetweenSignals(t *testing.T) { sim.Check(t, 2, testQueuePairIsUpBetweenSignals) }

func testQueuePairIsUpBetweenSignals(s *sim.Sim) {
	t := s.TB
	n := newSimPeersRig(s, Config{ConnectTimeout: Forever, AckTimeout: Forever})
	conns := n.halfOpen(1)
	conn := conns[len(conns)-1]
	signal := conn.establishment.(*rcSignal)
	for signal.posted {
		conn.due(conn.deadline.At())
		conn.finishTransition()
	}
	require.Equal(t, verbs.QPReadyToSend, must(conn.QP().Query()).State)

	// The peer has the signal that was taken back: what comes next in its place is a
	// repetition to it, and must be the signal again.
	require.Equal(t, signalNone, conn.signal.purpose)
	signal.handle(event{kind: messageReceived})
	require.Equal(t, Ready, conn.State())
	require.Equal(t, signalReady, conn.signal.purpose)
}

// A connection is Ready when its own queue pair can send: the peer's signal waits for that.
func TestSignalWaitsForTheQueuePair(t *testing.T) { sim.Check(t, 2, testSignalWaitsForTheQueuePair) }

func testSignalWaitsForTheQueuePair(s *sim.Sim) {
	t := s.TB
	n := newSimPeersRig(s, Config{ConnectTimeout: Forever, AckTimeout: Forever})
	conns := n.halfOpen(1)
	conn := conns[len(conns)-1]
	signal := conn.establishment.(*rcSignal)
	require.NoError(t, conn.reset())

	binary.BigEndian.PutUint64(conn.ctx.readyWords.Bytes(conn.slot, wordSize), conn.local.nonce)
	signal.handle(event{kind: wordWritten})
	require.Equal(t, Connecting, conn.State())
	require.NoError(t, signal.withdraw(time.Now())) // brings the queue pair up
	conn.finishTransition()
	require.Equal(t, Ready, conn.State())
}

// A disconnect notice in place of a withdrawn signal would be a repetition to a peer that has the
// signal.
func TestDisconnectAfterAWithdrawnSignal(t *testing.T) {
	sim.Check(t, 2, testDisconnectAfterAWithdrawnSignal)
}

func testDisconnectAfterAWithdrawnSignal(s *sim.Sim) {
	t := s.TB
	n := newSimPeersRig(s, Config{ConnectTimeout: Forever, AckTimeout: Forever})
	conns := n.halfOpen(1)
	conn := conns[len(conns)-1]
	for conn.establishment.(*rcSignal).posted {
		conn.due(conn.deadline.At())
		conn.finishTransition()
	}
	require.NoError(t, conn.Close())
	require.Equal(t, signalReady, conn.signal.purpose)
	require.Equal(t, life.Telling, conn.life.Phase(), "the notice follows")
}
