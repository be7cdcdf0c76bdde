package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// stuck says what is wrong with an agent for which nothing is about to happen: work that waits, but for
// nothing. Call it between events.
func (a *Agent) stuck() error {
	if !a.mu.TryLock() {
		return nil
	}
	defer a.mu.Unlock()
	if a.closed != nil {
		return nil
	}
	slots := [2]int{}
	for _, p := range a.peers {
		for _, path := range p.paths {
			if path.slot != nil {
				slots[slices.Index([]*int{&a.dialing[0], &a.dialing[1]}, path.slot)]++
			}
		}
		if p.closed != nil {
			continue
		}
		comes := false
		for i, path := range p.paths {
			moves := path.state != pathDown || path.pause != nil
			comes = comes || moves
			if path.fenced != nil && !moves {
				return fmt.Errorf("path %d of %v has writes that wait, and does not connect", i, p)
			}
			if path.state == pathQueued && path.slot == nil && a.dialing[0]+a.dialing[1] == 0 {
				return fmt.Errorf("path %d of %v waits to dial, and nobody dials", i, p)
			}
			if path.state != pathReady {
				continue
			}
			for level := range levels {
				if p.work[level].Len() > 0 && path.room() && !path.active[level] {
					return fmt.Errorf("path %d of %v has room, and does not take the work of level %d", i, p, level)
				}
				if path.active[level] && !slices.Contains(slices.Collect(path.dev.active[level].All()), path) {
					return fmt.Errorf("path %d of %v is not in the queue of its device", i, p)
				}
				if path.active[level] && !path.dev.woken && path.dev.inFlight < poolSize {
					return fmt.Errorf("the device of path %d of %v sleeps", i, p)
				}
			}
		}
		if p.waiting() && !comes {
			return fmt.Errorf("work waits for %v, and nobody connects", p)
		}
	}
	if slots != a.dialing {
		return fmt.Errorf("%v paths dial, and %v are counted", slots, a.dialing)
	}
	return nil
}

// Whatever ends connections, and whenever, no work is forgotten: something is about to happen for all that waits.
// Short: fewer seeds.
func TestNothingIsStuck(t *testing.T) {
	seeds := 20
	if testing.Short() || raceEnabled {
		seeds = 2
	}
	sim.CheckSerial(t, seeds, func(s *sim.Sim) {
		const agents, end = 3, 20 * time.Second
		s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond, Jitter: time.Millisecond, Rate: 5e6})
		var hosts, seconds []*sim.Host
		opened, quiet, done := make([]*Agent, agents), false, 0
		transport := []verbs.QPType{verbs.RC, verbs.SRD}[s.Seed()%2]
		for i := range agents {
			hosts, seconds = append(hosts, s.Host(fmt.Sprint("first-", i))), append(seconds, s.Host(fmt.Sprint("second-", i)))
		}
		for i, h := range hosts {
			h.Run(func(ctx context.Context, dev verbs.Device) error {
				devices := []verbs.Device{dev, seconds[i].Device()}
				a, err := Open(Config{Devices: devices[:1+h.Rand().IntN(2)], Transport: transport, Listen: ":7600", Depth: 4, Piece: 512, DialTimeout: 500 * time.Millisecond})
				if err != nil {
					return err
				}
				opened[i] = a
				h.Go(func() {
					for _, err := a.Note(ctx); err == nil; _, err = a.Note(ctx) {
					}
				})
				if _, err = a.Register("blocks", make([]byte, 1<<16), all); err == nil {
					for j := range hosts {
						if j != i {
							h.Go(func() {
								for opened[j] == nil {
									h.Sleep(10 * time.Millisecond)
								}
								work(ctx, h, a, opened[j].Addrs()[0].String(), &quiet)
								done++
							})
						}
					}
				}
				for err == nil && ctx.Err() == nil {
					h.Sleep(time.Duration(h.Rand().IntN(300)) * time.Millisecond)
					if !quiet {
						a.endAConnection(h.Rand())
					}
				}
				opened[i] = nil
				return errors.Join(err, a.Close())
			})
		}
		chaos := s.Nemesis(sim.Chaos{Hosts: slices.Concat(hosts, seconds), Interval: time.Second, Longest: 3 * time.Second, Until: end, Worst: late, Pauses: 1, Partitions: 1, OneWay: 1, BadLinks: 1})
		s.RunUntil(func() bool {
			quiet = chaos.Done()
			for i, a := range opened {
				if a == nil {
					continue
				}
				if err := a.stuck(); err != nil {
					s.Errorf("%v: %v", hosts[i], err)
				}
			}
			return done == agents*(agents-1)
		}, 2*time.Minute)
	})
}

// endAConnection closes one, in any state.
func (a *Agent) endAConnection(rnd *rand.Rand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	type at struct {
		dev  *localDevice
		conn link
	}
	var all []at
	for _, p := range a.peers {
		for _, path := range p.paths {
			if path.conn != nil {
				all = append(all, at{path.dev, path.conn})
			}
		}
	}
	if len(all) > 0 {
		c := all[rnd.IntN(len(all))]
		_ = c.dev.engine.Do(func() { _ = c.conn.Close() })
	}
}

// work gives an agent batches for another, several at a time, until all is quiet; then one of them has to succeed.
func work(ctx context.Context, h *sim.Host, a *Agent, addr string, quiet *bool) {
	rnd := h.Rand()
	mine := make([]byte, 1<<16)
	if _, err := a.Register("", mine, all); err != nil {
		return
	}
	var p *Peer
	var handles []*Handle
	for ctx.Err() == nil {
		if p != nil && rnd.IntN(50) == 0 {
			p.Close()
			p = nil
		}
		if p == nil {
			p, _ = a.Dial(ctx, addr)
			continue
		}
		short, cancel := context.WithCancel(ctx)
		if rnd.IntN(4) == 0 {
			cancel()
		}
		remote, err := p.Segment(short, "blocks")
		cancel()
		if err != nil {
			h.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
			continue
		}
		b := Batch{Priority: Priority(rnd.IntN(3) - 1)}
		for range rnd.IntN(5) {
			at, size := rnd.IntN(1<<15), 1+rnd.IntN(1<<15)
			switch rnd.IntN(3) {
			case 0:
				b.Write(remote, at, mine[at:][:size])
			case 1:
				b.Read(remote, at, mine[at:][:size])
			default:
				if a.cfg.Transport == verbs.RC {
					b.FetchAdd(remote, at&^7, 1)
				}
			}
		}
		if rnd.IntN(2) == 0 {
			b.Note(p, 1)
		}
		if handle, err := a.Submit(&b); err == nil {
			handles = append(handles, handle)
			if *quiet && handle.Wait(ctx) == nil && handle.Len() > 0 {
				break
			}
		}
		for len(handles) > rnd.IntN(8) {
			if rnd.IntN(3) == 0 {
				handles[0].Cancel()
			}
			<-handles[0].Done()
			handles = handles[1:]
		}
		h.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
	}
	for _, handle := range handles {
		<-handle.Done()
	}
}
