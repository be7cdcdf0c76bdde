package ping

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// ping pings a host.
func ping(ctx context.Context, o *options, out *printer) error {
	host, port, err := o.split()
	if err != nil {
		return err
	}
	addr, err := lookUp(ctx, o, host, out)
	if err != nil {
		return err
	}
	d, err := open(o, addr, out)
	if err != nil {
		return err
	}
	engine := pe.New(pe.Config{})
	r := &rounds{o: o, out: out, engine: engine, opened: d}
	target := net.JoinHostPort(addr.String(), strconv.Itoa(port))
	dial := rdma.DialConfig{Timeout: o.timeout, Once: true, LocalAddr: d.entry.GID.Addr()}
	r.client, err = NewClient(d.dev, engine, target, dial, d.config(o))
	if err == nil {
		r.client.OnConnected, r.client.OnRound, r.client.OnFailure = r.connected, r.complete, r.failed
		err = engine.Run(ctx)
		r.stopTimer()
		if errors.Is(err, context.Canceled) { // interrupted
			err = nil
		}
		err = errors.Join(err, r.client.Close())
	}
	err = errors.Join(err, engine.Close(), d.dev.Close())
	r.summary()
	if r.failure != nil {
		r.explain(ctx, addr, port)
		return fmt.Errorf("RDMA does not work with %s", o.target)
	}
	return err
}

// lookUp finds the address of a host.
func lookUp(ctx context.Context, o *options, host string, out *printer) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	list, err := route.LookUp(ctx, host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up %s: %w; check the name, or give an address", host, err)
	}
	// Prefer IPv4, because every RoCE device has IPv4 GIDs.
	best := list[0]
	if i := slices.IndexFunc(list, netip.Addr.Is4); i >= 0 {
		best = list[i]
	}
	if _, err := netip.ParseAddr(host); err != nil {
		out.line("address", "%v, one of %d addresses of %s", best, len(list), host)
	}
	return best, nil
}

// rounds is a run of pings.
type rounds struct {
	o       *options
	out     *printer
	engine  *pe.Engine
	opened  *openDevice
	client  *Client
	timer   *time.Timer
	timeout *time.Timer // ends a round that takes too long

	begun   int // rounds begun
	times   times
	failure error
	during  stage
	large   bool // the last round filled whole packets
}

func (r *rounds) connected() {
	conn := r.client.Connection()
	kind := "a server of rping's protocol"
	if r.client.Verbena() {
		kind = "verbena ping -s"
	}
	r.out.line("connected", "%v to %v in %v: queue pairs %#x and %#x, path MTU %d; %s",
		conn.LocalAddr(), conn.PeerAddr(), rounded(r.client.Connect), conn.QPN(), conn.PeerQPN(), conn.MTU(), kind)
	r.next()
}

// next begins a round. The first round has little data. The second fills whole packets, if the
// server accepts that much, because paths that lose only large packets are common.
func (r *rounds) next() {
	size := r.o.size
	if r.large = r.begun == 1 && r.client.Verbena() && r.o.size < 2*int(r.client.Connection().MTU()); r.large {
		size = 2 * int(r.client.Connection().MTU())
	}
	r.begun++
	r.timeout = r.after(r.o.timeout, func() {
		r.client.fail(fmt.Errorf("round %d of %d bytes did not complete within %v", r.begun, size, r.o.timeout))
	})
	r.client.Round(size)
}

// after calls f on the engine's goroutine.
func (r *rounds) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() { _ = r.engine.Do(f) }) // fails if the engine has ended
}

func (r *rounds) complete(d time.Duration) {
	r.timeout.Stop()
	size := r.client.size
	r.out.line("round", "%d: %d bytes read, written back and compared in %v", r.begun, size, rounded(d))
	if !r.large {
		r.times.add(d)
	}
	if r.o.count != 0 && r.begun >= r.o.count {
		r.client.Stop()
		return
	}
	r.timer = r.after(max(r.o.interval-d, 0), func() {
		if !r.client.ended {
			r.next()
		}
	})
}

func (r *rounds) failed(during stage, err error) { r.during, r.failure = during, err }

func (r *rounds) stopTimer() {
	for _, t := range []*time.Timer{r.timer, r.timeout} {
		if t != nil {
			t.Stop()
		}
	}
}

func (r *rounds) summary() {
	if r.times.n > 0 {
		r.out.line("result", "%v", &r.times)
	}
}

// times is a summary of the durations of rounds.
type times struct {
	n                 int
	shortest, longest time.Duration
	sum               time.Duration
}

func (t *times) add(d time.Duration) {
	if t.n == 0 || d < t.shortest {
		t.shortest = d
	}
	t.longest = max(t.longest, d)
	t.sum += d
	t.n++
}

// String describes the summary.
func (t *times) String() string {
	return fmt.Sprintf("RDMA works: %d rounds of two messages each way, a read and a write, in %v at least, %v on average, %v at most",
		t.n, rounded(t.shortest), rounded(t.sum/time.Duration(t.n)), rounded(t.longest))
}

// rounded rounds a duration to about three digits.
func rounded(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
