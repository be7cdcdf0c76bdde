// Package plan defines what verbena perf measures. The client makes a Plan from its flags and
// sends it to the server. The server validates it, because it comes from the network.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Plan is one test, of one or more sizes, over one set of connections.
type Plan struct {
	Test          Test          `json:"test"`
	Sizes         []int         `json:"sizes"`      // bytes, each measured in turn
	Rounds        int           `json:"rounds"`     // how often all sizes are measured
	Iterations    int64         `json:"iterations"` // on each connection, or batches; zero: measure for Duration
	Duration      time.Duration `json:"duration_ns"`
	WarmUp        time.Duration `json:"warm_up_ns"`  // before each measurement
	Depth         int           `json:"depth"`       // operations in flight on each connection, or to each peer
	RecvDepth     int           `json:"recv_depth"`  // receives of each engine
	Batch         int           `json:"batch"`       // operations that are posted together, or items of a batch
	Moderation    int           `json:"moderation"`  // operations per signaled completion
	Connections   int           `json:"connections"` // with Batches: peers, each an agent of the server
	Engines       int           `json:"engines"`     // over which the connections are spread, at both ends
	Bidirectional bool          `json:"bidirectional"`
	Events        bool          `json:"events"`            // the ends sleep rather than poll
	Spin          time.Duration `json:"spin_ns,omitempty"` // with Events: how long the ends poll before they sleep
	Verify        bool          `json:"verify"`
	CM            bool          `json:"cm"`  // the connection manager makes the connections
	MTU           int           `json:"mtu"` // zero: the largest that both ports support
	AckTimeout    time.Duration `json:"ack_timeout_ns"`
	Inline        int           `json:"inline"` // bytes; zero: the SDK chooses
	SL            int           `json:"sl"`
	TrafficClass  int           `json:"traffic_class"`
}

// Limits are the most that a plan may ask for.
type Limits struct {
	Memory      int64 // bytes registered at one end
	Connections int
	Engines     int
}

// The limits of every plan.
const (
	MaxSize       = 1 << 30
	maxSizes      = 64
	maxRounds     = 10_000
	maxDuration   = 24 * time.Hour
	maxDepth      = 1 << 16
	maxOperations = 1 << 20 // tasks of one end
	pingDepth     = 16      // tasks of an end that plays ping-pong
	pingReceives  = 64
	maxInline     = 4096
	maxItems      = 1 << 16
	maxPeers      = 256
	maxItemDepth  = 1024 // of package transfer
)

// DefaultDepth and DefaultIterations are perftest's. DefaultOperations bounds the operations
// in flight on all connections together, if no depth is given.
const (
	DefaultDepth             = 128
	DefaultOperations        = 1 << 17
	DefaultIterations        = 5000
	DefaultLatencyIterations = 1000
)

// DefaultItems is how many items a batch has. DefaultItemDepth is that of package transfer.
const (
	DefaultItems     = 256
	DefaultItemDepth = 64
)

// AllSizes returns the sizes of perftest's -a: powers of two.
func AllSizes() (list []int) {
	for s := 2; s <= 1<<23; s *= 2 {
		list = append(list, s)
	}
	return list
}

// Complete fills in defaults for zero fields, and fields that follow from others.
func (p *Plan) Complete() {
	latency := p.Test.Kind == Latency
	switch {
	case p.Test.Op.Atomic():
		p.Sizes = []int{8}
	case len(p.Sizes) > 0:
	case latency:
		p.Sizes = []int{2}
	default:
		p.Sizes = []int{65536}
	}
	batch := 1
	if p.Test.Kind == Batches {
		batch = DefaultItems
		p.Depth = cmp.Or(p.Depth, DefaultItemDepth)
		if p.Iterations == 0 {
			p.Duration = cmp.Or(p.Duration, time.Second)
		}
	}
	if p.Iterations == 0 && p.Duration == 0 {
		p.Iterations = DefaultIterations
		if latency {
			p.Iterations = DefaultLatencyIterations
		}
	}
	for _, f := range []struct {
		value *int
		zero  int
	}{{&p.Rounds, 1}, {&p.Connections, 1}, {&p.Engines, 1}, {&p.Batch, batch}, {&p.Moderation, 1}} {
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	if p.Depth == 0 {
		p.Depth = max(min(DefaultDepth, DefaultOperations/max(p.Connections, 1)), 1)
		p.Depth = max(p.Depth, min(p.Batch, DefaultDepth), min(p.Moderation, DefaultDepth))
	}
	if latency {
		p.Depth = 1
		if p.Test.EachWay() {
			p.Depth = pingDepth
		}
	}
	if p.RecvDepth == 0 && p.Test.Op.Receives() {
		p.RecvDepth = pingReceives
		if !latency {
			p.RecvDepth = min(max(512, 2*p.Depth*p.ConnectionsOf(0)), 8192)
		}
	}
}

// Validate checks a complete plan.
func (p *Plan) Validate(l Limits) error {
	for _, check := range []func(Limits) error{p.validateSizes, p.validateCounts, p.validateTimes, p.validateKind} {
		if err := check(l); err != nil {
			return err
		}
	}
	if need := p.Memory(); need > l.Memory {
		return fmt.Errorf("the test needs %d bytes of memory at each end, the limit is %d; use smaller sizes, fewer connections or a smaller depth (with verification each operation has its own memory), or raise the limit (-max-memory)", need, l.Memory)
	}
	return nil
}

func (p *Plan) validateSizes(Limits) error {
	if len(p.Sizes) < 1 || len(p.Sizes) > maxSizes {
		return fmt.Errorf("%d sizes are given; the number must be 1 to %d", len(p.Sizes), maxSizes)
	}
	for _, s := range p.Sizes {
		if s < 1 || s > MaxSize {
			return fmt.Errorf("the size is %d bytes; it must be 1 to %d", s, MaxSize)
		}
		if p.Test.Op.Atomic() && s != 8 {
			return fmt.Errorf("the size is %d bytes; atomic operations have 8", s)
		}
	}
	return nil
}

func (p *Plan) validateCounts(l Limits) error {
	connections, mostBatch, mostDepth := "connections", p.Depth, maxDepth
	if p.Test.Kind == Batches {
		connections, mostBatch, mostDepth, l.Connections = "peers", maxItems, maxItemDepth, min(l.Connections, maxPeers)
	}
	for _, f := range []struct {
		name        string
		value       int
		least, most int
	}{
		{"number of rounds", p.Rounds, 1, maxRounds},
		{"number of " + connections, p.Connections, 1, l.Connections},
		{"number of engines", p.Engines, 1, l.Engines},
		{"depth", p.Depth, 1, mostDepth},
		{"number of receives", p.RecvDepth, 0, maxDepth},
		{"batch", p.Batch, 1, mostBatch},
		{"number of operations for one completion", p.Moderation, 1, p.Depth},
		{"number of bytes inline", p.Inline, 0, maxInline},
		{"service level", p.SL, 0, 15},
		{"traffic class", p.TrafficClass, 0, 255},
	} {
		if f.value < f.least || f.value > f.most {
			return fmt.Errorf("the %s is %d; it must be %d to %d", f.name, f.value, f.least, f.most)
		}
	}
	switch {
	case p.Engines > p.Connections:
		return fmt.Errorf("there are %d engines for %d connections; each engine needs at least one", p.Engines, p.Connections)
	case p.Depth*p.Connections > maxOperations:
		return fmt.Errorf("a depth of %d on %d connections makes %d operations; the limit is %d", p.Depth, p.Connections, p.Depth*p.Connections, maxOperations)
	case p.Test.Op.Receives() && p.RecvDepth < 1:
		return errors.New("the test needs receives")
	case p.MTU != 0 && !verbs.MTU(p.MTU).Valid():
		return fmt.Errorf("the path MTU is %d; it must be 256, 512, 1024, 2048 or 4096", p.MTU)
	}
	return nil
}

func (p *Plan) validateTimes(Limits) error {
	switch {
	case (p.Iterations == 0) == (p.Duration == 0):
		return fmt.Errorf("both %d iterations and a duration of %v are given; choose one", p.Iterations, p.Duration)
	case p.Iterations < 0 || p.Iterations > math.MaxInt32:
		return fmt.Errorf("the number of iterations is %d; it must be 1 to %d", p.Iterations, math.MaxInt32)
	case p.Duration < 0 || p.Duration > maxDuration:
		return fmt.Errorf("the duration is %v; the limit is %v", p.Duration, maxDuration)
	case p.WarmUp < 0 || p.WarmUp > maxDuration:
		return fmt.Errorf("the warm-up is %v; it must be 0 to %v", p.WarmUp, maxDuration)
	case p.Spin < 0 || p.Spin > maxDuration || p.Spin > 0 && !p.Events:
		return fmt.Errorf("the time that an engine polls before it sleeps is %v; it must be 0 to %v, and 0 without events", p.Spin, maxDuration)
	case p.AckTimeout < 0 || p.AckTimeout > maxDuration:
		return fmt.Errorf("the timeout of acknowledgements is %v; it must be 0 to %v", p.AckTimeout, maxDuration)
	}
	return nil
}

func (p *Plan) validateKind(Limits) error {
	switch p.Test.Kind {
	case Bandwidth:
		return nil
	case Batches:
		return p.validateBatches()
	}
	switch {
	case p.Connections != 1:
		return fmt.Errorf("latency is measured on one connection, not on %d", p.Connections)
	case p.Bidirectional:
		return errors.New("a latency test sends one message at a time, so it cannot measure both directions at once")
	case p.Events && p.Test.Op == Write:
		return errors.New("a latency test of writes cannot wait for events, because a write notifies nobody; measure write_imm_lat or send_lat")
	}
	return nil
}

// validateBatches refuses what the agents of package transfer decide themselves.
func (p *Plan) validateBatches() error {
	for _, f := range []struct {
		flag string
		used bool
	}{
		{"-engines", p.Engines != 1}, {"-b", p.Bidirectional}, {"-e", p.Events}, {"-Q", p.Moderation != 1}, {"-r", p.RecvDepth != 0}, {"-m", p.MTU != 0},
		{"-u", p.AckTimeout != 0}, {"-I", p.Inline != 0}, {"-S", p.SL != 0}, {"-tclass", p.TrafficClass != 0},
	} {
		if f.used {
			return fmt.Errorf("%s cannot be used with batches, for which package transfer has no such setting", f.flag)
		}
	}
	return nil
}

// Steps is how many measurements there are.
func (p *Plan) Steps() int { return p.Rounds * len(p.Sizes) }

// Step returns the round, from 0, and the size of a step. Sizes are measured in turns, so that
// a change on the machine affects all of them.
func (p *Plan) Step(i int) (round, size int) { return i / len(p.Sizes), p.Sizes[i%len(p.Sizes)] }

// ConnectionsOf is how many connections an engine has. No engine has more than engine 0.
func (p *Plan) ConnectionsOf(engine int) int {
	n := p.Connections / p.Engines
	if engine < p.Connections%p.Engines {
		n++
	}
	return n
}

// Active reports whether an end submits operations. The client always does.
func (p *Plan) Active(server bool) bool { return !server || p.Bidirectional || p.Test.EachWay() }

// Polls reports whether an end's engines poll. An end that only serves reads, writes and
// atomics of the other end sleeps, as a program in that place would.
func (p *Plan) Polls(server bool) bool {
	return !p.Events && p.Test.Kind != Batches && (p.Active(server) || p.Test.Op.Receives())
}

// TakesMessages reports whether an end has receives.
func (p *Plan) TakesMessages(server bool) bool {
	return p.Test.Op.Receives() && (server || p.Bidirectional || p.Test.Kind == Latency)
}
