package cm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
)

// busy is a queue pair with requests under way.
type busy struct {
	*network
	a, b     *host
	conn     *Conn // of A, which disconnects
	peer     *Conn // of B, whose requests are under way
	complete bool
}

func newBusy(t *testing.T) *busy {
	x := &busy{network: newNetwork(t, 1, faults{})}
	x.a = x.attach("A", "10.0.0.1:4791", Config{})
	x.b = x.attach("B", "10.0.0.2:4791", Config{Requests: func(qpn uint32) func() bool {
		require.Equal(t, x.b.qpOf[x.peer], qpn)
		return func() bool { return x.complete }
	}})
	x.a.answerAll()
	x.b.answerAll()
	x.b.listen(ListenParams{Service: testService})
	x.conn = x.a.connect(x.a.params(x.b))
	x.Pass(time.Second)
	x.peer = x.b.all[0].Conn
	x.tracing = true
	require.NoError(t, x.conn.Disconnect(DisconnectParams{PrivateData: []byte("why")}, x.Now))
	x.a.settle()
	x.Pass(40 * time.Millisecond) // before A repeats it
	require.Zero(t, x.dreps())
	require.Equal(t, StateDREQReceived, x.peer.State())
	require.Equal(t, "request, E", x.b.reports())
	return x
}

// dreps is how many times the DREQ was answered.
func (x *busy) dreps() (n int) {
	for _, line := range x.trace {
		if line == "B DREP" {
			n++
		}
	}
	return n
}

// requireEnd asserts that both ends have learned of the end, and that nothing is left.
func (x *busy) requireEnd() {
	require.Equal(x.t, "B DREP", x.trace[len(x.trace)-1])
	require.Equal(x.t, 1, x.dreps())
	require.Equal(x.t, "C, D disconnected", x.a.reports())
	x.run(time.Minute)
	x.a.requireEmpty()
	x.b.requireEmpty()
}

// A DREQ is answered when the requests are complete that were under way when it arrived, and at
// most half a second later.
func TestDREQWaitsForRequests(t *testing.T) {
	t.Parallel()
	for name, complete := range map[string]bool{"complete": true, "in time": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newBusy(t)
			x.complete = complete
			if !complete {
				x.Pass(maxHold - 50*time.Millisecond)
				require.Zero(t, x.dreps())
			}
			x.Pass(50 * time.Millisecond)
			require.Equal(t, "request, E, D disconnected by the peer", x.b.reports())
			require.Equal(t, zeroed("why", mad.DREQPrivateLen), x.b.all[2].PrivateData)
			x.requireEnd()
		})
	}
}

// The end whose answer waits can end the connection at once.
func TestEndWhileDREQWaits(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Conn, time.Duration){
		"Disconnect": func(c *Conn, now time.Duration) {
			require.NoError(t, c.Disconnect(DisconnectParams{}, now))
		},
		"Close": (*Conn).Close,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newBusy(t)
			end(x.peer, x.Now)
			x.b.settle()
			x.Pass(time.Millisecond)
			want := "request, E"
			if name == "Disconnect" {
				want += ", D disconnected by the peer"
			}
			require.Equal(t, want, x.b.reports())
			x.requireEnd()
		})
	}
}

// A repeated DREQ changes nothing while the first one waits.
func TestDREQRepeatedWhileItWaits(t *testing.T) {
	t.Parallel()
	x := newBusy(t)
	dreq := mad.DREQ{TransactionID: 7, LocalCommID: x.conn.localID, RemoteCommID: x.peer.localID, RemoteQPN: x.peer.localQPN}
	var b [mad.Len]byte
	require.NoError(t, dreq.Encode(&b))
	before := x.b.Counters().DuplicateDREQ
	for range 1000 {
		x.b.Receive(b[:], x.b.pathTo(x.a), x.Now)
	}
	x.b.settle()
	require.Equal(t, before+1000, x.b.Counters().DuplicateDREQ)
	require.Zero(t, x.dreps())
	x.complete = true
	x.Pass(lastCheck + time.Millisecond)
	x.requireEnd()
}
