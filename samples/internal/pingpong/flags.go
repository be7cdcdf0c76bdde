package pingpong

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/version"
	"github.com/verbena-rdma/verbena/verbs"
)

// Program describes one of the programs.
type Program struct {
	Name    string
	Service verbs.QPType
	Size    int // default size of a message, bytes
}

// Options are the values of the flags.
type Options struct {
	Host     string // the server; empty: this program is the server
	TCPPort  int
	Device   string // empty: the first one found
	Port     int    // of the device, from 1
	Size     int    // of a message, bytes
	MTU      verbs.MTU
	RxDepth  int // receives posted at a time
	Iters    int
	SL       uint8
	Events   bool // sleep for completions
	GIDIndex int  // -1: choose one
	Check    bool // check the contents of what the server received
	Version  bool // print the version, and exit

	completed atomic.Int64 // requests

	program Program
	out     io.Writer
	err     io.Writer
}

// Client reports whether the program is the client, which sends first.
func (o *Options) Client() bool { return o.Host != "" }

// option is a flag with two names; short may be empty.
type option struct {
	short, long, value, usage string
	set                       func(string) error
}

const (
	maxSize  = 1 << 30
	maxDepth = 1 << 16
)

// options are the flags of the C programs (ibv_rc_pingpong(1)).
func (o *Options) options() []option {
	number := func(p *int, low, high int) func(string) error {
		return func(s string) error {
			v, err := strconv.ParseInt(s, 0, 64)
			if err != nil || v < int64(low) || v > int64(high) {
				return fmt.Errorf("want a number from %d to %d", low, high)
			}
			*p = int(v)
			return nil
		}
	}
	on := func(p *bool) func(string) error {
		return func(string) error { *p = true; return nil }
	}
	list := []option{
		{"p", "port", "PORT", "listen on or connect to TCP port PORT (default 18515)", number(&o.TCPPort, 1, 65535)},
		{"d", "ib-dev", "DEVICE", "use device DEVICE, such as soft-lo (default: the first one found)", func(s string) error { o.Device = s; return nil }},
		{"i", "ib-port", "PORT", "use port PORT of the device (default 1)", number(&o.Port, 1, 255)},
		{"s", "size", "SIZE", fmt.Sprintf("exchange messages of SIZE bytes (default %d)", o.Size), number(&o.Size, 0, maxSize)},
	}
	if o.program.Service != verbs.UD {
		list = append(list, option{"m", "mtu", "SIZE", "use the path MTU SIZE (default 1024)", func(s string) error {
			v, err := strconv.Atoi(s)
			if o.MTU = verbs.MTU(v); err != nil || !o.MTU.Valid() {
				return errors.New("want 256, 512, 1024, 2048 or 4096")
			}
			return nil
		}})
	}
	list = append(list,
		option{"r", "rx-depth", "DEPTH", "post DEPTH receives at once (default 500)", number(&o.RxDepth, 1, maxDepth)},
		option{"n", "iters", "ITERS", "exchange ITERS messages (default 1000)", number(&o.Iters, 1, 1<<31-1)},
		option{"l", "sl", "SL", "use the service level SL (default 0)", func(s string) error {
			var sl int
			err := number(&sl, 0, 15)(s)
			o.SL = uint8(sl)
			return err
		}},
		option{"e", "events", "", "sleep for completions (default: poll)", on(&o.Events)},
		option{"g", "gid-idx", "INDEX", "use the local address at INDEX of the GID table (default: one for RoCEv2, of the peer's family)", number(&o.GIDIndex, 0, 1<<16)},
		option{"c", "chk", "", "validate the received data at the server (give it to both ends)", on(&o.Check)},
	)
	if o.program.Service == verbs.RC {
		for _, x := range []struct{ short, long, what string }{
			{"o", "odp", "on-demand paging"}, {"O", "iodp", "implicit on-demand paging"},
			{"P", "prefetch", "prefetching for on-demand paging"}, {"t", "ts", "completions with timestamps"},
			{"j", "dm", "device memory"}, {"N", "new_send", "the alternative interface for posting"},
		} {
			list = append(list, option{x.short, x.long, "", x.what + ": not supported",
				func(string) error { return errors.New(x.what + " is not supported") }})
		}
	}
	return append(list, option{"", "version", "", "print the version, and exit", on(&o.Version)})
}

// parse parses the command line. For -h and --version it prints the text and returns
// flag.ErrHelp.
func parse(p Program, args []string, out, errs io.Writer) (*Options, error) {
	o := &Options{
		TCPPort: 18515, Port: 1, Size: p.Size, MTU: 1024, RxDepth: 500, Iters: 1000, GIDIndex: -1,
		program: p, out: out, err: errs,
	}
	set := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	list := o.options()
	for _, x := range list {
		for _, name := range []string{x.short, x.long} {
			if name == "" {
				continue
			}
			if x.value == "" {
				set.BoolFunc(name, "", x.set)
			} else {
				set.Func(name, "", x.set)
			}
		}
	}
	var operands []string
	for { // flags may follow the host, as with getopt
		if err := set.Parse(args); errors.Is(err, flag.ErrHelp) {
			_, _ = io.WriteString(out, help(p, list))
			return nil, err
		} else if err != nil {
			return nil, err
		}
		if set.NArg() == 0 {
			break
		}
		operands = append(operands, set.Arg(0))
		args = set.Args()[1:]
	}
	switch {
	case o.Version:
		_, _ = fmt.Fprintln(out, p.Name, version.String())
		return nil, flag.ErrHelp
	case len(operands) > 1:
		return nil, fmt.Errorf("unexpected argument %q: one host is enough", operands[1])
	case len(operands) == 1 && operands[0] == "":
		return nil, errors.New("the name of the host is empty")
	case len(operands) == 1:
		o.Host = operands[0]
	}
	return o, nil
}

func help(p Program, list []option) string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "Plays ping-pong over %v with another %s, or with ibv_%s_pingpong.\n\n",
		p.Service, p.Name, strings.ToLower(p.Service.String()))
	_, _ = fmt.Fprintf(&b, "Usage:\n  %s [flags]        wait for a client\n  %s [flags] HOST   connect to the server on HOST\n\n", p.Name, p.Name)
	for _, x := range list {
		spelled := strings.TrimRight("--"+x.long+" "+x.value, " ")
		if x.short != "" {
			spelled = "-" + x.short + ", " + spelled
		}
		_, _ = fmt.Fprintf(&b, "  %s\n        %s\n", spelled, x.usage)
	}
	b.WriteString("\nExit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted (143 by SIGTERM).\n")
	return b.String()
}
