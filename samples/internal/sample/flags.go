package sample

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/terminal"
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/internal/version"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/verbs"
)

// Role is the role of a program in its pair.
type Role int

// The roles.
const (
	Alone     Role = iota // it has no peer
	Requester             // submits the operation, or sends
	Responder             // is written to, read from, or receives
)

// Program describes a sample program.
type Program struct {
	Name   string
	About  string // the first text that -h prints
	Role   Role
	Peer   string // the name of the other program of the pair
	Memory Memory
	// Transport is the transport service of a pair: RC, which is the zero value, UD or SRD.
	Transport verbs.QPType
	// Device is the default of -d for a program without a peer that needs a device; it also
	// gives the program the flag -g. For pairs the default is soft-lo.
	Device string
	// Text is the flag for the text that the program provides; nil if it
	// provides none.
	Text *Text
	// Operands is how -h describes the arguments after the flags; empty if there may be none.
	Operands string
	// MaxConnections above 1 adds the flag -nc.
	MaxConnections int
	// Flags defines the program's own flags; nil if there are none.
	Flags func(f *Flags)
}

// Text is a flag for the text that the program sends or writes.
type Text struct{ Short, Long, Default string }

// Flags defines flags in two spellings.
type Flags struct{ set *flag.FlagSet }

// NewFlags makes Flags without a flag. Main does so for its programs.
func NewFlags(name string) *Flags { return &Flags{usage.NewFlags(name)} }

// add defines a flag under its names; short may be empty.
func (f *Flags) add(short, long, value string, define func(name string)) {
	define(long)
	if value != "" {
		usage.SetType(f.set, long, value)
	}
	if short != "" {
		usage.Alias(f.set, short, long)
	}
}

// String defines a flag for a string. The default is the present value of *p.
func (f *Flags) String(p *string, short, long, value, about string) {
	f.add(short, long, value, func(name string) { f.set.StringVar(p, name, *p, about) })
}

// Uint64 defines a flag for a number, decimal or with 0x. The default is the present value of
// *p.
func (f *Flags) Uint64(p *uint64, short, long, value, about string) {
	f.add(short, long, value, func(name string) { f.set.Uint64Var(p, name, *p, about) })
}

// Bool defines a flag without a value.
func (f *Flags) Bool(p *bool, short, long, about string) {
	f.add(short, long, "", func(name string) { f.set.BoolVar(p, name, *p, about) })
}

// Func defines a flag whose value is given to a function; without a name for the value it has none.
func (f *Flags) Func(short, long, value, about string, set func(string) error) {
	f.add(short, long, value, func(name string) {
		if value == "" {
			f.set.BoolFunc(name, about, set)
		} else {
			f.set.Func(name, about, set)
		}
	})
}

// Uint32 is Uint64 for 32 bits.
func (f *Flags) Uint32(p *uint32, short, long, value, about string) {
	f.Func(short, long, value, about+fmt.Sprintf(" (default %#x)", *p), func(s string) error {
		v, err := strconv.ParseUint(s, 0, 32)
		if err != nil {
			return errors.New("want a number of 32 bits")
		}
		*p = uint32(v)
		return nil
	})
}

// Number defines a flag for a number between low and high.
func (f *Flags) Number(p *int, short, long, value, about string, low, high int) {
	f.Func(short, long, value, about, func(s string) error {
		v, err := strconv.ParseInt(s, 0, 64)
		if err != nil || v < int64(low) || v > int64(high) {
			return fmt.Errorf("want a number from %d to %d", low, high)
		}
		*p = int(v)
		return nil
	})
}

// duration defines a flag for a time above zero.
func (f *Flags) duration(p *time.Duration, long, about string) {
	f.Func("", long, "duration", about, func(s string) error {
		v, err := time.ParseDuration(s)
		if err != nil || v <= 0 {
			return errors.New("want a time above zero, such as 10s")
		}
		*p = v
		return nil
	})
}

// Page describes a program with these flags, and parses its command line.
func (f *Flags) Page(about string, forms ...string) *usage.Page {
	return &usage.Page{Name: f.set.Name(), Forms: forms, Flags: f.set,
		Text: about + "\n\nExit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted (143 by SIGTERM)."}
}

// wasSet reports whether one of the flags was given.
func (f *Flags) wasSet(names ...string) (set bool) {
	f.set.Visit(func(g *flag.Flag) { set = set || slices.Contains(names, g.Name) })
	return set
}

// parse makes the session from the flags. For -h and -version it prints the text and returns
// flag.ErrHelp.
func parse(p Program, args []string, files stdio) (*Session, error) {
	s := &Session{program: p, files: files, Connections: 1}
	var gid int
	level := zerolog.InfoLevel
	transport := p.Transport.String()
	way := exchangeFlags{oob: "dir"}
	f := NewFlags(p.Name)
	s.Device = p.Device
	if p.Role != Alone {
		s.Device = "soft-lo"
	}
	usesDevice := s.Device != ""
	f.String(&s.Device, "d", "device", "name", "the device, such as soft-eth0 or soft-192.0.2.7; device_info lists them")
	if usesDevice {
		f.Number(&gid, "g", "gid-index", "number", "the local address, by its index in the GID table (default: the first usable one)", 0, 1<<16)
	}
	if p.Role != Alone {
		f.String(&transport, "tt", "transport-type", "type", "the transport service; "+transport+" is the only one")
		way.define(f, p)
	}
	if p.Text != nil {
		s.text = p.Text.Default
		f.String(&s.text, p.Text.Short, p.Text.Long, "text", "the text to move")
	}
	if p.MaxConnections > 1 {
		s.Connections = 2
		f.Number(&s.Connections, "nc", "num-connections", "number",
			fmt.Sprintf("the number of connections, 1 to %d (default %d)", p.MaxConnections, s.Connections), 1, p.MaxConnections)
	}
	if p.Flags != nil {
		p.Flags(f)
	}
	if p.Role != Alone {
		f.duration(&s.ConnectTimeout, "connect-timeout", fmt.Sprintf("how long the peer may take to connect after its descriptor has arrived (default %v; with -ld and -re, or stdio, %v)",
			defaultConnectTimeout, manualConnectTimeout))
	}
	f.duration(&s.timeout, "timeout", "give up after that time, such as 10s (default: never)")
	f.Func("l", "log-level", "level", "debug, info, warn or error (default info)", func(v string) error {
		i := slices.Index([]string{"debug", "info", "warn", "error"}, v)
		if i < 0 {
			return errors.New("want debug, info, warn or error")
		}
		level = zerolog.Level(i)
		return nil
	})

	var showVersion bool
	f.Bool(&showVersion, "", "version", "print the version, and exit")

	operands, err := f.Page(p.About, strings.TrimSpace("[flags] "+p.Operands)).Parse(args, files.out)
	if err != nil {
		return nil, err
	}
	s.Operands = operands
	if showVersion {
		_, _ = fmt.Fprintln(files.out, p.Name, version.String())
		return nil, flag.ErrHelp
	}
	if len(s.Operands) > 0 && p.Operands == "" {
		return nil, fmt.Errorf("unexpected argument %q", s.Operands[0])
	}
	if only := p.Transport.String(); transport != only {
		return nil, fmt.Errorf("transport type %q is not supported, %s is the only one", transport, only)
	}
	if p.Text != nil && s.text == "" {
		return nil, fmt.Errorf("-%s: the text must not be empty", p.Text.Long)
	}
	if f.wasSet("g", "gid-index") {
		s.GIDIndex = &gid
	}
	s.Log = newLog(files.err, level)
	if p.Role == Alone {
		return s, nil
	}
	opened, manual, err := way.open(f, p, files)
	if err != nil {
		return nil, err
	}
	switch {
	case way.isServer:
		s.clients, err = oob.Listen(opened.String(), oob.Config{Name: p.Name, Peer: p.Peer, Expect: p.Memory.expects(), Await: s.Connections, Log: s.Log})
	case way.cm && p.MaxConnections > 1:
		s.Connections = 1
		s.Peer, err = s.peer(opened, oob.Requester)
	default:
		s.Peer, err = s.peer(opened, s.role())
	}
	if err != nil {
		return nil, err
	}
	if !f.wasSet("connect-timeout") {
		s.ConnectTimeout = defaultConnectTimeout
		if manual {
			s.ConnectTimeout = manualConnectTimeout
		}
	}
	return s, nil
}

// newLog makes a log for people to read, in colour on a terminal.
func newLog(w io.Writer, level zerolog.Level) zerolog.Logger {
	console := zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05", NoColor: !terminal.Colours(w)}
	return zerolog.New(console).Level(level).With().Timestamp().Logger()
}
