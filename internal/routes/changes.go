package routes

import (
	"context"
	"sync"
	"time"
)

// pollInterval is how often Changes looks where the system reports nothing.
const pollInterval = 2 * time.Second

// Changes calls changed when interfaces or addresses of this host may have changed, until ctx ends. It
// calls subscribed once, before that, as soon as no later change can be missed. Where the system reports
// no changes, or no longer, it calls changed every two seconds.
func Changes(ctx context.Context, subscribed, changed func()) {
	changes(ctx, follow, subscribed, changed)
}

// changes is Changes with a function that follows the system's reports, and returns false if there are
// none, or none any more.
func changes(ctx context.Context, follow func(ctx context.Context, subscribed, changed func()) bool, subscribed, changed func()) {
	subscribed = sync.OnceFunc(subscribed)
	defer subscribed() // whoever waits for it goes on
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
