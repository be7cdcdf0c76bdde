package local

import "fmt"

// liveness finds out whether the peer's process still existed after a mark, which is a point in
// time. A device can have the address of a process that has just died, whose channel has not
// been seen to end yet. Paths that join the channel after that do not lead to that process.
type liveness struct {
	last     uint32 // last mark given out
	pinged   uint32 // mark of the last ping
	answered uint32 // mark of the last pong
}

// Mark returns a mark of the present moment, for AliveAfter, and pings the peer.
func (c *Channel) Mark() uint32 {
	c.liveness.last++
	c.sendPing()
	return c.liveness.last
}

// AliveAfter reports whether the peer's process is known to have existed after a mark.
func (c *Channel) AliveAfter(mark uint32) bool { return notAfter(mark, c.liveness.answered) }

// sendPing sends the last mark to the peer. One ping at a time is in flight, for all marks.
func (c *Channel) sendPing() {
	if c.loop != nil {
		return
	}
	if m := &c.liveness; m.pinged == m.answered && m.last != m.pinged && c.link.ping(m.last) {
		m.pinged = m.last
	}
}

func (c *Channel) handlePong(mark uint32) error {
	m := &c.liveness
	if mark != m.pinged || m.pinged == m.answered {
		return fmt.Errorf("unexpected ping reply: %w", ErrCorrupt)
	}
	m.answered = mark
	c.sendPing()
	return nil
}

// notAfter compares marks, which wrap.
func notAfter(a, b uint32) bool { return int32(b-a) >= 0 }
