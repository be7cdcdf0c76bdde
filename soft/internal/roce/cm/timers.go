package cm

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/timers"
)

// expirer is an object with a timer.
type expirer interface{ expire(now time.Duration) }

type timer = timers.Timer[expirer]
