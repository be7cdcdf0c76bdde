package rdma

import (
	"time"

	"github.com/verbena-rdma/verbena/rdma/internal/life"
)

const (
	// keepaliveChecks is how often a connection is checked within Config.Keepalive. So silence
	// is noticed after at most 1.5 × Keepalive.
	keepaliveChecks = 2
	// keepaliveSlots is how many different times of checks there are between two checks of one
	// connection. The timer fires no more often, even for many connections.
	keepaliveSlots = 32
)

// startKeepalive sets the time of the connection's next check.
func (conn *Connection) startKeepalive(now time.Time) {
	d := conn.ctx.set.Keepalive
	if d < 0 || conn.loopback() {
		conn.deadline.Set(time.Time{})
		return
	}
	d /= keepaliveChecks
	slot := max(d/keepaliveSlots, 1)
	base := conn.ctx.started
	conn.deadline.Set(base.Add((now.Sub(base)+d)/slot*slot + slot))
}

// keepalive posts a write that fails if the peer is gone, unless the peer has given a sign of
// life. Requests at the device serve as well: the device repeats them until it gives up.
func (conn *Connection) keepalive(now time.Time) {
	conn.startKeepalive(now)
	conn.establishment.handle(event{kind: wordWritten}) // devices without watches do not report it
	if conn.silentChecks++; conn.life.Peer() != life.Unknown || conn.life.Dead() {
		return
	}
	if conn.silentChecks >= keepaliveChecks && conn.lane.Posted() == 0 && conn.signal.purpose == signalNone {
		conn.silentChecks = 0
		conn.signal.post(signalKeepalive, 0)
	}
}
