package pingpong

import (
	"fmt"
	"time"
)

// Report prints the figures of all exchanges.
func (o *Options) Report(elapsed time.Duration) {
	bytes := 2 * int64(o.Size) * int64(o.Iters)
	usec := float64(elapsed.Nanoseconds()) / 1e3
	_, _ = fmt.Fprintf(o.out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, usec/1e6, float64(bytes)*8/usec)
	_, _ = fmt.Fprintf(o.out, "%d iters in %.2f seconds = %.2f usec/iter\n", o.Iters, usec/1e6, usec/float64(o.Iters))
}
