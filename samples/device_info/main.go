// Command device_info shows the devices that programs can open: those of every
// driver, with their ports, the GID tables that hold their addresses, what RDMA
// contexts can do on them, and their counters. With -d it shows one.
//
// Each device is opened for that. One that cannot be opened is shown with the
// reason, and the program fails at its end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:  "device_info",
		About: "Shows the devices, their ports, addresses, capabilities and counters.",
		Role:  sample.Alone,
	}, run)
}

func run(ctx context.Context, s *sample.Session) error {
	if s.Device != "" {
		return show(s.Out(), s.Device)
	}
	list, err := device.List()
	errs := []error{err}
	for i, info := range list {
		if i > 0 {
			s.Print("")
		}
		if err := show(s.Out(), info.Name); err != nil {
			s.Print("%s: %v", info.Name, err)
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errors.Join(errs...)
}

// show opens a device and prints everything about it, or nothing.
func show(out io.Writer, name string) (err error) {
	dev, err := device.Open(name)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	row := func(indent int, label, format string, args ...any) {
		_, _ = fmt.Fprintf(w, "%s%s\t%s\n", strings.Repeat("  ", indent), label, fmt.Sprintf(format, args...))
	}
	row(0, "device", "%s", dev.Name())
	row(1, "driver", "%s", dev.Driver())
	row(1, "firmware", "%s", attr.FirmwareVersion)
	row(1, "node GUID", "%016x", attr.NodeGUID)
	for port := 1; port <= attr.Ports; port++ {
		if err := showPort(row, dev, port); err != nil {
			return err
		}
	}
	if err := showCapabilities(row, dev, &attr); err != nil {
		return err
	}
	counters, err := dev.Counters()
	if err != nil {
		return err
	}
	row(1, "counters", "")
	for _, c := range counters {
		row(2, c.Name, "%d", c.Value)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// The tabwriter pads labels that stand alone.
	for line := range strings.Lines(text.String()) {
		_, _ = fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
	return nil
}

func showPort(row func(int, string, string, ...any), dev verbs.Device, port int) error {
	p, err := dev.QueryPort(port)
	if err != nil {
		return err
	}
	gids, err := dev.GIDs(port)
	if err != nil {
		return err
	}
	row(1, fmt.Sprintf("port %d", port), "")
	row(2, "state", "%v", p.State)
	row(2, "link layer", "%v", p.LinkLayer)
	row(2, "interface", "%s", orUnknown(p.Interface))
	row(2, "path MTU", "%d bytes, at most %d", p.ActiveMTU, p.MaxMTU)
	if p.ActiveRate != 0 {
		row(2, "rate", "%g Gbit/s", float64(p.ActiveRate)/1e9)
	}
	if p.LinkLayer == verbs.LinkInfiniBand {
		row(2, "LID", "%d", p.LID)
	}
	for _, g := range gids {
		address := fmt.Sprintf("%v, %v", g.Type, g.GID.Addr())
		if g.UDPPort != 0 {
			address += fmt.Sprintf(", UDP port %d", g.UDPPort)
		}
		row(2, fmt.Sprintf("GID %d", g.Index), "%v (%s)", g.GID, address)
	}
	return nil
}

func showCapabilities(row func(int, string, string, ...any), dev verbs.Device, attr *verbs.DeviceAttr) error {
	caps, err := rdma.QueryCapabilities(dev)
	if err != nil {
		return err
	}
	var transports, operations []string
	for _, t := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		if caps.Transports.Has(t) {
			transports = append(transports, t.String())
		}
	}
	for op := rdma.OpReceive; op <= rdma.OpFetchAdd; op++ {
		if caps.Supports(op) {
			operations = append(operations, op.String())
		}
	}
	row(1, "capabilities", "")
	row(2, "transports", "%s", strings.Join(transports, ", "))
	row(2, "tasks", "%s", strings.Join(operations, ", "))
	row(2, "message", "%d bytes", caps.MaxMessage)
	row(2, "connections", "%d in one context", caps.MaxConnections)
	row(2, "sends", "%d under way on one connection, of %d buffers", caps.MaxSends, caps.MaxSendSGE)
	row(2, "receives", "%d posted, of %d buffers", caps.MaxReceives, caps.MaxRecvSGE)
	row(2, "reads, atomics", "%d under way on one connection", caps.MaxReadAtomic)
	row(2, "atomics", "%s", atomics(attr))
	row(2, "memory", "%d regions, %d bytes in one", attr.MaxMR, attr.MaxMRSize)
	row(2, "queue pairs", "%d", attr.MaxQP)
	row(2, "shared receives", "%d queues", attr.MaxSRQ)
	row(2, "completions", "%d queues, %d entries in one", attr.MaxCQ, attr.MaxCQE)
	row(2, "domains", "%d", attr.MaxPD)
	return nil
}

// atomics says what a peer's atomics are atomic to.
func atomics(attr *verbs.DeviceAttr) string {
	switch {
	case !attr.Atomics:
		return "none"
	case attr.AtomicsGlobal:
		return "atomic to each other and to the processor"
	}
	return "atomic to each other"
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
