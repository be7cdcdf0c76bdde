package fabric

import (
	"math/rand/v2"
	"time"
)

// LinkConfig is what a link does to the packets of one direction. The zero value delivers all
// of them at once.
type LinkConfig struct {
	Latency time.Duration // from the end of transmission to arrival
	Jitter  time.Duration // the greatest addition to Latency; packets stay in order

	Rate  int64 // bytes per second; zero: no limit
	Queue int   // bytes that wait for transmission or are in it; more are dropped. Zero: no limit
	Mark  int   // waiting bytes from which ECN-capable packets are marked; zero: never

	// Probabilities from 0 to 1, drawn for each packet.
	Loss       float64
	Duplicate  float64 // it arrives twice
	Reorder    float64 // it arrives after packets that were sent later
	Corrupt    float64 // one or three of its bits are flipped
	RandomMark float64 // it is marked however few bytes wait, if it is ECN-capable
	// ReorderDelay is the greatest delay of a reordered packet. Zero: ten times Latency, and
	// at least 10 µs.
	ReorderDelay time.Duration
	// MTU is the largest IP packet in bytes. Zero: no limit.
	MTU int
}

// Link carries packets in one direction. Change Config at any time.
type Link struct {
	Config LinkConfig
	// Overhead is what each packet takes on the link besides its own bytes. MTU does not count it.
	Overhead int
	Counts
	random *rand.Rand
	free   time.Duration // when the last packet has been transmitted
	last   time.Duration // when the last packet arrives
}

// Counts counts the packets of a link.
type Counts struct {
	Sent       uint64 // packets given to the link, lost ones included
	Bytes      uint64 // of these, with Link.Overhead
	Lost       uint64 // by Loss
	Overflowed uint64 // found no room in the queue
	TooLong    uint64 // longer than MTU
	Marked     uint64 // marked "congestion experienced"
	Duplicated uint64 // that arrive twice
	Reordered  uint64 // that are late by up to ReorderDelay
	Corrupted  uint64 // with flipped bits
	Deepest    uint64 // the most bytes that have waited for transmission
}

// Add adds the counts of another link. Deepest becomes the greater of both.
func (c *Counts) Add(o *Counts) {
	c.Sent += o.Sent
	c.Bytes += o.Bytes
	c.Lost += o.Lost
	c.Overflowed += o.Overflowed
	c.TooLong += o.TooLong
	c.Marked += o.Marked
	c.Duplicated += o.Duplicated
	c.Reordered += o.Reordered
	c.Corrupted += o.Corrupted
	c.Deepest = max(c.Deepest, o.Deepest)
}

// NewLink returns a link that draws from random.
func NewLink(c LinkConfig, random *rand.Rand) *Link { return &Link{Config: c, random: random} }

// Arrival is a packet at the end of a link.
type Arrival struct {
	At      time.Duration
	Marked  bool // congestion experienced
	Corrupt bool // apply Link.Corrupt to it
}

// Carry takes a packet of n bytes that is handed to the link now. It returns its arrivals: one,
// none if it is lost, two if it is duplicated. capable: the packet can be marked.
func (l *Link) Carry(now time.Duration, n int, capable bool) (arrivals [2]Arrival, count int) {
	c := &l.Config
	l.Sent++
	l.Bytes += uint64(n + l.Overhead)
	if c.MTU > 0 && n > c.MTU {
		l.TooLong++
		return arrivals, 0
	}
	n += l.Overhead
	crowded := false
	if c.Rate > 0 {
		waiting := 0
		if l.free > now {
			waiting = int(float64(l.free-now) * float64(c.Rate) / float64(time.Second))
		}
		if c.Queue > 0 && waiting+n > c.Queue {
			l.Overflowed++
			return arrivals, 0
		}
		crowded = c.Mark > 0 && waiting >= c.Mark
		l.Deepest = max(l.Deepest, uint64(waiting+n))
		l.free = max(l.free, now) + time.Duration(float64(n)*float64(time.Second)/float64(c.Rate))
	} else {
		l.free = max(l.free, now)
	}
	if l.chance(c.Loss) {
		l.Lost++
		return arrivals, 0
	}
	marked := capable && (crowded || l.chance(c.RandomMark))
	if marked {
		l.Marked++
	}
	arrivals[0] = Arrival{At: l.arrival(), Marked: marked, Corrupt: l.corrupts()}
	count = 1
	if l.chance(c.Duplicate) {
		l.Duplicated++
		arrivals[1] = Arrival{At: l.arrival(), Marked: marked, Corrupt: l.corrupts()}
		count = 2
	}
	return arrivals, count
}

// arrival returns when a packet arrives that has been transmitted at l.free.
func (l *Link) arrival() time.Duration {
	c := &l.Config
	at := l.free + c.Latency
	if c.Jitter > 0 {
		at += time.Duration(l.random.Int64N(int64(c.Jitter) + 1))
	}
	if l.chance(c.Reorder) {
		l.Reordered++
		delay := c.ReorderDelay
		if delay <= 0 {
			delay = max(10*c.Latency, 10*time.Microsecond)
		}
		return at + time.Duration(l.random.Int64N(int64(delay)+1))
	}
	l.last = max(at, l.last+1)
	return l.last
}

func (l *Link) corrupts() bool {
	if !l.chance(l.Config.Corrupt) {
		return false
	}
	l.Corrupted++
	return true
}

func (l *Link) chance(p float64) bool { return p > 0 && l.random.Float64() < p }

// Corrupt flips one or three bits of b: an odd number cannot undo itself.
func (l *Link) Corrupt(b []byte) {
	if len(b) == 0 {
		return
	}
	for range 1 + 2*l.random.IntN(2) {
		b[l.random.IntN(len(b))] ^= 1 << l.random.IntN(8)
	}
}
