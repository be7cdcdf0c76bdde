package pingpong

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/internal/version"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
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
	SL       int
	Events   bool // sleep for completions
	GIDIndex int  // -1: choose one
	Check    bool // check the contents of what the server received
	Version  bool // print the version, and exit

	program Program
	out     io.Writer
	err     io.Writer
}

// Client reports whether the program is the client, which sends first.
func (o *Options) Client() bool { return o.Host != "" }

const (
	maxSize  = 1 << 30
	maxDepth = 1 << 16
)

// flags defines the flags of the C programs (ibv_rc_pingpong(1)).
func (o *Options) flags(f *sample.Flags) {
	f.Number(&o.TCPPort, "p", "port", "port", "TCP port to listen on or connect to (default 18515)", 1, 65535)
	f.String(&o.Device, "d", "ib-dev", "device", "the device, such as soft-lo (default: the first one found)")
	f.Number(&o.Port, "i", "ib-port", "number", "the port of the device (default 1)", 1, 255)
	f.Number(&o.Size, "s", "size", "bytes", fmt.Sprintf("the size of the messages (default %d)", o.Size), 0, maxSize)
	if o.program.Service != verbs.UD {
		f.Func("m", "mtu", "bytes", "the path MTU (default 1024)", func(s string) error {
			v, err := strconv.Atoi(s)
			if o.MTU = verbs.MTU(v); err != nil || !o.MTU.Valid() {
				return errors.New("want 256, 512, 1024, 2048 or 4096")
			}
			return nil
		})
	}
	f.Number(&o.RxDepth, "r", "rx-depth", "number", "receives posted at once (default 500)", 1, maxDepth)
	f.Number(&o.Iters, "n", "iters", "number", "how many messages are exchanged (default 1000)", 1, 1<<31-1)
	f.Number(&o.SL, "l", "sl", "number", "the service level (default 0)", 0, 15)
	f.Bool(&o.Events, "e", "events", "sleep for completions (default: poll)")
	f.Number(&o.GIDIndex, "g", "gid-idx", "index", "the local address, by its index in the GID table (default: one for RoCEv2, of the peer's family)", 0, 1<<16)
	f.Bool(&o.Check, "c", "chk", "validate the received data at the server (give it to both ends)")
	if o.program.Service == verbs.RC {
		for _, x := range []struct{ short, long, what string }{
			{"o", "odp", "on-demand paging"}, {"O", "iodp", "implicit on-demand paging"},
			{"P", "prefetch", "prefetching for on-demand paging"}, {"t", "ts", "completions with timestamps"},
			{"j", "dm", "device memory"}, {"N", "new_send", "the alternative interface for posting"},
		} {
			f.Func(x.short, x.long, "", x.what+": not supported", func(string) error { return errors.New(x.what + " is not supported") })
		}
	}
	f.Bool(&o.Version, "", "version", "print the version, and exit")
}

// parse parses the command line. For -h and --version it prints the text and returns
// flag.ErrHelp.
func parse(p Program, args []string, out, errs io.Writer) (*Options, error) {
	o := &Options{
		TCPPort: 18515, Port: 1, Size: p.Size, MTU: 1024, RxDepth: 500, Iters: 1000, GIDIndex: -1,
		program: p, out: out, err: errs,
	}
	f := sample.NewFlags(p.Name)
	o.flags(f)
	about := fmt.Sprintf("Plays ping-pong over %v with another %s, or with ibv_%s_pingpong.\nWithout HOST it waits for a client; HOST is where the server runs.",
		p.Service, p.Name, strings.ToLower(p.Service.String()))
	operands, err := f.Page(about, "[flags]", "[flags] HOST").ParseMixed(args, out) // flags may follow the host, as with getopt
	if err != nil {
		return nil, err
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
