package main

import (
	"fmt"
	"os"
	"time"
)

// point is what the processes held at a quiet point.
type point struct {
	at   time.Duration
	held []resources // of the server, and of the clients that stay
}

// quietPoint stops all work once the clients have left, and compares what is held.
func (c *controller) quietPoint() {
	all := append([]*child{c.server}, c.steady...)
	for _, s := range c.services {
		if !s.shared {
			c.server.send(command{Do: doFaults, Service: s.name})
		}
	}
	for _, p := range c.steady {
		if !p.service.shared {
			p.send(command{Do: doFaults})
		}
	}
	now := point{at: time.Since(c.began), held: make([]resources, len(all))}
	// The clients stop first, so that each worker gets its last answers.
	for i := len(all) - 1; i >= 0; i-- {
		p := all[i]
		p.mu.Lock()
		p.idle = true
		p.mu.Unlock()
		cmd := command{Do: doQuiet, Hasty: c.o.hasty || len(c.points)%waitEvery != 0, Steady: number(p == c.server || p.service.sessions())}
		if len(c.points) > 0 {
			cmd.Base = c.least(i)
		}
		p.send(cmd)
	}
	for i, p := range all {
		select {
		case e := <-p.quiet:
			now.held[i] = *e.Held
			if e.Text != "" {
				c.failed(fmt.Errorf("%s has resources left over: %s\n%s", p.name, e.Text, p.run.Stderr.String()))
				return
			}
		case <-p.exited:
			return // it has failed, which is recorded
		case <-c.ctx.Done():
			return
		case <-time.After(2 * patience):
			c.dump(p)
			c.failed(fmt.Errorf("%s did not become idle\n%s", p.name, p.run.Stderr.String()))
			return
		}
	}
	c.compare(all, &now)
	c.points = append(c.points, now)
	c.print("%v quiet point %d: the server has %v", now.at.Round(time.Second), len(c.points), &now.held[0])
	for _, p := range all {
		p.mu.Lock()
		p.idle, p.moved = false, time.Now()
		p.mu.Unlock()
		p.send(command{Do: doResume})
	}
}

// least returns the smallest counts of a process at the quiet points so far.
func (c *controller) least(i int) *resources {
	least := c.points[0].held[i]
	for _, p := range c.points[1:] {
		h := &p.held[i]
		least.Goroutines, least.Mappings = min(least.Goroutines, h.Goroutines), min(least.Mappings, h.Mappings)
		least.Tasks = min(least.Tasks, h.Tasks)
		if h.Files < least.Files {
			least.Files, least.Kinds = h.Files, h.Kinds
		}
	}
	return &least
}

// compare compares a quiet point with the first ones.
func (c *controller) compare(all []*child, now *point) {
	parents := map[int]bool{os.Getpid(): true}
	for i, p := range all {
		parents[p.run.PID()] = true
		if len(c.points) < basePoints {
			continue
		}
		base := c.points[0].held[i]
		for _, first := range c.points[:basePoints] {
			base.Heap, base.RSS = max(base.Heap, first.held[i].Heap), max(base.RSS, first.held[i].RSS)
		}
		if err := now.held[i].memory(&base); err != nil {
			c.failed(fmt.Errorf("%s at quiet point %d: %w", p.name, len(c.points)+1, err))
		}
	}
	if found := zombies(parents); len(found) > 0 {
		c.failed(fmt.Errorf("zombies at quiet point %d: processes %v", len(c.points)+1, found))
	}
}

// waitEvery: at one of so many quiet points, the server waits for the incomplete connections
// of dead clients to time out, which takes a minute. At the others it closes them.
const waitEvery = 5

// basePoints is the number of quiet points with which the memory of later ones is compared.
const basePoints = 2
