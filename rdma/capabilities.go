package rdma

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/verbs"
)

// Capabilities is what contexts on a device can do at most.
type Capabilities struct {
	Transports verbs.Transports // of the device; contexts use RC

	MaxConnections int    // of one context
	MaxMessage     uint32 // bytes moved by one task
	MaxSendSGE     int    // buffers in the list of a send, read or write
	MaxRecvSGE     int    // buffers in the list of a receive; zero: no receives
	MaxSends       int    // tasks at the device at a time on one connection
	MaxReceives    int    // receives at the device at a time
	MaxReadAtomic  int    // reads and atomics under way at a time on one connection

	MaxMTU  verbs.MTU // bytes of data in one packet
	Atomics bool      // compare-and-swap, fetch-and-add, sync event additions
	// ByAddress: Context.Listen and Dial. On adapters they need librdmacm too.
	ByAddress bool
}

// String is a table for people, of several lines; the last one has no end of line.
func (c Capabilities) String() string {
	var transports, operations []string
	for _, t := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		if c.Transports.Has(t) {
			transports = append(transports, t.String())
		}
	}
	for op := OpReceive; op.known(); op++ {
		if c.Supports(op) {
			operations = append(operations, op.String())
		}
	}
	connect := "by descriptors"
	if c.ByAddress {
		connect += ", by address"
	}
	return fmt.Sprintf(`RDMA contexts
  transports      %s
  tasks           %s
  message         %d bytes
  connections     %d in one context, %s
  sends           %d under way on one connection, of %d buffers
  receives        %d posted, of %d buffers
  reads, atomics  %d under way on one connection`,
		strings.Join(transports, ", "), strings.Join(operations, ", "), c.MaxMessage, c.MaxConnections, connect,
		c.MaxSends, c.MaxSendSGE, c.MaxReceives, c.MaxRecvSGE, c.MaxReadAtomic)
}

// connectionLimit is the most connections of one context.
const connectionLimit = 8192

// QueryCapabilities asks a device what contexts on it can do. Its errors are the
// device's.
func QueryCapabilities(dev verbs.Device) (Capabilities, error) {
	if dev == nil {
		return Capabilities{}, fmt.Errorf("rdma: query capabilities: %w: no device is given; open one first", ErrInvalid)
	}
	attr, err := dev.Query()
	if err != nil {
		return Capabilities{}, fmt.Errorf("rdma: query capabilities of %s: %w", dev.Name(), err)
	}
	c := capabilitiesOf(dev, &attr)
	for port := 1; port <= attr.Ports; port++ {
		p, err := dev.QueryPort(port)
		if err != nil {
			return Capabilities{}, fmt.Errorf("rdma: query capabilities of %s: port %d: %w", dev.Name(), port, err)
		}
		c.MaxMTU = max(c.MaxMTU, p.MaxMTU)
	}
	return c, nil
}

func capabilitiesOf(dev verbs.Device, attr *verbs.DeviceAttr) Capabilities {
	_, byAddress := dev.(verbs.CMDevice)
	c := Capabilities{
		Transports:     attr.Transports,
		MaxConnections: min(attr.MaxQP, connectionLimit),
		MaxMessage:     attr.MaxMessage,
		MaxSendSGE:     attr.MaxSGE,
		MaxSends:       attr.MaxQPWR,
		MaxReadAtomic:  min(attr.MaxInitReadAtomic, attr.MaxQPReadAtomic),
		Atomics:        attr.Atomics,
		ByAddress:      byAddress,
	}
	if attr.MaxSRQ > 0 {
		c.MaxRecvSGE, c.MaxReceives = attr.MaxSRQSGE, attr.MaxSRQWR
	}
	return c
}

// Supports reports whether tasks of the kind can run.
func (c *Capabilities) Supports(op Operation) bool {
	switch {
	case !op.known() || !c.Transports.Has(verbs.RC):
		return false
	case op == OpReceive:
		return c.MaxReceives > 0
	case op.atomic():
		return c.Atomics && c.MaxReadAtomic > 0
	case op.returnsData():
		return c.MaxReadAtomic > 0
	}
	return true
}

// Supports returns nil if contexts on the device have tasks of the kind, and
// otherwise an error that matches ErrNotSupported, or the device's.
func Supports(dev verbs.Device, op Operation) error {
	c, err := QueryCapabilities(dev)
	if err != nil {
		return err
	}
	if !c.Supports(op) {
		return fmt.Errorf("rdma: %v on %s: %w", op, dev.Name(), ErrNotSupported)
	}
	return nil
}
