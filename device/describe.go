package device

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/verbena-rdma/verbena/verbs"
)

// Description is everything that a device reports about itself, at the time of Describe.
type Description struct {
	Name     string            // the device's name, as Open takes it
	Driver   string            // the driver's name
	Attr     verbs.DeviceAttr  // its limits
	Ports    []PortDescription // port 1 first
	Counters []verbs.Counter   // empty where the driver has none
}

// PortDescription is what a device reports about one of its ports.
type PortDescription struct {
	Attr verbs.PortAttr   // its state and link
	GIDs []verbs.GIDEntry // the addresses, in the order of the table
}

// Describe asks a device for its limits, ports, addresses and counters. Its errors are the
// device's. rdma.QueryCapabilities says what contexts on the device can do.
func Describe(dev verbs.Device) (*Description, error) {
	if dev == nil {
		return nil, fmt.Errorf("describe a device: %w: no device is given; open one first", verbs.ErrInvalid)
	}
	attr, err := dev.Query()
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", dev.Name(), err)
	}
	d := &Description{Name: dev.Name(), Driver: dev.Driver(), Attr: attr}
	for port := 1; port <= attr.Ports; port++ {
		var p PortDescription
		if p.Attr, err = dev.QueryPort(port); err == nil {
			p.GIDs, err = dev.GIDs(port)
		}
		if err != nil {
			return nil, fmt.Errorf("describe %s: port %d: %w", dev.Name(), port, err)
		}
		d.Ports = append(d.Ports, p)
	}
	if d.Counters, err = dev.Counters(); err != nil {
		return nil, fmt.Errorf("describe %s: counters: %w", dev.Name(), err)
	}
	return d, nil
}

// String formats the description as a table of several lines; the last line has no line end.
func (d *Description) String() string {
	var t table
	t.row(0, "device", "%s", d.Name)
	t.row(1, "driver", "%s", d.Driver)
	t.row(1, "firmware", "%s", d.Attr.FirmwareVersion)
	t.row(1, "node GUID", "%016x", d.Attr.NodeGUID)
	if d.Attr.NUMANode >= 0 {
		t.row(1, "NUMA node", "%d", d.Attr.NUMANode)
	}
	for i := range d.Ports {
		t.port(i+1, &d.Ports[i])
	}
	t.limits(&d.Attr)
	if d.Attr.Transports.Has(verbs.SRD) {
		t.srd(&d.Attr.SRD)
	}
	t.row(1, "counters", "")
	for _, c := range d.Counters {
		name := c.Name
		if d.Attr.Ports > 1 && c.Port > 0 {
			name += fmt.Sprintf(" of port %d", c.Port)
		}
		t.row(2, name, "%d\t%s", c.Value, c.Help)
	}
	return t.String()
}

func (t *table) limits(a *verbs.DeviceAttr) {
	t.row(1, "limits", "")
	t.row(2, "transports", "%v", a.Transports)
	t.row(2, "memory", "%d regions, %d bytes in one", a.MaxMR, a.MaxMRSize)
	t.row(2, "queue pairs", "%d", a.MaxQP)
	t.row(2, "shared receives", "%d queues", a.MaxSRQ)
	t.row(2, "completions", "%d queues, %d entries in one", a.MaxCQ, a.MaxCQE)
	t.row(2, "domains", "%d", a.MaxPD)
	t.row(2, "atomics", "%s", atomics(a))
	t.row(2, "atomic writes", "%s", either(a.AtomicWrite, "8 bytes", "none"))
	t.row(2, "memory windows", "%s", windows(a))
	t.row(2, "invalidation", "%s", either(a.Invalidation, "local, and by sends", "none"))
	t.row(2, "address handles", "%s", limit(a.MaxAH, ""))
	t.row(2, "multicast", "%s", limit(a.MaxMulticastGroups, " groups"))
	t.row(2, "completion fields", "%v", a.CompletionFields)
	t.row(2, "clock", "%s", either(a.ClockFrequency != 0, fmt.Sprintf("%d ticks a second", a.ClockFrequency), "none"))
}

func (t *table) srd(a *verbs.SRDAttr) {
	t.row(1, "SRD", "")
	t.row(2, "queues", "%d sends, %d receives", a.MaxSendWR, a.MaxRecvWR)
	t.row(2, "buffers", "%d of a send, %d of a receive, %d of a read or write", a.MaxSendSGE, a.MaxRecvSGE, a.MaxReadSGE)
	t.row(2, "message", "%d bytes, inline up to %d", a.MaxMessage, a.MaxInline)
	t.row(2, "reads", "%s", either(a.Read, fmt.Sprintf("%d bytes", a.MaxRDMA), "none"))
	t.row(2, "writes", "%s", either(a.Write, fmt.Sprintf("%d bytes", a.MaxRDMA), "none"))
	t.row(2, "unsolicited writes", "%s", either(a.UnsolicitedWriteRecv, "with immediate, without a receive", "none"))
	t.row(2, "RNR retries", "%s", either(a.RNRRetry, "can be set", "cannot be set"))
}

func either(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// limit formats a number of things that a device may lack.
func limit(n int, unit string) string { return either(n > 0, fmt.Sprint(n, unit), "none") }

func (t *table) port(number int, p *PortDescription) {
	t.row(1, fmt.Sprintf("port %d", number), "")
	t.row(2, "state", "%v", p.Attr.State)
	t.row(2, "link layer", "%v", p.Attr.LinkLayer)
	t.row(2, "interface", "%s", cmp.Or(p.Attr.Interface, "unknown"))
	t.row(2, "path MTU", "%d bytes, at most %d", p.Attr.ActiveMTU, p.Attr.MaxMTU)
	if p.Attr.ActiveRate != 0 {
		t.row(2, "rate", "%g Gbit/s", float64(p.Attr.ActiveRate)/1e9)
	}
	if p.Attr.LinkLayer == verbs.LinkInfiniBand {
		t.row(2, "LID", "%d", p.Attr.LID)
	}
	for _, g := range p.GIDs {
		address := fmt.Sprintf("%v, %v", g.Type, g.GID.Addr())
		if g.UDPPort != 0 {
			address += fmt.Sprintf(", UDP port %d", g.UDPPort)
		}
		if g.SharesPort {
			address += ", shares 4791"
		}
		if g.SourceUDPPort != g.UDPPort && g.SourceUDPPort != 0 {
			address += fmt.Sprintf(", sends from %d", g.SourceUDPPort)
		}
		t.row(2, fmt.Sprintf("GID %d", g.Index), "%v (%s)", g.GID, address)
	}
}

// atomics says to what a peer's atomics are atomic.
func atomics(a *verbs.DeviceAttr) string {
	switch {
	case !a.Atomics:
		return "none"
	case a.AtomicsGlobal:
		return "atomic to each other and to the processor"
	}
	return "atomic to each other"
}

// windows names the types of memory windows.
func windows(a *verbs.DeviceAttr) string {
	var types []string
	for _, t := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		if a.MWTypes.Has(t) {
			types = append(types, fmt.Sprintf("type %d", t))
		}
	}
	if len(types) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %s", a.MaxMW, strings.Join(types, " and "))
}

// table has lines of an indented label and its value.
type table struct{ strings.Builder }

func (t *table) row(indent int, label, format string, args ...any) {
	_, _ = fmt.Fprintf(t, "%s%s\t%s\n", strings.Repeat("  ", indent), label, fmt.Sprintf(format, args...))
}

// String aligns the table. No line ends with spaces.
func (t *table) String() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprint(w, t.Builder.String())
	_ = w.Flush() // a Builder takes all
	var lines []string
	for line := range strings.Lines(text.String()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n")
}
