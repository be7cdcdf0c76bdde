package fabrictest

import (
	"bytes"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
)

// Network carries packets between nodes in virtual time, by a link from each node to each
// other. What happens depends on its seed alone.
type Network[Node comparable] struct {
	Clock
	Config fabric.LinkConfig // of all links. Change it at any time.
	Random *rand.Rand

	links map[[2]Node]*fabric.Link
	free  [][]byte
}

// NewNetwork returns a network, and sets its clock.
func NewNetwork[Node comparable](seed uint64, now time.Duration, c fabric.LinkConfig) *Network[Node] {
	return &Network[Node]{
		Clock: Clock{Now: now}, Config: c, Random: rand.New(rand.NewPCG(seed, 0)), links: make(map[[2]Node]*fabric.Link),
	}
}

// Chance is true with probability p.
func (w *Network[Node]) Chance(p float64) bool { return p > 0 && w.Random.Float64() < p }

// Link returns the link from one node to another, with the network's configuration.
func (w *Network[Node]) Link(from, to Node) *fabric.Link {
	key := [2]Node{from, to}
	l := w.links[key]
	if l == nil {
		l = fabric.NewLink(w.Config, w.Random)
		w.links[key] = l
	}
	l.Config = w.Config
	return l
}

// Counts sums up the counts of all links.
func (w *Network[Node]) Counts() (sum fabric.Counts) {
	for _, l := range w.links {
		sum.Add(&l.Counts)
	}
	return sum
}

// Send puts a packet on the link between two nodes, and calls arrive with it, or with a copy,
// at each of its arrivals. The buffer b is the network's from now on. Arrive may give back
// its own with Release.
func (w *Network[Node]) Send(from, to Node, b []byte, arrive func(b []byte)) {
	l := w.Link(from, to)
	arrivals, count := l.Carry(w.Now, len(b), false)
	if count == 0 {
		w.Release(b)
		return
	}
	packets := [2][]byte{b}
	if count == 2 {
		packets[1] = w.Buffer(len(b))
		copy(packets[1], b)
	}
	for i, a := range arrivals[:count] {
		p := packets[i]
		if a.Corrupt {
			l.Corrupt(p)
		}
		w.At(a.At, func() { arrive(p) })
	}
}

// bufferSize is the least size of new buffers: packets of the largest path MTU fit.
const bufferSize = 4608

// Buffer returns n bytes for a packet. Their content is undefined.
func (w *Network[Node]) Buffer(n int) []byte {
	if last := len(w.free) - 1; last >= 0 {
		b := w.free[last]
		w.free = w.free[:last]
		if cap(b) >= n {
			return b[:n]
		}
	}
	return make([]byte, n, max(n, bufferSize))
}

var poison = bytes.Repeat([]byte{0xdb}, bufferSize)

// Release overwrites a packet and lets its buffer be used again.
func (w *Network[Node]) Release(b []byte) {
	for rest := b; len(rest) > 0; {
		rest = rest[copy(rest, poison):]
	}
	w.free = append(w.free, b)
}
