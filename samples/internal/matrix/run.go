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

	"github.com/verbena-rdma/verbena/samples/internal/pair"
)

// Workers is how many pairs run at a time: the guest has two processors, and the
// programs of a pair wait for one another.
const Workers = 2

// What a machine needs whose processors are emulated, on a busy host. It can stand
// still for longer than the half second for which devices repeat a packet, unless
// AckTimeout says otherwise.
const (
	patience   = "5m" // for one program
	ackTimeout = "1s"
)

// place is where one end runs.
type place struct {
	device string
	gid    int // index
	far    bool
}

// place finds the place of an end. The guest's script gives each worker addresses
// of its own on the far end of the cable: rxe sends to UDP port 4791 only, which
// one device at a time has on an address.
func (c Case) place(device string, requester bool, worker int) place {
	v6 := 0
	if c.Family == 6 {
		v6 = 1
	}
	switch {
	case device == rxe:
		return place{"rxe0", 1 + v6, false}
	case requester && c.Ends.Responder == soft:
		// On the near end, beside rxe, and on another port than rxe's.
		return place{"soft-v0", v6, false}
	case c.Family == 6:
		return place{fmt.Sprintf("soft-fd00::1%d", worker), 0, true}
	}
	return place{fmt.Sprintf("soft-10.0.0.1%d", worker), 0, true}
}

// RunAll runs cases in the guest of the rig, with the programs in the folder bin,
// and writes a line for each result, and what the programs said of those that fail.
func RunAll(ctx context.Context, cases []Case, bin string, w io.Writer) error {
	queue := make(chan Case)
	var (
		workers sync.WaitGroup
		mu      sync.Mutex
		lost    error // of w
	)
	for i := range Workers {
		workers.Go(func() {
			for c := range queue {
				result, said := c.run(ctx, bin, i)
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
	workers.Wait()
	return lost
}

// run runs a case. If it fails, the second result is the output of both programs.
func (c Case) run(ctx context.Context, bin string, worker int) (Result, string) {
	failed := func(format string, args ...any) (Result, string) {
		return Result{Case: c}, fmt.Sprintf(format, args...)
	}
	scratch, err := os.MkdirTemp("", "matrix-")
	if err != nil {
		return failed("%v", err)
	}
	defer os.RemoveAll(scratch)
	o := pair.Options{Bin: bin, Scratch: scratch, Way: pair.Dir, Size: c.Size, SGE: c.SGE}
	o.RequesterPrefix, o.RequesterArgs = c.command(c.place(c.Ends.Requester, true, worker))
	o.ResponderPrefix, o.ResponderArgs = c.command(c.place(c.Ends.Responder, false, worker))
	start := time.Now()
	r, err := pair.Run(ctx, c.Pair, o)
	if err == nil {
		err = r.Verify(c.Pair, c.Pair.Messages, c.Size)
	}
	if err != nil {
		return failed("%v\n%s\n%s%s\n%s\n%s%s", err,
			strings.Join(r.Requester.Command, " "), r.Requester.Stdout, r.Requester.Stderr,
			strings.Join(r.Responder.Command, " "), r.Responder.Stdout, r.Responder.Stderr)
	}
	return Result{Case: c, OK: true, Seconds: time.Since(start).Seconds()}, ""
}

func (c Case) command(p place) (prefix, args []string) {
	if p.far {
		prefix = []string{"ip", "netns", "exec", "s"}
	}
	return prefix, []string{"-d", p.device, "-g", fmt.Sprint(p.gid), "-mtu", fmt.Sprint(c.MTU), "-timeout", patience, "-connect-timeout", patience, "-ack-timeout", ackTimeout}
}
