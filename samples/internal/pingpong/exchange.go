package pingpong

import (
	"context"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// ReceiveID and SendID are the IDs of requests. Exchange combines them as bits of a set.
const ReceiveID, SendID = 1, 2

// Exchange is step 9: it posts work requests and polls for their completions until all messages
// have been exchanged, and prints the results. The caller has posted the first receives. The
// next message leaves when the previous send has completed and the peer's message has arrived.
func (o *Options) Exchange(ctx context.Context, qp verbs.QP, cq verbs.CQ, receives []verbs.RecvWR, send verbs.SendWR) error {
	completions := o.waitOn(cq)
	sends := []verbs.SendWR{send}
	pending := uint64(ReceiveID) // the server's first send follows the client's first message
	if o.Client() {
		pending = 0
	}
	start, posted, sent, received := time.Now(), len(receives), 0, 0
	for sent < o.Iters || received < o.Iters || pending&SendID != 0 {
		if pending == 0 && sent < o.Iters {
			if _, err := qp.PostSend(sends); err != nil {
				return err
			}
			sent++
			pending = SendID | ReceiveID
		}
		wcs, err := completions.next(ctx)
		if err != nil {
			return err
		}
		for _, wc := range wcs {
			pending &^= wc.ID
			if wc.ID == SendID {
				continue
			}
			received++
			if posted--; posted <= 1 {
				if _, err := qp.PostRecv(receives[posted:]); err != nil {
					return err
				}
				posted = len(receives)
			}
		}
	}
	o.report(time.Since(start))
	return nil
}

// report prints the results of all exchanges.
func (o *Options) report(elapsed time.Duration) {
	bytes := 2 * int64(o.Size) * int64(o.Iters)
	usec := float64(elapsed.Nanoseconds()) / 1e3
	_, _ = fmt.Fprintf(o.out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, usec/1e6, float64(bytes)*8/usec)
	_, _ = fmt.Fprintf(o.out, "%d iters in %.2f seconds = %.2f usec/iter\n", o.Iters, usec/1e6, usec/float64(o.Iters))
}
