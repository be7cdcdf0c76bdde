package local

import "fmt"

// marks are points in time; a channel finds out whether the peer's process still existed after
// each. A device can have the address of a process that has just died, whose channel has not
// been seen to end yet. Paths that join the channel after that do not lead to that process.
type marks struct {
	last     uint32 // last mark given out
	asked    uint32 // mark that the peer was last asked about
	answered uint32 // mark that the peer has last answered
}

// Mark returns a mark of the present moment, for OutlivedBy, and asks the peer.
func (c *Channel) Mark() uint32 {
	c.marks.last++
	c.ask()
	return c.marks.last
}

// OutlivedBy reports whether the peer's process is known to have existed after a mark.
func (c *Channel) OutlivedBy(mark uint32) bool { return notAfter(mark, c.marks.answered) }

// ask asks the peer about the last mark. One question at a time is in flight, for all marks.
func (c *Channel) ask() {
	if c.loop != nil {
		return
	}
	if m := &c.marks; m.asked == m.answered && m.last != m.asked && c.link.ping(m.last) {
		m.asked = m.last
	}
}

func (c *Channel) answer(mark uint32) error {
	m := &c.marks
	if mark != m.asked || m.asked == m.answered {
		return fmt.Errorf("an answer to nothing: %w", ErrDisorder)
	}
	m.answered = mark
	c.ask()
	return nil
}

// notAfter compares marks, which wrap.
func notAfter(a, b uint32) bool { return int32(b-a) >= 0 }
