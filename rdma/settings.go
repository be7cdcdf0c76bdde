package rdma

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma/internal/deviceport"
	"github.com/verbena-rdma/verbena/verbs"
)

// settings is a Config that has been checked, with all defaults filled in.
type settings struct {
	Config
	qkey        uint32 // of datagrams
	pKeyIndex   int    // of datagrams
	unsolicited bool   // see DatagramsConfig.UnsolicitedWriteRecv
	caps        Capabilities
	access      verbs.Access // what peers may do
	port        *deviceport.Port
	ports       int  // of the device
	cmPathMTU   bool // the connection manager keeps to it
	rnrRetry    uint8
	timeout     uint8 // code
	adaptive    bool  // the device may choose time-out and repetitions
	// The reads and atomics under way at a time: accepted from the peer, and begun by this end.
	destReads, initReads int
	sendSGE, recvSGE     int // longest lists
	// receivesShared: the device has shared receive queues, so that a context's receives are
	// for all of its connections. Otherwise each connection has a share of them.
	receivesShared bool
	maxCQE         int
	// completionFields are the optional fields that completions have.
	completionFields verbs.WCFields
	maxAH            int
	// rnrRetrySettable: the number of receiver-not-ready retries of datagrams can be set.
	rnrRetrySettable bool
	inline           int // largest data of a send or write that is posted inline, in bytes
}

const (
	defaultSGE            = 4
	defaultSendQueue      = 256
	defaultConnectTimeout = time.Minute
	defaultKeepalive      = 2 * time.Second
	defaultCloseTimeout   = time.Second
	defaultSilenceTimeout = 4 * time.Second
	// longestTimeout can be added to the age of a context without overflow.
	longestTimeout    = math.MaxInt64 / 2
	defaultAckTimeout = ackTimeUnit << 16
	// retryCount is one less than the maximum, with which rxe repeats for ever.
	retryCount = 6
	// minRNRTimer is the code of 640 µs (IBTA 9.7.5.2.8, table 46), which peers are told to wait
	// before they repeat a message that found no receive.
	minRNRTimer = 12
	ackTimeUnit = 4096 * time.Nanosecond
	// readLimit bounds the reads and atomics under way at a time: more seldom help, and each costs
	// the device memory on every connection.
	readLimit = 16
	// sgeSize is the room of a buffer in an entry of a send queue, in bytes.
	sgeSize = 16
)

// resolve checks a configuration. datagrams is nil for a context of connections.
func resolve(dev verbs.Device, cfg Config, datagrams *DatagramsConfig) (*settings, error) {
	if dev == nil {
		return nil, fmt.Errorf("%w: no device is given; open one first", ErrInvalid)
	}
	s := &settings{Config: cfg}
	attr, err := dev.Query()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", dev.Name(), err)
	}
	s.caps, s.cmPathMTU = capabilitiesOf(dev, &attr, s.Transport), attr.CMPathMTU
	s.maxCQE, s.maxAH, s.ports = attr.MaxCQE, attr.MaxAH, attr.Ports
	s.destReads, s.initReads, s.receivesShared = min(attr.MaxQPReadAtomic, readLimit), min(s.caps.MaxReadAtomic, readLimit), attr.MaxSRQ > 0
	if s.Transport == verbs.UC { // not every device has shared receive queues for it
		s.destReads, s.receivesShared = 0, false
	}
	s.inline = attr.MaxInline
	if err := s.setTransport(dev, datagrams, &attr.SRD); err != nil {
		return nil, err
	}
	if s.Name == "" {
		s.Name = "rdma"
	}
	if s.PD == nil {
		s.PD = dev.DefaultPD()
	} else if s.PD.Device() != dev {
		return nil, fmt.Errorf("%w: Config.PD belongs to %s; use a protection domain of %s", ErrInvalid, s.PD.Device().Name(), dev.Name())
	}
	if s.Path.Port == 0 {
		s.Path.Port = 1
	}
	if s.Path.Port < 1 || s.Path.Port > attr.Ports {
		return nil, fmt.Errorf("%w: Config.Path.Port is %d; %s has ports 1 to %d", ErrRange, s.Path.Port, dev.Name(), attr.Ports)
	}
	s.setAccess()
	if err := s.setPath(dev); err != nil {
		return nil, err
	}
	if err := s.setRetries(); err != nil {
		return nil, err
	}
	return s, s.setSizes(dev)
}

// setTransport checks what concerns the transport service.
func (s *settings) setTransport(dev verbs.Device, datagrams *DatagramsConfig, srd *verbs.SRDAttr) error {
	switch {
	case datagrams == nil && s.Transport != verbs.RC && s.Transport != verbs.UC:
		return fmt.Errorf("%w: Config.Transport is %v; connections use RC or UC; NewDatagrams makes a context of UD or SRD", ErrInvalid, s.Transport)
	case datagrams != nil && s.Transport != verbs.UD && s.Transport != verbs.SRD:
		return fmt.Errorf("%w: DatagramsConfig.Transport is %v; datagrams use UD or SRD; New makes a context of RC or UC", ErrInvalid, s.Transport)
	case !s.caps.Transports.Has(s.Transport):
		return fmt.Errorf("%w: %s has no transport service %v", ErrNotSupported, dev.Name(), s.Transport)
	case datagrams == nil:
		return nil
	case datagrams.UnsolicitedWriteRecv && !(s.Transport == verbs.SRD && srd.UnsolicitedWriteRecv):
		return fmt.Errorf("%w: DatagramsConfig.UnsolicitedWriteRecv with %v on %s", ErrNotSupported, s.Transport, dev.Name())
	case datagrams.QKey >= 1<<31:
		return fmt.Errorf("%w: DatagramsConfig.QKey is %#x; Q_Keys from 0x80000000 up are for privileged programs (IBTA 10.2.5)", ErrRange, datagrams.QKey)
	case datagrams.PKeyIndex < 0 || datagrams.PKeyIndex > math.MaxUint16:
		return fmt.Errorf("%w: DatagramsConfig.PKeyIndex is %d; it must be 0 to %d", ErrRange, datagrams.PKeyIndex, math.MaxUint16)
	}
	s.qkey, s.pKeyIndex, s.unsolicited = cmp.Or(datagrams.QKey, DefaultQKey), datagrams.PKeyIndex, datagrams.UnsolicitedWriteRecv
	if s.Transport == verbs.SRD {
		s.inline = min(s.inline, srd.MaxInline)
		s.rnrRetrySettable = srd.RNRRetry
		s.completionFields = verbs.WCSource
	}
	return nil
}

// headerEntries is how many scatter-gather entries a receive needs besides those for its
// buffers.
func (s *settings) headerEntries() int {
	if s.Transport == verbs.UD {
		return 1
	}
	return 0
}

func (s *settings) setAccess() {
	s.Permissions &= mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic
	s.access = verbs.AccessRemoteWrite // see Config.Permissions
	if s.Transport == verbs.UC {
		s.Permissions &= mmap.RemoteWrite
	}
	for _, right := range [...]struct {
		p mmap.Permission
		a verbs.Access
	}{
		{mmap.RemoteRead, verbs.AccessRemoteRead},
		{mmap.RemoteAtomic, verbs.AccessRemoteAtomic},
	} {
		if s.Permissions.Has(right.p) {
			s.access |= right.a
		}
	}
}

// setPath fills in what concerns the port and the packets.
func (s *settings) setPath(dev verbs.Device) error {
	port, err := deviceport.Usable(dev, s.Path.Port)
	if err != nil {
		return err
	}
	switch {
	case s.Path.MTU == 0:
	case !s.Path.MTU.Valid():
		return fmt.Errorf("%w: Config.Path.MTU is %d; it must be 256, 512, 1024, 2048 or 4096", ErrRange, s.Path.MTU)
	case s.Path.MTU > port.ActiveMTU:
		return fmt.Errorf("%w: Config.Path.MTU is %d; port %d of %s carries at most %d now", ErrRange, s.Path.MTU, s.Path.Port, dev.Name(), port.ActiveMTU)
	}
	maxSL := uint8(15)
	if port.LinkLayer == verbs.LinkEthernet {
		maxSL = 7
	}
	if s.Path.SL > maxSL {
		return fmt.Errorf("%w: Config.Path.SL is %d; it must be 0 to %d on this port", ErrRange, s.Path.SL, maxSL)
	}
	s.port, err = deviceport.New(dev, s.Path.Port, &port, s.Path.GIDIndex, s.Path.MTU)
	return err
}

// path is the address attributes for packets to a device from an entry of the GID table;
// source is the UDP port that the device sends from.
func (s *settings) path(sgidIndex int, gid verbs.GID, lid, udpPort, source uint16) verbs.AddressAttr {
	a := verbs.AddressAttr{DGID: gid, SGIDIndex: sgidIndex, Port: s.Path.Port, DLID: lid, UDPPort: udpPort, SourceUDPPort: source}
	s.putPathFields(&a)
	return a
}

// putPathFields sets the fields of a path that the configuration sets. The others keep the
// choice of the connection manager, or zero.
func (s *settings) putPathFields(a *verbs.AddressAttr) {
	a.SL = cmp.Or(s.Path.SL, a.SL)
	a.TrafficClass = cmp.Or(s.Path.TrafficClass, a.TrafficClass)
}

func (s *settings) setRetries() error {
	s.adaptive = s.Transport == verbs.RC && s.AckTimeout == 0
	if s.Transport == verbs.UC {
		if s.Keepalive != 0 && s.Keepalive != None {
			return fmt.Errorf("%w: Config.Keepalive is %s; UC has no keepalives, since it acknowledges nothing", ErrInvalid, durationName(s.Keepalive))
		}
		s.Keepalive = None
	}
	switch s.RNRRetry = cmp.Or(s.RNRRetry, Forever); {
	case s.RNRRetry == Forever:
		s.rnrRetry = verbs.InfiniteRNRRetry
	case s.RNRRetry == None:
	case s.RNRRetry < 0 || s.RNRRetry >= verbs.InfiniteRNRRetry:
		return fmt.Errorf("%w: Config.RNRRetry is %d; it must be 1 to %d, None or Forever", ErrRange, s.RNRRetry, verbs.InfiniteRNRRetry-1)
	default:
		s.rnrRetry = uint8(s.RNRRetry)
	}
	for _, d := range [...]struct {
		name  string
		value *time.Duration
		zero  time.Duration
		has   [2]bool // None, Forever
	}{
		{"ConnectTimeout", &s.ConnectTimeout, defaultConnectTimeout, [2]bool{false, true}},
		{"Keepalive", &s.Keepalive, defaultKeepalive, [2]bool{true, false}},
		{"CloseTimeout", &s.CloseTimeout, defaultCloseTimeout, [2]bool{true, false}},
		{"SilenceTimeout", &s.SilenceTimeout, defaultSilenceTimeout, [2]bool{}},
		{"AckTimeout", &s.AckTimeout, defaultAckTimeout, [2]bool{false, true}},
	} {
		v := *d.value
		if v < 0 && !(v == None && d.has[0]) && !(v == Forever && d.has[1]) {
			return fmt.Errorf("%w: Config.%s is %s; it must be positive, or 0 for %v", ErrRange, d.name, durationName(v), d.zero)
		}
		*d.value = min(cmp.Or(v, d.zero), longestTimeout)
	}

	switch longest := ackTimeUnit << 31; {
	case s.AckTimeout == Forever:
	case s.AckTimeout > longest:
		return fmt.Errorf("%w: Config.AckTimeout is %v; it must be at most %v, or Forever", ErrRange, s.AckTimeout, longest)
	default:
		s.timeout = 1
		for ackTimeUnit<<s.timeout < s.AckTimeout {
			s.timeout++
		}
		s.AckTimeout = ackTimeUnit << s.timeout
	}
	return nil
}

// durationName is the text of a duration of a configuration.
func durationName(d time.Duration) string {
	switch d {
	case None:
		return "None"
	case Forever:
		return "Forever"
	}
	return d.String()
}

func (s *settings) setSizes(dev verbs.Device) error {
	maxSGE := max(s.caps.MaxSendSGE, s.caps.MaxRecvSGE)
	for _, f := range []struct {
		name  string
		value *int
		zero  int
		most  int
	}{
		{"MaxConnections", &s.MaxConnections, min(1, s.caps.MaxConnections), s.caps.MaxConnections},
		{"SendQueueSize", &s.SendQueueSize, 0, s.caps.MaxSends},
		{"MaxSGE", &s.MaxSGE, min(defaultSGE, maxSGE), maxSGE},
	} {
		if *f.value < 0 || *f.value > f.most {
			return fmt.Errorf("%w: Config.%s is %d; %s allows %d at most", ErrRange, f.name, *f.value, dev.Name(), f.most)
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	s.sendSGE, s.recvSGE = min(s.MaxSGE, s.caps.MaxSendSGE), min(s.MaxSGE, s.caps.MaxRecvSGE)
	s.inline = min(s.inline, sgeSize*max(s.sendSGE, defaultSGE))
	return nil
}
