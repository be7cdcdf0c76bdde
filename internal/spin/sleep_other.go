//go:build !linux

package spin

import "time"

// Sleep sleeps.
func Sleep(d time.Duration) { time.Sleep(d) }
