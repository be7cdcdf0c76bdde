package rdma

import "time"

// For tests: the words of failures that come after minutes, and what a peer brings about that
// has lost track of its connections.
var (
	NoResponseAdvice = (*Connection).noResponseAdvice
	TimeoutError     = func(conn *Connection) error { return conn.timeoutError(time.Second) }
	ReplaceQP        = (*Connection).replaceQP
)

// PeersKnown is how many peers the context has.
func (c *Datagrams) PeersKnown() int { return len(c.peers) }

// SetDrainTimeout limits how long a device may take to give back requests of what has ended.
func (c *parts) SetDrainTimeout(d time.Duration) { c.lanes.Limit(d, c.wake) }
