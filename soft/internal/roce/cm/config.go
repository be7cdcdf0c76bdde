package cm

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Config configures a manager. A zero field means its default.
type Config struct {
	// Random returns unpredictable numbers. Default: crypto/rand.
	Random func() uint64
	// CAGUID identifies the device to peers. It must differ between processes: otherwise a
	// peer would mistake the connections of one for those of the other. Default: a random,
	// locally administered one.
	CAGUID uint64
	// Slot is what the communication and request IDs have in their four lowest bits.
	Slot int
	// MTU is the largest path MTU of the port. Default: 4096.
	MTU verbs.MTU
	// Requests returns a function that reports whether the requests that a queue pair has at the
	// time of the call are complete. It returns nil if there are none. The manager calls Requests
	// in Receive, and what it returned in Expire. It answers a DREQ when the requests are complete,
	// or after half a second. Default: DREQs are answered at once.
	Requests func(qpn uint32) (complete func() bool)
	// TargetAckDelay is the code of the time within which this device acknowledges (IBTA
	// 12.7). Default: 15, 134 ms.
	TargetAckDelay uint8
	// MaxConnections limits connections in all states, including time-wait. Requests beyond it
	// are dropped. Default: 65,536.
	MaxConnections int
	// MaxHalfOpen limits the handshakes and SIDR requests of peers in progress, over all
	// listeners. The peers of one address may have as many as are free, so half of them at most.
	// Default: 4,096.
	MaxHalfOpen int
	// HandshakeTimeout limits each wait of a handshake that may never end: for the application
	// to Accept or Establish, and for the RTU. Default: 60 s.
	HandshakeTimeout time.Duration
	// MaxServiceTimeout limits how much one MRA prolongs a wait. Default: 70 s.
	MaxServiceTimeout time.Duration
	// MaxTimeWait limits the time-wait that a peer can demand. Default: 2.2 s.
	MaxTimeWait time.Duration
}

// Defaults of Config and of parameters.
const (
	defaultMaxConnections    = 1 << 16
	defaultMaxHalfOpen       = 4096
	defaultHandshakeTimeout  = time.Minute
	defaultMaxServiceTimeout = 70 * time.Second
	defaultMaxTimeWait       = 2200 * time.Millisecond
	defaultTargetAckDelay    = 15
	defaultAckTimeout        = 17 // 0.5 s
	defaultResponseTimeout   = 18 // 1.07 s
	defaultMaxCMRetries      = 15
	defaultBacklog           = 1024
)

func (c Config) withDefaults() Config {
	if c.Random == nil {
		c.Random = randomUint64
	}
	if c.CAGUID == 0 {
		c.CAGUID = c.Random()&0x00ffffffffffffff | 0x02<<56
	}
	if c.MTU == 0 {
		c.MTU = 4096
	}
	setDefault(&c.TargetAckDelay, defaultTargetAckDelay)
	setDefault(&c.MaxConnections, defaultMaxConnections)
	setDefault(&c.MaxHalfOpen, defaultMaxHalfOpen)
	setDefault(&c.HandshakeTimeout, defaultHandshakeTimeout)
	setDefault(&c.MaxServiceTimeout, defaultMaxServiceTimeout)
	setDefault(&c.MaxTimeWait, defaultMaxTimeWait)
	return c
}

func setDefault[T comparable](field *T, value T) {
	if zero := *new(T); *field == zero {
		*field = value
	}
}

func randomUint64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint64(b[:])
}
