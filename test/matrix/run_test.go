package matrix

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/pair"
)

// workers is how many cases run at a time: the guest has two processors, and the two ends of a
// case wait for each other.
const workers = 2

const (
	patience = "5m" // for one end
	// ackTimeout is for emulated processors on a busy host. Such a machine can stand still for
	// longer than adapters repeat a packet.
	ackTimeout = "1s"
)

// endpoint is where one end of a case runs.
type endpoint struct {
	device     string
	gid        int  // index
	remoteHost bool // on the guest's other host
}

// placement returns where the two ends run: the endpoints of a case on a worker, and more
// flags for both ends.
type placement func(c Case, worker int) (requester, responder endpoint, more []string)

// loopbackPlacement places both ends of soft × soft on the loopback interface.
func loopbackPlacement(c Case, _ int) (requester, responder endpoint, more []string) {
	p := endpoint{"soft-lo", c.v6(), false}
	return p, p, nil
}

// guestPlacement places the ends in the guest of the rig.
func guestPlacement(c Case, worker int) (requester, responder endpoint, more []string) {
	return c.endpoint(c.Ends.Requester, true, worker), c.endpoint(c.Ends.Responder, false, worker), []string{"-ack-timeout", ackTimeout}
}

// v6 returns 1 for IPv6: in GID tables, the IPv6 address follows the IPv4 address.
func (c Case) v6() int {
	if c.Family == 6 {
		return 1
	}
	return 0
}

// endpoint returns where an end runs. The guest's script gives each worker its own addresses on
// the far end of the cable: rxe only sends to UDP port 4791, which only one device at a time
// can have on an address.
func (c Case) endpoint(device string, requester bool, worker int) endpoint {
	v6 := c.v6()
	switch {
	case device == rxe:
		return endpoint{"rxe0", 1 + v6, false}
	case requester && c.Ends.Responder == soft:
		// On the near end, on the same host as rxe but on another UDP port.
		return endpoint{"soft-v0", v6, false}
	case c.Family == 6:
		return endpoint{fmt.Sprintf("soft-fd00::1%d", worker), 0, true}
	}
	return endpoint{fmt.Sprintf("soft-10.0.0.1%d", worker), 0, true}
}

// runAll runs the cases with the programs in the folder bin. It writes a line for each result,
// and the output of both ends of a case that fails.
func runAll(ctx context.Context, cases []Case, where placement, bin string, w io.Writer) error {
	queue := make(chan Case)
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		lost    error // error of w
	)
	for i := range workers {
		running.Go(func() {
			for c := range queue {
				result, said := c.run(ctx, where, bin, i)
				mu.Lock()
				_, err := fmt.Fprintf(w, "%v\n%s", result, said)
				lost = cmp.Or(lost, err)
				mu.Unlock()
			}
		})
	}
	for _, c := range cases {
		queue <- c
	}
	close(queue)
	running.Wait()
	return lost
}

// run runs a case. If the case fails, the second result is the output of both ends.
func (c Case) run(ctx context.Context, where placement, bin string, worker int) (Result, string) {
	failed := func(format string, args ...any) (Result, string) {
		return Result{Case: c}, fmt.Sprintf(format, args...)
	}
	scratch, err := os.MkdirTemp("", "matrix-")
	if err != nil {
		return failed("%v", err)
	}
	defer os.RemoveAll(scratch)
	o := pair.Options{Bin: bin, Scratch: scratch, Way: pair.Dir, Size: c.Size, SGE: c.SGE}
	requester, responder, more := where(c, worker)
	o.RequesterPrefix, o.RequesterArgs = requester.command()
	o.ResponderPrefix, o.ResponderArgs = responder.command()
	more = append([]string{"-mtu", fmt.Sprint(c.MTU)}, more...)
	o.RequesterArgs, o.ResponderArgs = append(o.RequesterArgs, more...), append(o.ResponderArgs, more...)
	start := time.Now()
	r, err := pair.Run(ctx, c.Pair, o)
	if err == nil {
		err = r.Verify()
	}
	if err != nil {
		return failed("%v\n%s\n%s%s\n%s\n%s%s", err,
			strings.Join(r.Requester.Command, " "), r.Requester.Stdout, r.Requester.Stderr,
			strings.Join(r.Responder.Command, " "), r.Responder.Stdout, r.Responder.Stderr)
	}
	return Result{Case: c, OK: true, Seconds: time.Since(start).Seconds()}, ""
}

// command returns the start of a command line at the place, and the flags for every program
// there.
func (p endpoint) command() (prefix, args []string) {
	if p.remoteHost {
		prefix = []string{"ip", "netns", "exec", "s"}
	}
	return prefix, []string{"-d", p.device, "-g", fmt.Sprint(p.gid), "-timeout", patience, "-connect-timeout", patience}
}
