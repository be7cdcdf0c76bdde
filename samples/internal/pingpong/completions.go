package pingpong

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// completions waits for completions, by polling or asleep.
type completions struct {
	cq    verbs.CQ
	wcs   [2]verbs.WC
	sleep bool
	woken chan struct{}
}

// waitOn prepares to wait on a completion queue, of which it has to be the only user.
func (o *Options) waitOn(cq verbs.CQ) *completions {
	c := &completions{cq: cq, sleep: o.Events, woken: make(chan struct{}, 1)}
	cq.OnCompletion(func() {
		select {
		case c.woken <- struct{}{}:
		default:
		}
	})
	return c
}

// next returns the next completions, at least one, all successful. They are valid
// until the next call.
func (c *completions) next(ctx context.Context) ([]verbs.WC, error) {
	for {
		n, err := c.cq.Poll(c.wcs[:])
		if err != nil {
			return nil, err
		}
		for _, wc := range c.wcs[:n] {
			if wc.Status != verbs.StatusSuccess {
				return nil, fmt.Errorf("request %d failed: %v (status %d)", wc.ID, wc.Status, int(wc.Status))
			}
		}
		if n > 0 {
			return c.wcs[:n], nil
		}
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
	}
}

func (c *completions) wait(ctx context.Context) error {
	if !c.sleep {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
			return nil
		}
	}
	armed, err := c.cq.Arm(false)
	if err != nil || !armed {
		return err
	}
	select {
	case <-c.woken:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
