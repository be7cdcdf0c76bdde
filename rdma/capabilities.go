package rdma

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

// Capabilities are the limits of contexts on a device.
type Capabilities struct {
	Transports verbs.Transports // of the device
	Transport  verbs.QPType     // of the contexts that the other fields describe

	MaxConnections int    // of one context; zero for contexts of datagrams
	MaxMessage     uint32 // bytes moved by one read or write
	MaxSend        uint32 // bytes of one message; with UD and SRD it fits into one packet
	MaxSendSGE     int    // buffers in the list of a send
	MaxRDMASGE     int    // buffers in the list of a read or write
	MaxRecvSGE     int    // buffers in the list of a receive; zero: no receives
	MaxSends       int    // tasks at the device at a time on one connection or endpoint
	MaxReceives    int    // receives at the device at a time
	MaxReadAtomic  int    // reads and atomics under way at a time on one connection

	MaxMTU  verbs.MTU // bytes of data in one packet
	Reads   bool      // reads
	Writes  bool      // writes, with immediate and without
	Atomics bool      // compare-and-swap, fetch-and-add, sync event additions
	// AtomicWrites: Pool.AtomicWrite. The software device has it.
	AtomicWrites bool
	Windows      bool // WindowPool, Task.SetInvalidate
	// ByAddress: Connections.Listen and Dial. On adapters they need librdmacm too.
	ByAddress bool
}

// String formats the capabilities as a table for people, without a final newline.
func (c Capabilities) String() string {
	var operations []string
	for op := OpReceive; op.known(); op++ {
		if c.Supports(op) {
			operations = append(operations, op.String())
		}
	}
	connect := "by descriptors"
	if c.ByAddress {
		connect += ", by address"
	}
	s := fmt.Sprintf(`RDMA contexts of %v
  transports      %v
  tasks           %s
`, c.Transport, c.Transports, strings.Join(operations, ", "))
	if c.connections() {
		s += fmt.Sprintf("  message         %d bytes\n  connections     %d in one context, %s\n", c.MaxMessage, c.MaxConnections, connect)
	} else {
		s += fmt.Sprintf("  message         %d bytes\n", c.MaxSend)
	}
	if c.Transport == verbs.SRD {
		s += fmt.Sprintf("  read, write     %d bytes\n", c.MaxMessage)
	}
	s += fmt.Sprintf("  sends           %d under way, of %d buffers\n  receives        %d posted, of %d buffers", c.MaxSends, c.MaxSendSGE, c.MaxReceives, c.MaxRecvSGE)
	if c.Transport == verbs.RC {
		s += fmt.Sprintf("\n  reads, atomics  %d under way on one connection", c.MaxReadAtomic)
	}
	return s
}

// connections reports whether the transport service has connections.
func (c *Capabilities) connections() bool { return c.Transport == verbs.RC || c.Transport == verbs.UC }

// connectionLimit is the largest number of connections of one context: each takes 16 bytes of
// registered memory from Start on.
const connectionLimit = receiving.MaxQueues

// QueryCapabilities asks a device what contexts of a transport service can do on it: RC, UC,
// UD or SRD. A service that the device lacks supports nothing. Its errors are the device's.
func QueryCapabilities(dev verbs.Device, transport verbs.QPType) (Capabilities, error) {
	if dev == nil {
		return Capabilities{}, fmt.Errorf("rdma: query capabilities: %w: no device is given; open one first", ErrInvalid)
	}
	attr, err := dev.Query()
	if err != nil {
		return Capabilities{}, fmt.Errorf("rdma: query capabilities of %s: %w", dev.Name(), err)
	}
	c := capabilitiesOf(dev, &attr, transport)
	for port := 1; port <= attr.Ports; port++ {
		p, err := dev.QueryPort(port)
		if err != nil {
			return Capabilities{}, fmt.Errorf("rdma: query capabilities of %s: port %d: %w", dev.Name(), port, err)
		}
		c.MaxMTU = max(c.MaxMTU, p.MaxMTU)
		if transport == verbs.UD {
			c.MaxSend = max(c.MaxSend, uint32(p.ActiveMTU))
		}
	}
	return c, nil
}

// capabilitiesOf leaves out what depends on the port.
func capabilitiesOf(dev verbs.Device, attr *verbs.DeviceAttr, transport verbs.QPType) Capabilities {
	_, byAddress := dev.(verbs.CMDevice)
	switch srd := &attr.SRD; transport {
	case verbs.UD:
		return Capabilities{
			Transports: attr.Transports, Transport: transport, ByAddress: byAddress,
			MaxSendSGE: attr.MaxSGE, MaxSends: attr.MaxQPWR,
			MaxRecvSGE: max(attr.MaxSGE-1, 0), MaxReceives: attr.MaxQPWR, // one is for the header
		}
	case verbs.SRD:
		return Capabilities{
			Transports: attr.Transports, Transport: transport,
			MaxMessage: srd.MaxRDMA, MaxSend: srd.MaxMessage, Reads: srd.Read, Writes: srd.Write, MaxRDMASGE: srd.MaxReadSGE,
			MaxSendSGE: srd.MaxSendSGE, MaxSends: srd.MaxSendWR, MaxRecvSGE: srd.MaxRecvSGE, MaxReceives: srd.MaxRecvWR,
		}
	}
	c := Capabilities{
		Transports: attr.Transports, Transport: transport,
		MaxConnections: min(attr.MaxQP, connectionLimit),
		MaxMessage:     attr.MaxMessage,
		MaxSend:        attr.MaxMessage,
		Writes:         true,
		MaxSendSGE:     attr.MaxSGE,
		MaxRDMASGE:     attr.MaxSGE,
		MaxSends:       attr.MaxQPWR,
		MaxReadAtomic:  min(attr.MaxInitReadAtomic, attr.MaxQPReadAtomic),
		Atomics:        attr.Atomics,
		AtomicWrites:   attr.AtomicWrite,
		Windows:        attr.MWTypes.Has(verbs.MWType2) && attr.Invalidation,
		ByAddress:      byAddress,
	}
	if transport == verbs.UC {
		c.MaxReadAtomic, c.Atomics, c.AtomicWrites, c.Windows, c.ByAddress = 0, false, false, false, false
	}
	c.Reads = c.MaxReadAtomic > 0
	c.MaxRecvSGE, c.MaxReceives = attr.MaxSGE, attr.MaxQPWR
	if attr.MaxSRQ > 0 && transport == verbs.RC {
		c.MaxRecvSGE, c.MaxReceives = attr.MaxSRQSGE, attr.MaxSRQWR
	}
	return c
}

// Supports reports whether tasks of the kind can run.
func (c *Capabilities) Supports(op Operation) bool {
	switch {
	case !op.known() || !c.Transports.Has(c.Transport) || op.usesScratch() && !c.connections():
		return false
	case op == OpReceive:
		return c.MaxReceives > 0
	case op.atomic():
		return c.Atomics && c.MaxReadAtomic > 0
	case op == OpAtomicWrite:
		return c.AtomicWrites && c.MaxReadAtomic > 0
	case op.returnsData():
		return c.Reads
	case op == OpSend || op == OpSendImm:
		return true
	}
	return c.Writes
}

// Supports returns nil if contexts of RC on the device have tasks of the kind, and
// otherwise an error that matches ErrNotSupported, or the device's.
func Supports(dev verbs.Device, op Operation) error {
	c, err := QueryCapabilities(dev, verbs.RC)
	if err != nil {
		return err
	}
	if !c.Supports(op) {
		return fmt.Errorf("rdma: %v on %s: %w", op, dev.Name(), ErrNotSupported)
	}
	return nil
}
