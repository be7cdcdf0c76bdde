package rdma

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/gid"
)

// DefaultDrainTimeout is that of Config.DrainTimeout.
const DefaultDrainTimeout = lane.DefaultLimit

// settings is a Config that has been checked, with all defaults filled in.
type settings struct {
	Config
	qkey        uint32 // of datagrams
	unsolicited bool   // see DatagramsConfig.UnsolicitedWriteRecv
	caps        Capabilities
	access      verbs.Access // what peers may do
	port        portView     // as New has found it
	gidGiven    bool         // by Config.Path.GIDIndex
	// mtuLimit is Config.Path.MTU as it was given, for connections by address.
	mtuLimit  verbs.MTU
	ports     int  // of the device
	cmPathMTU bool // the connection manager keeps to it
	rnrRetry  uint8
	retries   uint8
	timeout   uint8 // code
	adaptive  bool  // the device may choose time-out and repetitions
	rnrTimer  uint8 // code
	reads     int   // accepted from the peer at a time
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
	// One less than the maximum, with which rxe repeats for ever.
	defaultRetryCount  = 6
	defaultMinRNRTimer = 640 * time.Microsecond
	ackTimeUnit        = 4096 * time.Nanosecond
	maxRetryCount      = 7
	// readLimit bounds the reads and atomics under way at a time if the program does not: more
	// seldom help, and each costs the device memory on every connection.
	readLimit = 16
	// inlineLimit bounds the data that are posted inline, which spares the device a read of
	// the memory. Queue elements have room for that much anyway, because of the default list
	// of buffers.
	inlineLimit = 16 * defaultSGE
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
	s.reads, s.receivesShared = min(attr.MaxQPReadAtomic, cmp.Or(max(s.Queues.MaxReadAtomic, 0), readLimit)), attr.MaxSRQ > 0
	if s.Transport == verbs.UC { // not every device has shared receive queues for it
		s.reads, s.receivesShared = 0, false
	}
	if err := s.setInline(dev, attr.MaxInline); err != nil {
		return nil, err
	}
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
	if s.Path.PKeyIndex < 0 || s.Path.PKeyIndex > math.MaxUint16 {
		return nil, fmt.Errorf("%w: Config.Path.PKeyIndex is %d; it must be 0 to %d", ErrRange, s.Path.PKeyIndex, math.MaxUint16)
	}
	s.setAccess()
	if err := s.setPath(dev); err != nil {
		return nil, err
	}
	s.port = s.portView(s.port.gid, s.Path.MTU, s.port.lid)
	if s.Queues.MaxInline = s.inline; s.inline == 0 {
		s.Queues.MaxInline = None
	}
	if err := s.setRetries(); err != nil {
		return nil, err
	}
	return s, s.setSizes(dev)
}

// setInline sets how many bytes are posted inline; most is the device's limit.
func (s *settings) setInline(dev verbs.Device, most int) error {
	switch {
	case s.Queues.MaxInline > most || s.Queues.MaxInline < None:
		return fmt.Errorf("%w: Config.Queues.MaxInline is %d; %s allows 1 to %d, or None", ErrRange, s.Queues.MaxInline, dev.Name(), most)
	case s.Queues.MaxInline == 0:
		s.inline = min(most, inlineLimit)
	default:
		s.inline = max(s.Queues.MaxInline, 0)
	}
	return nil
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
	}
	s.qkey, s.unsolicited = cmp.Or(datagrams.QKey, DefaultQKey), datagrams.UnsolicitedWriteRecv
	if s.Transport == verbs.SRD {
		if s.Queues.MaxInline > srd.MaxInline {
			return fmt.Errorf("%w: Config.Queues.MaxInline is %d; SRD on %s allows %d at most", ErrRange, s.Queues.MaxInline, dev.Name(), srd.MaxInline)
		}
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
	port, err := usablePort(dev, s.Path.Port)
	if err != nil {
		return err
	}
	s.port.lid, s.mtuLimit = port.LID, s.Path.MTU
	switch {
	case s.Path.MTU == 0:
		s.Path.MTU = port.ActiveMTU
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
	if s.Path.FlowLabel > maxFlowLabel {
		return fmt.Errorf("%w: Config.Path.FlowLabel is %#x; it must fit in 20 bits", ErrRange, s.Path.FlowLabel)
	}
	if s.port.gid, err = gid.Find(dev, s.Path.Port, port.LinkLayer, s.Path.GIDIndex); err != nil {
		return err
	}
	s.gidGiven, s.Path.GIDIndex = s.Path.GIDIndex != nil, new(s.port.gid.Index)
	return nil
}

// maxFlowLabel is the greatest that an IPv6 header can have.
const maxFlowLabel = 1<<20 - 1

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
	a.HopLimit = cmp.Or(s.Path.HopLimit, a.HopLimit)
	a.FlowLabel = cmp.Or(s.Path.FlowLabel, a.FlowLabel)
}

func (s *settings) setRetries() error {
	s.adaptive = s.Transport == verbs.RC && s.Retries.AckTimeout == 0 && s.Retries.RetryCount == 0
	if s.Transport == verbs.UC {
		if s.Keepalive != 0 && s.Keepalive != None {
			return fmt.Errorf("%w: Config.Keepalive is %s; UC has no keepalives, since it acknowledges nothing", ErrInvalid, durationName(s.Keepalive))
		}
		s.Keepalive = None
	}
	var err error
	if s.rnrRetry, err = retryCode("Retries.RNRRetry", &s.Retries.RNRRetry, verbs.InfiniteRNRRetry-1, Forever); err != nil {
		return err
	}
	if s.retries, err = retryCode("Retries.RetryCount", &s.Retries.RetryCount, maxRetryCount, defaultRetryCount); err != nil {
		return err
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
		{"DrainTimeout", &s.DrainTimeout, DefaultDrainTimeout, [2]bool{}},
		{"Retries.SilenceTimeout", &s.Retries.SilenceTimeout, defaultSilenceTimeout, [2]bool{}},
		{"Retries.AckTimeout", &s.Retries.AckTimeout, defaultAckTimeout, [2]bool{false, true}},
		{"Retries.MinRNRTimer", &s.Retries.MinRNRTimer, defaultMinRNRTimer, [2]bool{}},
	} {
		v := *d.value
		if v < 0 && !(v == None && d.has[0]) && !(v == Forever && d.has[1]) {
			return fmt.Errorf("%w: Config.%s is %s; it must be positive, or 0 for %v", ErrRange, d.name, durationName(v), d.zero)
		}
		*d.value = min(cmp.Or(v, d.zero), longestTimeout)
	}

	switch longest := ackTimeUnit << 31; {
	case s.Retries.AckTimeout == Forever:
	case s.Retries.AckTimeout > longest:
		return fmt.Errorf("%w: Config.Retries.AckTimeout is %v; it must be at most %v, or Forever", ErrRange, s.Retries.AckTimeout, longest)
	default:
		s.timeout = 1
		for ackTimeUnit<<s.timeout < s.Retries.AckTimeout {
			s.timeout++
		}
		s.Retries.AckTimeout = ackTimeUnit << s.timeout
	}

	code, rounded, ok := rnrTimerCode(s.Retries.MinRNRTimer)
	if !ok {
		return fmt.Errorf("%w: Config.Retries.MinRNRTimer is %v; it must be 10 µs to 655.36 ms", ErrRange, s.Retries.MinRNRTimer)
	}
	s.rnrTimer, s.Retries.MinRNRTimer = code, rounded
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

// retryCode returns the code for a number of retries, and fills in the default.
func retryCode(field string, v *int, most, zero int) (uint8, error) {
	*v = cmp.Or(*v, zero)
	switch {
	case *v == None:
		return 0, nil
	case *v == Forever && zero == Forever:
		return verbs.InfiniteRNRRetry, nil
	case *v < 0 || *v > most:
		forever := ""
		if zero == Forever {
			forever = " or Forever"
		}
		return 0, fmt.Errorf("%w: Config.%s is %d; it must be 1 to %d, or None%s", ErrRange, field, *v, most, forever)
	}
	return uint8(*v), nil
}

// rnrTimers are the receiver-not-ready times by code, in units of 10 µs (IBTA
// 9.7.5.2.8, table 46).
var rnrTimers = [32]int{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
	1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// rnrTimerCode rounds up to the next time that has a code.
func rnrTimerCode(d time.Duration) (code uint8, rounded time.Duration, ok bool) {
	if d <= 0 {
		return 0, 0, false
	}
	// The longest time has the code 0, so it comes last.
	for i := 1; i <= len(rnrTimers); i++ {
		c := i % len(rnrTimers)
		if t := time.Duration(rnrTimers[c]) * 10 * time.Microsecond; t >= d {
			return uint8(c), t, true
		}
	}
	return 0, 0, false
}

func (s *settings) setSizes(dev verbs.Device) error {
	for _, f := range []struct {
		name  string
		value *int
		zero  int
		most  int
	}{
		{"MaxConnections", &s.MaxConnections, min(1, s.caps.MaxConnections), s.caps.MaxConnections},
		{"Queues.SendQueueSize", &s.Queues.SendQueueSize, 0, s.caps.MaxSends},
		{"Queues.RecvQueueSize", &s.Queues.RecvQueueSize, 0, s.caps.MaxReceives},
		{"Queues.MaxSendSGE", &s.Queues.MaxSendSGE, min(defaultSGE, s.caps.MaxSendSGE), s.caps.MaxSendSGE},
		{"Queues.MaxReadAtomic", &s.Queues.MaxReadAtomic, min(readLimit, s.caps.MaxReadAtomic), s.caps.MaxReadAtomic},
		{"Queues.MaxRecvSGE", &s.Queues.MaxRecvSGE, min(defaultSGE, s.caps.MaxRecvSGE), s.caps.MaxRecvSGE},
	} {
		if *f.value < 0 || *f.value > f.most {
			return fmt.Errorf("%w: Config.%s is %d; %s allows %d at most", ErrRange, f.name, *f.value, dev.Name(), f.most)
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	return nil
}
