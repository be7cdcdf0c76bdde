package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/pe"
)

// style is a way to wait for what the engine does.
type style struct {
	name    string
	about   string
	spin    time.Duration // of the engine
	prepare func(*player) error
	play    func(context.Context, *player) error // until ctx ends or the player has enough
}

var styles = []style{
	{"poll", "Progress in a loop", 0, withCallbacks, drivenBy(polling)},
	{"run", "Engine.Run, which spins before it sleeps", 0, withCallbacks, drivenBy(running)},
	{"sleep", "Engine.Run, which sleeps at once", -1, withCallbacks, drivenBy(running)},
	{"event", "epoll, with Arm", 0, withCallbacks, drivenBy(events)},
	{"await", "goroutines that wait, with package await", 0, withWaits, waiting},
}

// drivenBy plays with callbacks: drive drives the engine until it is Idle.
func drivenBy(drive func(*pe.Engine) error) func(context.Context, *player) error {
	return func(ctx context.Context, p *player) error {
		// The only call from another goroutine, which ends the game.
		stop := context.AfterFunc(ctx, func() {
			_ = p.engine.Do(func() { p.check(p.rdma.Stop()) }) // closed: it has ended
		})
		defer stop()
		err := drive(p.engine)
		switch {
		case ctx.Err() != nil:
			return nil // the peer ends too, and may have been first
		case err == nil:
			return p.rdma.Err()
		}
		return err
	}
}

func polling(e *pe.Engine) error {
	for e.Active() > 0 {
		if _, err := e.Progress(); err != nil {
			return err
		}
	}
	return nil
}

func running(e *pe.Engine) error { return e.Run(context.Background()) }

// events is the loop of a program with descriptors of its own.
func events(e *pe.Engine) error {
	fd, err := e.NotificationFD()
	if err != nil {
		return err
	}
	w, err := newWaiter(fd)
	if err != nil {
		return err
	}
	defer w.close()
	for {
		for {
			n, err := e.Progress()
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
		}
		if e.Active() == 0 {
			return nil
		}
		if err := e.Arm(); err != nil {
			return err
		}
		if err := w.wait(-1); err != nil {
			return err
		}
	}
}

// figures are those of one style.
type figures struct {
	style
	median, tail time.Duration // half a round trip
	used         float64       // processors, by the first process
	trips        int
	err          error // this system does not have it
}

// compareStyles plays the same ping-pong in every style, both ends in the same.
func compareStyles(o options) (string, error) {
	var all []figures
	for _, s := range styles {
		if o.style != "" && o.style != s.name {
			continue
		}
		f, err := playStyle(o, s)
		if err != nil && !errors.Is(err, pe.ErrNotSupported) {
			return "", fmt.Errorf("%s: %w", s.name, err)
		}
		f.style, f.err = s, err
		all = append(all, f)
	}
	if len(all) == 0 {
		return "", noStyle(o)
	}
	return table(all), nil
}

func noStyle(o options) error {
	var names []string
	for _, s := range styles {
		names = append(names, s.name)
	}
	return fmt.Errorf("no style %q; there are %s", o.style, strings.Join(names, ", "))
}

func table(all []figures) string {
	var b strings.Builder
	const indent = "\n            "
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	b.WriteString("      median µs    99 % µs  ratio  processors  round trips")
	for _, f := range all {
		if f.err != nil {
			fmt.Fprintf(&b, indent+"%-5s %-54s  %s", f.name, "not on this system", f.about)
			continue
		}
		fmt.Fprintf(&b, indent+"%-5s %9.2f  %9.2f %6.2f  %10.2f  %11d  %s", f.name, us(f.median), us(f.tail),
			float64(f.median)/float64(all[0].median), f.used, f.trips, f.about)
	}
	return b.String()
}

// playStyle is the first process.
func playStyle(o options, s style) (f figures, err error) {
	o.style = s.name
	p, conn, mem, err := newPlayer(o, s)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if _, fdErr := p.engine.NotificationFD(); s.name == "event" && fdErr != nil {
		return f, fdErr
	}
	peer, err := startPeer(o)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, peer.stop()) }()
	theirs, _, err := exchange(peer.stdin, peer.scan, conn, mem)
	if err != nil {
		return f, err
	}
	if err := p.conn.Connect(theirs); err != nil {
		return f, err
	}
	p.first = true
	before, began := cpuTime(), time.Now()
	if err := s.play(context.Background(), p); err != nil {
		return f, err
	}
	f.used = float64(cpuTime()-before) / float64(time.Since(began))
	slices.Sort(p.samples)
	at := func(q float64) time.Duration { return p.samples[int(q*float64(len(p.samples)-1))] }
	f.median, f.tail, f.trips = at(0.5), at(0.99), len(p.samples)
	return f, nil
}

// serveStyle is the second process, which plays until its standard input ends.
func serveStyle(o options) error {
	i := slices.IndexFunc(styles, func(s style) bool { return s.name == o.style })
	if i < 0 {
		return noStyle(o)
	}
	p, conn, mem, err := newPlayer(o, styles[i])
	if err != nil {
		return err
	}
	scan := descriptor.NewScanner(os.Stdin)
	theirs, _, err := exchange(os.Stdout, scan, conn, mem)
	if err == nil {
		err = p.conn.Connect(theirs)
	}
	if err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			_, _, _ = scan.Next()
			cancel()
		}()
		if err = styles[i].play(ctx, p); errors.Is(err, context.Canceled) {
			err = nil
		}
		cancel()
	}
	return errors.Join(err, p.close())
}
