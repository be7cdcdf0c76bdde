package admission

import (
	"time"

	"github.com/rs/zerolog"
)

// Config configures what a device admits.
type Config struct {
	Device string // its name, for the log
	Log    zerolog.Logger
	Now    func() time.Duration
	// Deadline asks for a call of [Messages.Expire] at that time. The lock of the first shard
	// is held.
	Deadline func(at time.Duration)
}

// Control is what one device admits.
type Control struct {
	Keys     Keys
	Messages Messages
	Senders  Senders
	Numbers  Numbers

	cfg     Config
	entries []*Entry
}

// New returns the control of a device.
func New(cfg Config) *Control {
	c := &Control{cfg: cfg, Senders: make(Senders), Numbers: newNumbers()}
	c.Keys = Keys{control: c, hosts: newHostBuckets()}
	c.Messages = Messages{control: c, sources: newHostBuckets()}
	return c
}

// logInterval is the least time between two lines of the log about the same.
const logInterval = 10 * time.Second

// Verdict is what becomes of a packet.
type Verdict uint8

// The verdicts.
const (
	Admitted    Verdict = iota
	WrongPeer           // it is not from the peer of its queue pair, or not of the default partition
	WrongSource         // it is from the peer's address, and not from its port
)

// DefaultPartition reports whether a P_Key is of the partition that all ports are in.
func DefaultPartition(key uint16) bool { return key&0x7fff == 0x7fff }
