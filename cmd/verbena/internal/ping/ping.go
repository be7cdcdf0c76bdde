// Package ping is verbena ping: does RDMA work between this machine and another and, if not,
// why? It prints what it finds at each step, from the device to the round trip.
package ping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/internal/portowner"
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// options are the flags.
type options struct {
	device   string
	gid      int
	server   bool
	port     int
	count    int
	size     int
	interval time.Duration
	timeout  time.Duration
	target   string
}

const text = `Checks whether RDMA works between this host and HOST: it makes a connection, sends, reads and
writes, and compares the data. At HOST, "verbena ping -s" or "rping -s" must be running.`

// Main runs the command, and returns its exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseArgs(args, stdout)
	if err != nil {
		return exit.WrongArguments("verbena ping", err, stderr)
	}
	out := &printer{w: stdout}
	if o.server {
		err = serve(ctx, o, out, stderr)
	} else {
		err = ping(ctx, o, out)
	}
	return exit.Code(ctx, "verbena ping", err, stderr)
}

// Page describes the command.
func Page() *usage.Page { return page(&options{}) }

func page(o *options) *usage.Page {
	f := usage.NewFlags("verbena ping")
	f.StringVar(&o.device, "d", "", "`device` (default: by the system's route to HOST)")
	f.IntVar(&o.gid, "g", -1, "`index` of the local GID (default: by the route)")
	f.BoolVar(&o.server, "s", false, "be the server, until interrupted")
	f.IntVar(&o.port, "p", DefaultPort, "`port`, in the port space RDMA_PS_TCP")
	f.IntVar(&o.count, "c", 5, "`number` of rounds; 0: until interrupted")
	f.IntVar(&o.size, "size", 64, "`bytes` read and written in each round; rping -s accepts no more than its -S, by default 64")
	f.DurationVar(&o.interval, "i", 200*time.Millisecond, "time from the start of one round to the start of the next")
	f.DurationVar(&o.timeout, "t", 10*time.Second, "time limit for connecting, and for each round")
	return &usage.Page{Name: "verbena ping", About: "check whether RDMA works between this host and another, and if not, why",
		Forms: []string{"[flags] HOST[:PORT]", "-s [flags] [ADDRESS][:PORT]"}, Text: text, Flags: f}
}

func parseArgs(args []string, stdout io.Writer) (*options, error) {
	var o options
	operands, err := page(&o).Parse(args, stdout)
	if err != nil {
		return nil, err
	}
	switch {
	case len(operands) > 1 || len(operands) == 0 && !o.server:
		return nil, errors.New("name one host to ping, after the flags")
	case o.port < 1 || o.port > 65535:
		return nil, fmt.Errorf("-p is %d; it must be 1 to 65535", o.port)
	case o.size < smallest || o.size > largest:
		return nil, fmt.Errorf("-size is %d; it must be %d to %d", o.size, smallest, largest)
	case o.count < 0 || o.interval < 0 || o.timeout <= 0:
		return nil, errors.New("-c and -i must be 0 or more, -t more than 0")
	}
	if len(operands) > 0 {
		o.target = operands[0]
	}
	return &o, nil
}

// split splits the target into host and port. Without a port there, the port is that of -p.
func (o *options) split() (host string, port int, err error) {
	host, service, err := net.SplitHostPort(o.target)
	if err != nil {
		if host = o.target; len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
			host = host[1 : len(host)-1]
		}
		return host, o.port, nil
	}
	if port, err = strconv.Atoi(service); err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("%q is not a port; want 1 to 65535", service)
	}
	return host, port, nil
}

// printer prints lines that consist of a name and a text.
type printer struct{ w io.Writer }

func (p *printer) line(name, format string, args ...any) {
	_, _ = fmt.Fprintf(p.w, "%-9s %s\n", name, fmt.Sprintf(format, args...))
}

// openDevice is an open device, and the route that leads from it.
type openDevice struct {
	*route.Route
	dev   verbs.Device
	entry verbs.GIDEntry // the GID in use
	port  int
}

// open opens the device for a target, and prints what is known about it.
func open(o *options, target netip.Addr, out *printer) (*openDevice, error) {
	r, err := route.Find(o.device, target)
	if err != nil {
		return nil, err
	}
	return openRoute(o, r, out)
}

func openRoute(o *options, r *route.Route, out *printer) (*openDevice, error) {
	dev, err := device.Open(r.Device)
	if err != nil {
		return nil, err
	}
	d := &openDevice{Route: r, dev: dev}
	if err := d.show(o, out); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return d, nil
}

func (d *openDevice) show(o *options, out *printer) error {
	out.line("device", "%s: %s", d.Device, d.Why)
	if err := d.Rank(d.dev); err != nil {
		return err
	}
	if o.gid >= 0 {
		for i, c := range d.Candidates {
			d.Candidates[i].Used = c.Entry.Index == o.gid
			if d.Candidates[i].Used {
				d.Candidates[i].Why = "it was requested"
			}
		}
	}
	for _, c := range d.Candidates {
		if c.Used {
			d.entry, d.port = c.Entry, c.Port
		}
	}
	port, err := d.dev.QueryPort(max(d.port, 1))
	if err != nil {
		return err
	}
	out.line("port", "%d: %v, %v, MTU %d of %d", max(d.port, 1), port.State, port.LinkLayer, port.ActiveMTU, port.MaxMTU)
	for _, c := range d.Candidates {
		mark := " "
		if c.Used {
			mark = "*"
		}
		out.line("GID", "%s %d  %v  %v%s: %s", mark, c.Entry.Index, c.Entry.GID.Addr(), c.Entry.Type, udpPort(c.Entry), c.Why)
	}
	if d.entry.UDPPort != 0 && d.entry.UDPPort != roceUDPPort && !d.entry.SharesPort {
		at := netip.AddrPortFrom(d.entry.GID.Addr(), roceUDPPort)
		owner := "another process"
		if o := portowner.Find(at); o != nil {
			owner = o.String()
		}
		out.line("UDP port", "%d: port %d of %v is used by %s. So only software devices of this SDK can reach this one; adapters and the kernel cannot", d.entry.UDPPort, roceUDPPort, at.Addr(), owner)
	}
	if d.port == 0 && d.Target.IsValid() {
		return fmt.Errorf("none of the %d GIDs of %s can reach %v; choose another device with -d, or give its interface an address in that network", len(d.Candidates), d.Device, d.Target)
	}
	return nil
}

const roceUDPPort = 4791

func udpPort(e verbs.GIDEntry) string {
	if e.UDPPort == 0 {
		return ""
	}
	s := fmt.Sprintf(", UDP port %d", e.UDPPort)
	if e.SourceUDPPort != 0 && e.SourceUDPPort != e.UDPPort {
		s += fmt.Sprintf(" (sends from %d)", e.SourceUDPPort)
	}
	return s
}

// config returns the configuration of the context.
func (d *openDevice) config(o *options) rdma.Config {
	cfg := rdma.Config{ConnectTimeout: o.timeout}
	if o.gid >= 0 {
		cfg.Path.GIDIndex = &o.gid
	}
	return cfg
}
