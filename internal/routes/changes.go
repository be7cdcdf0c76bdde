package routes

import (
	"context"
	"time"
)

// pollInterval is how often Changes looks where the system reports nothing.
const pollInterval = 2 * time.Second

// Changes calls changed when interfaces or addresses of this host may have changed, until ctx ends. It
// calls subscribed first, as soon as no later change can be missed. Where the system reports no
// changes, it calls changed every two seconds.
func Changes(ctx context.Context, subscribed, changed func()) {
	if follow(ctx, subscribed, changed) || ctx.Err() != nil {
		return
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	subscribed()
	for {
		select {
		case <-tick.C:
			changed()
		case <-ctx.Done():
			return
		}
	}
}
