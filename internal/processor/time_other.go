//go:build !unix

package processor

import "time"

// Time returns 0: the time is not known on this system.
func Time() time.Duration { return 0 }
