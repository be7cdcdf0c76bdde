package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/soft"
)

// The ends of a client.
const (
	leaves      = iota // ends by itself after its sessions
	killed             // killed at any moment
	stopped            // stopped for a while, then resumed
	stopsTwice         // stopped and resumed twice
	killedStill        // killed while it is stopped
)

// fates has each fate in proportion to its probability.
var fates = []int{leaves, leaves, leaves, killed, killed, stopped, stopped, stopsTwice, killedStill}

// plan is what a client does, and its fate.
type plan struct {
	cfg     clientConfig
	service service
	fate    int
	after   [2]time.Duration // until the client is killed or stopped
	still   [2]time.Duration // how long the client is stopped
}

// seat is a place that clients take one after the other.
type seat struct {
	number, lives int
	rng           *rand.Rand
}

// draw draws the plan of the next client.
func (c *controller) draw(s *seat) plan {
	rng := s.rng
	p := plan{service: c.services[rng.IntN(len(c.services))], fate: fates[rng.IntN(len(fates))]}
	s.lives++
	p.cfg = clientConfig{Name: fmt.Sprintf("c%d-%d", s.number, s.lives), Service: p.service.name, ByCM: rng.IntN(2) == 0, Sessions: 1 + size(rng, 100), Each: 1 + rng.IntN(20)}
	longest := min(10*time.Second, c.o.quiet/2)
	for i := range p.after {
		p.after[i] = time.Duration(size(rng, int(longest)))
		if rng.IntN(2) == 0 { // mostly after connecting; times of size often fall into it
			p.after[i] = time.Duration(rng.Int64N(int64(longest)))
		}
		p.still[i] = time.Duration(rng.Int64N(int64(longest)))
	}
	if c.o.gentle {
		p.fate = leaves
	}
	if rng.IntN(4) == 0 && !p.service.shared {
		p.cfg.Faults = drawFaults(rng, p.service)
	}
	return p
}

// life runs one client from its start to its end. The client leaves when the phase ends.
func (c *controller) life(phase context.Context, s *seat) {
	plan := c.draw(s)
	p, err := c.client(plan.cfg, plan.service)
	if err != nil {
		c.failed(err)
		return
	}
	sleep := func(d time.Duration) (goOn bool) {
		select {
		case <-time.After(d):
			return true
		case <-p.exited:
		case <-phase.Done():
		}
		return false
	}
	switch plan.fate {
	case killed:
		if sleep(plan.after[0]) {
			c.count(&c.kills)
			p.kill()
		}
	case stopped, stopsTwice, killedStill:
		rounds := 1
		if plan.fate == stopsTwice {
			rounds = 2
		}
		for i := 0; i < rounds && sleep(plan.after[i]); i++ {
			c.count(&c.stops)
			p.stop()
			sleep(plan.still[i])
			if plan.fate == killedStill {
				c.count(&c.kills)
				p.kill()
			} else {
				p.resume()
			}
		}
	}
	select {
	case <-p.exited:
	case <-phase.Done():
		p.leave()
		if !c.wait(p.exited) {
			c.dump(p)
			c.failed(fmt.Errorf("%s has been told to leave, and has not for %v\n%s", p.name, patience, p.stderr.String()))
		}
	}
	if p.service.datagrams() && p.service.sessions() {
		// SRD has no connections: nothing else tells the server that a client is gone.
		c.server.tell(command{Do: doGone, Service: p.service.name, Client: plan.cfg.Name})
	}
}

func (c *controller) count(n *int) {
	c.mu.Lock()
	*n++
	c.mu.Unlock()
}

// changeFaults changes the faults of both ends, again and again.
func (c *controller) changeFaults(phase context.Context, rng *rand.Rand) {
	for {
		pause := time.Duration(rng.Int64N(int64(min(2*time.Second, c.o.quiet/4))))
		select {
		case <-time.After(pause):
		case <-phase.Done():
			return
		}
		s := c.services[rng.IntN(len(c.services))]
		f := drawFaults(rng, s)
		atServer, mayShare := rng.IntN(2) == 0, rng.IntN(8) == 0
		switch {
		case s.shared && (atServer || !mayShare):
			continue // faults would end the shared memory of all clients, or of most
		case atServer:
			c.server.tell(command{Do: doFaults, Service: s.name, Faults: f})
		default:
			p := c.somebody(s)
			if p == nil || p.steady && s.shared {
				continue
			}
			p.tell(command{Do: doFaults, Faults: f})
		}
		c.count(&c.faults)
	}
}

// somebody returns a client of a service, or nil.
func (c *controller) somebody(s service) *process {
	for _, p := range c.everybody() { // the order is random
		if p != c.server && p.service.name == s.name {
			return p
		}
	}
	return nil
}

// drawFaults draws faults; often there are none. A corrupted IPv4 packet passes the check with
// a probability of 2^-16, since the checksum covers the identification, which a socket does
// not show. In a long run that would be wrong data. With IPv6 it is 2^-32.
func drawFaults(rng *rand.Rand, s service) soft.Faults {
	f := soft.Faults{Seed: rng.Uint64()}
	if rng.IntN(3) == 0 {
		return f
	}
	for _, v := range []struct {
		p    *float64
		most float64
	}{{&f.Loss, 0.08}, {&f.Duplicate, 0.1}, {&f.Reorder, 0.15}, {&f.Corrupt, 0.02}, {&f.Mark, 0.3}} {
		if on, much := rng.IntN(2) == 0, rng.Float64(); on {
			*v.p = much * v.most
		}
	}
	if !s.ipv6 {
		f.Corrupt = 0
	}
	return f
}
