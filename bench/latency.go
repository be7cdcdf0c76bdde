package main

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/rdma"
)

const (
	pingTasks        = 16
	pingMemory       = 4096
	pingSize         = 8
	pingSource       = 64 // offset of the words to send; the received word is before them
	maxSamples       = 1 << 20
	pollsPerProgress = 256
)

// pinger writes a number to the peer, which writes it back.
type pinger struct {
	*many
	writes []*rdma.Task
	next   int

	received *uint64            // the last number that the peer wrote
	sources  [pingTasks]*uint64 // the numbers that the tasks write
}

func newPinger(m *many) (*pinger, error) {
	word := func(off int) *uint64 { return (*uint64)(unsafe.Pointer(&m.local.Bytes()[off])) }
	p := &pinger{many: m, received: word(0)}
	for i := range pingTasks {
		p.sources[i] = word(pingSource + i*pingSize)
		t, err := m.pool.Write(m.conns[0], m.bufs.Source(m.local, pingSource+i*pingSize, pingSize), m.bufs.Target(m.remote, 0, pingSize))
		if err != nil {
			return nil, err
		}
		p.writes = append(p.writes, t)
	}
	return p, nil
}

// hasArrived reports whether n has arrived. It checks many times between two calls of
// Progress: a number that arrives during the call is seen only after it.
func (p *pinger) hasArrived(n uint64) bool {
	for range pollsPerProgress {
		if atomic.LoadUint64(p.received) == n {
			return true
		}
	}
	return false
}

// write writes n to the peer.
func (p *pinger) write(n uint64) error {
	t := p.writes[p.next]
	for t.InFlight() {
		if err := p.progress(); err != nil {
			return err
		}
	}
	atomic.StoreUint64(p.sources[p.next], n)
	p.next = (p.next + 1) % pingTasks
	return t.Submit()
}

// pingPong exchanges numbers with the peer for the time d after a warm-up. It returns half of
// each round trip.
func (p *pinger) pingPong(d time.Duration) ([]time.Duration, error) {
	samples := make([]time.Duration, 0, maxSamples)
	begin := time.Now()
	more := func(start time.Time) bool {
		// On a busy machine all of the time can pass during one round trip.
		return len(samples) == 0 || len(samples) < maxSamples && start.Sub(begin) < warmUp+d
	}
	for n, start := uint64(1), begin; more(start); n++ {
		if err := p.write(n); err != nil {
			return nil, err
		}
		for !p.hasArrived(n) {
			if err := p.progress(); err != nil {
				return nil, err
			}
		}
		// One reading of the clock ends one round trip and starts the next.
		now := time.Now()
		if now.Sub(begin) > warmUp {
			samples = append(samples, now.Sub(start)/2)
		}
		start = now
	}
	return samples, nil
}
