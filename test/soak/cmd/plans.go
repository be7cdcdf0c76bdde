package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/traffic"
)

// The ends of a client.
const (
	endsNormally      = iota // ends by itself after its sessions
	endsKilled               // killed at any moment
	endsStopped              // stopped for a while, then resumed
	endsStoppedTwice         // stopped and resumed twice
	endsKilledStopped        // killed while it is stopped
)

// endings has each ending in proportion to its probability.
var endings = []int{endsNormally, endsNormally, endsNormally, endsKilled, endsKilled, endsStopped, endsStopped, endsStoppedTwice, endsKilledStopped}

// plan is what a client does, and how it ends.
type plan struct {
	cfg     clientConfig
	service service
	ending  int
	runFor  [2]time.Duration // until the client is killed or stopped
	stopFor [2]time.Duration // how long the client is stopped
}

// clientSlot is a place that clients take one after the other.
type clientSlot struct {
	number, started int
	rng             *rand.Rand
}

// drawPlan draws the plan of the next client.
func (c *controller) drawPlan(s *clientSlot) plan {
	rng := s.rng
	p := plan{service: c.services[rng.IntN(len(c.services))], ending: endings[rng.IntN(len(endings))]}
	s.started++
	p.cfg = clientConfig{Name: fmt.Sprintf("c%d-%d", s.number, s.started), Service: p.service.name, ByCM: rng.IntN(2) == 0, Sessions: 1 + traffic.Size(rng, 100), Each: 1 + rng.IntN(20)}
	longest := min(10*time.Second, c.o.quiet/2)
	for i := range p.runFor {
		p.runFor[i] = time.Duration(traffic.Size(rng, int(longest)))
		if rng.IntN(2) == 0 { // mostly after connecting; times of size often fall into it
			p.runFor[i] = time.Duration(rng.Int64N(int64(longest)))
		}
		p.stopFor[i] = time.Duration(rng.Int64N(int64(longest)))
	}
	if c.o.gentle {
		p.ending = endsNormally
	}
	if rng.IntN(4) == 0 && !p.service.shared {
		p.cfg.Faults = drawFaults(rng, p.service)
	}
	return p
}

// runPlan runs one client from its start to its end. The client leaves when the phase ends.
func (c *controller) runPlan(phase context.Context, s *clientSlot) {
	plan := c.drawPlan(s)
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
	switch plan.ending {
	case endsKilled:
		if sleep(plan.runFor[0]) {
			c.count(&c.kills)
			p.kill()
		}
	case endsStopped, endsStoppedTwice, endsKilledStopped:
		rounds := 1
		if plan.ending == endsStoppedTwice {
			rounds = 2
		}
		for i := 0; i < rounds && sleep(plan.runFor[i]); i++ {
			c.count(&c.stops)
			p.stop()
			sleep(plan.stopFor[i])
			if plan.ending == endsKilledStopped {
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
			c.failed(fmt.Errorf("%s was told to leave, but did not within %v\n%s", p.name, patience, p.run.Stderr.String()))
		}
	}
	if p.service.datagrams() && p.service.sessions() {
		// SRD has no connections: nothing else tells the server that a client is gone.
		c.server.send(command{Do: doGone, Service: p.service.name, Client: plan.cfg.Name})
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
			c.server.send(command{Do: doFaults, Service: s.name, Faults: f})
		default:
			p := c.clientOf(s)
			if p == nil || p.steady && s.shared {
				continue
			}
			p.send(command{Do: doFaults, Faults: f})
		}
		c.count(&c.faults)
	}
}

// clientOf returns a client of a service, or nil.
func (c *controller) clientOf(s service) *child {
	for _, p := range c.running() { // the order is random
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
