package capture

import (
	"fmt"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// silence is how long a request waits before it counts as unanswered, if it was not repeated.
const silence = time.Second

// end sets the outcome and the diagnosis. last is the time of the last packet of the capture.
func (c *connection) end(last int64) {
	unanswered := -1
	for i := range c.half {
		h := &c.half[i]
		waiting := h.requests.begun && (!h.acking || wire.PSNDiff(h.requests.next, h.acked) > 0) && c.service == wire.ServiceRC
		over := c.closedBy == c.Ends[1-i].Addr && c.closedBy != c.Ends[i].Addr // the peer has told
		if waiting && !over && (h.timeOuts > 0 || c.Sent[1-i].Packets > 0 && time.Duration(last-h.lastSent) > silence) {
			unanswered = i
		}
	}
	switch {
	case c.refused != "":
		c.Outcome = fmt.Sprintf("refused by %v: NAK, %s", c.Ends[c.refusedBy].Addr, c.refused)
	case c.rejected:
		c.Outcome = c.closed
	case unanswered >= 0:
		c.Outcome = fmt.Sprintf("no answer from %v", c.Ends[1-unanswered].Addr)
	case c.requestUnanswered():
		c.Outcome = fmt.Sprintf("no answer from %v to the request for a connection", c.Ends[1].Addr)
	case c.closed != "":
		c.Outcome = c.closed
	default:
		c.Outcome = "open"
	}
	c.Diagnosis = c.diagnose(unanswered)
}

// requestUnanswered reports whether all that the capture has is a request for a connection.
func (c *connection) requestUnanswered() bool {
	return len(c.Events) > 0 && !c.answered && c.Sent[0].Packets+c.Sent[1].Packets == 0
}

// diagnose names the worst that went wrong.
func (c *connection) diagnose(unanswered int) string {
	if c.refused != "" {
		by, at := c.Ends[c.refusedBy].Addr, c.Ends[1-c.refusedBy].Addr
		switch c.refused {
		case wire.NakRemoteAccess.String():
			return fmt.Sprintf("%v refused a request of %v: its remote key is wrong, the address is outside of the memory, or the memory does not permit the operation.", by, at)
		case wire.NakInvalidRequest.String():
			return fmt.Sprintf("%v refused a request of %v as invalid: a message longer than the receive, an operation that the queue pair does not permit, or more reads than it accepts.", by, at)
		}
		return fmt.Sprintf("%v could not execute a request of %v: look for an error of its queue pair there, such as a receive whose memory is closed.", by, at)
	}
	switch {
	case c.rejected && strings.Contains(c.Outcome, "service"):
		return fmt.Sprintf("Packets get through, but no program listens on port %d of %v: start it, or check the port.", c.Port, c.Ends[1].Addr)
	case c.rejected:
		return fmt.Sprintf("Packets get through, but the connection was %s.", c.closed)
	case c.requestUnanswered():
		return fmt.Sprintf("%v sent %d requests for a connection, and no answer was recorded: the host is down, has no RoCE device at this address, or a firewall drops UDP port 4791.", c.Ends[0].Addr, c.Events[0].Times)
	case unanswered >= 0:
		h, peer := &c.half[unanswered], c.Ends[1-unanswered].Addr
		s := fmt.Sprintf("%v got no answer any more from %v", c.Ends[unanswered].Addr, peer)
		if h.full && !h.fullAcked && h.acking {
			return s + fmt.Sprintf(" to packets of the path MTU, %d bytes, while shorter ones were answered: a link on the path has a smaller MTU.", c.MTU)
		}
		return s + ": its program ended, or the path broke."
	}
	for _, f := range []func(from, to End, d, back *Direction) string{damaged, notReady, lost, congested, disordered, repeated} {
		for i := range c.Sent {
			if s := f(c.Ends[i], c.Ends[1-i], &c.Sent[i], &c.Sent[1-i]); s != "" {
				return s
			}
		}
	}
	return ""
}

func damaged(from, to End, d, _ *Direction) string {
	if d.ICRCErrors == 0 {
		return ""
	}
	return fmt.Sprintf("%d packets from %v to %v were changed on the way (wrong ICRC): look for a bad cable, a middlebox, or address translation.", d.ICRCErrors, from.Addr, to.Addr)
}

func notReady(from, to End, _, back *Direction) string {
	if back.RNRNAKs == 0 {
		return ""
	}
	return fmt.Sprintf("%v was not ready %d times (RNR): its program posts receives too late, or too few for the sends of %v.", to.Addr, back.RNRNAKs, from.Addr)
}

func lost(from, to End, d, _ *Direction) string {
	r := &d.Repeats
	n := d.LostBefore + d.LostAfter
	switch {
	case n > 0:
		where := "before the place of the capture"
		if d.LostAfter > 0 && d.LostBefore > 0 {
			where = "on both sides of the place of the capture"
		} else if d.LostAfter > 0 {
			where = "behind the place of the capture"
		}
		return fmt.Sprintf("The network lost or reordered at least %d of %d packets from %v to %v, %s: look there for full queues, bad links, and several paths for one connection.", n, d.Packets+d.LostBefore, from.Addr, to.Addr, where)
	case r.Response > 0:
		return fmt.Sprintf("Responses from %v to %v did not arrive in order, and were asked for again %d times: look for full queues and bad links.", to.Addr, from.Addr, r.Response)
	}
	return ""
}

func repeated(from, to End, d, _ *Direction) string {
	r := &d.Repeats
	switch {
	case r.AckLost > 0:
		return fmt.Sprintf("%v repeated %d packets that %v had acknowledged: acknowledgements were lost or late on their way back; the time-out may be too short.", from.Addr, r.AckLost, to.Addr)
	case r.TimeOut+r.Sequence > 0:
		return fmt.Sprintf("%v repeated %d packets after a time-out: they or their acknowledgements were lost, or %v was too slow.", from.Addr, r.TimeOut+r.Sequence, to.Addr)
	}
	return ""
}

func disordered(from, to End, d, _ *Direction) string {
	switch {
	case d.Repeats.Duplicated > 0:
		return fmt.Sprintf("%d packets from %v to %v are there twice: the network duplicates them, or the capture has each place on their way.", d.Repeats.Duplicated, from.Addr, to.Addr)
	case d.Reordered > 0:
		return fmt.Sprintf("%d packets from %v to %v were overtaken: the network uses several paths for one connection, or spreads its packets over queues.", d.Reordered, from.Addr, to.Addr)
	}
	return ""
}

func congested(from, to End, d, back *Direction) string {
	if d.Marked == 0 && back.Notified == 0 {
		return ""
	}
	return fmt.Sprintf("A queue from %v to %v was congested: %d of %d packets were marked (ECN), and %v sent %d notifications.", from.Addr, to.Addr, d.Marked, d.Packets, to.Addr, back.Notified)
}
