package admission

import (
	"time"

	"github.com/rs/zerolog"
)

// Config configures the Control of a device.
type Config struct {
	Device string // its name, for the log
	Log    zerolog.Logger
	Now    func() time.Duration
	// Deadline requests a call of [MADs.Expire] at that time. The lock of the first shard
	// is held.
	Deadline func(at time.Duration)
	// Random returns unpredictable numbers. Nil: those of [Random].
	Random func() uint32
}

// Control decides what one device admits.
type Control struct {
	Keys    Keys
	MADs    MADs
	Senders Senders
	Numbers Numbers

	cfg     Config
	entries []*Entry
}

// New returns the control of a device.
func New(cfg Config) *Control {
	if cfg.Random == nil {
		cfg.Random = Random
	}
	c := &Control{cfg: cfg, Senders: make(Senders), Numbers: newNumbers(cfg.Random)}
	c.Keys = Keys{control: c, hosts: newHostBuckets(cfg.Random)}
	c.MADs = MADs{control: c, sources: newHostBuckets(cfg.Random)}
	return c
}

// logInterval is the least time between two log lines about the same event.
const logInterval = 10 * time.Second

// Verdict is the decision on a packet.
type Verdict uint8

// The verdicts.
const (
	Admitted    Verdict = iota
	WrongPeer           // not from the peer of its queue pair, or not of the default partition
	WrongSource         // from the peer's address, but not from its port
)

// DefaultPartition reports whether a P_Key is of the partition that all ports are in.
func DefaultPartition(key uint16) bool { return key&0x7fff == 0x7fff }
