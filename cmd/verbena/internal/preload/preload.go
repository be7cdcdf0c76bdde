// Package preload is verbena run: it starts a program that uses libibverbs or librdmacm, and is
// not written in Go, on the software device. The program runs with libverbena.so preloaded, which
// takes the place of these libraries.
package preload

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/verbena-rdma/verbena/internal/usage"
)

// Exit codes, as env(1) and nohup(1) have them. All others are the program's.
const (
	exitOK       = 0
	exitFailed   = 125 // verbena run itself failed, or its command line is wrong
	exitRefused  = 126 // the program cannot run, or not with the library
	exitNotFound = 127
)

// exitError is an error with another exit code than exitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// refuse returns the error for a program that cannot run with the library.
func refuse(format string, args ...any) error {
	return &exitError{exitRefused, fmt.Errorf(format, args...)}
}

// options are the flags and arguments.
type options struct {
	folder  string   // of the libraries; empty: where they usually are
	devices []string // names of software devices
	faults  string
	verbose bool
	command []string
}

const text = `Runs a program that uses libibverbs or librdmacm, written in C, C++, Python, Rust …, on Verbena's
software device:

  verbena run ib_write_bw                                at one end
  verbena run -faults 'loss=0.01' -- ib_write_bw HOST    at the other

The program sees software devices in place of adapters. It needs no privileges and no kernel
module. It must be linked dynamically with glibc; programs in Go use Verbena's packages.

The exit code is the program's, or: 125 if verbena run failed, 126 if the program cannot be run
this way, 127 if it was not found.`

// Main runs the command. It returns its exit code if the program could not be started; otherwise
// the program has replaced this process.
func Main(_ context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseArgs(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		err = usage.Hint(err)
	} else {
		err = o.start(stderr)
	}
	_, _ = fmt.Fprintln(stderr, "verbena run:", err)
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return exitFailed
}

// Page describes the command.
func Page() *usage.Page { return page(&options{}) }

func page(o *options) *usage.Page {
	f := usage.NewFlags("verbena run")
	f.StringVar(&o.folder, "lib", "", "`folder` with libverbena.so and libverbena-device.so (default: that of verbena, or ../lib/verbena, /usr/local/lib/verbena, /usr/lib/verbena)")
	f.Func("d", "software `device`, such as soft-eth0 or 'soft-lo?loss=0.01'; repeat it for several (default: those of $"+devicesVariable+", or all)", func(name string) error {
		o.devices = append(o.devices, name)
		return nil
	})
	f.StringVar(&o.faults, "faults", "", "`options` for every device, such as 'loss=0.01&delay=1ms'")
	f.BoolVar(&o.verbose, "v", false, "print what is run, and with which environment")
	return &usage.Page{Name: "verbena run", About: "run a program that uses libibverbs or librdmacm on the software device",
		Forms: []string{"[flags] COMMAND [ARGUMENT...]"}, Text: text, Flags: f}
}

func parseArgs(args []string, stdout io.Writer) (*options, error) {
	var o options
	p := page(&o)
	operands, err := p.Parse(args, stdout)
	if err != nil {
		return nil, err
	}
	var empty error
	p.Flags.Visit(func(set *flag.Flag) {
		if set.Name == "lib" && o.folder == "" || set.Name == "faults" && o.faults == "" {
			empty = fmt.Errorf("the value of -%s is empty: is a shell variable not set? Omit the flag to use its default", set.Name)
		}
	})
	switch {
	case empty != nil:
		return nil, empty
	case len(operands) == 0:
		return nil, errors.New("name the program to run, after the flags, as in: verbena run ib_write_bw")
	}
	o.command = operands
	return &o, nil
}
