// Package overhead measures what an operation costs above the adapter. It runs the layers of the
// SDK over a libibverbs that completes each request at once (csrc/null.c), beside a C loop over
// the same library, and over the software device. It needs gcc and the headers of libibverbs,
// and a build with -tags verbs.
package overhead

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/profile"
	"github.com/verbena-rdma/verbena/internal/process"
)

//go:embed csrc
var sources embed.FS

// nullDevice is the name of the device of csrc/null.c.
const nullDevice = "null0"

type options struct {
	device   string
	duration time.Duration
	rounds   int
	only     string
	tsv      bool
	profile  string
	child    string // the device that this process measures
}

// Run runs bench overhead.
func Run(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("bench overhead", flag.ExitOnError)
	f.StringVar(&o.device, "d", "soft-lo", "`device` to measure beside the null library; empty: none")
	f.DurationVar(&o.duration, "t", 200*time.Millisecond, "time of each case")
	f.IntVar(&o.rounds, "rounds", 5, "how often each case is measured, in turns")
	f.StringVar(&o.only, "only", "", "the cases whose name contains this `text`")
	f.BoolVar(&o.tsv, "tsv", false, "print the figures as columns separated by tabs: device, case, ns, allocations")
	f.StringVar(&o.profile, "cpuprofile", "", "`file` for a CPU profile of the null library's cases, in the last round")
	f.StringVar(&o.child, "child", "", "measure this device in this process, and print a line for each case")
	_ = f.Parse(args) // exits on an error
	if f.NArg() > 0 || o.rounds < 1 || o.duration <= 0 {
		return errors.New("-rounds must be 1 or more, -t positive, and there are no arguments; see -help")
	}
	if o.child != "" {
		stop, err := profile.Start(o.profile)
		if err != nil {
			return err
		}
		return errors.Join(measureDevice(ctx, o, os.Stdout), stop())
	}
	temp, err := os.MkdirTemp("", "verbena-overhead-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := build(ctx, temp); err != nil {
		return err
	}
	all := figures{}
	for range o.rounds {
		if err := round(ctx, o, temp, all); err != nil {
			return err
		}
	}
	text := all.columns(o.only)
	if text == "" {
		return fmt.Errorf("no case contains %q", o.only)
	}
	if !o.tsv {
		text = all.table(o.device, o.only)
	}
	fmt.Print(text)
	return nil
}

// build compiles the null library and the C loop into a folder.
func build(ctx context.Context, folder string) error {
	for _, name := range []string{"null.c", "null.map", "loop.c"} {
		text, err := sources.ReadFile("csrc/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	if err := os.Symlink("libibverbs.so.1", filepath.Join(folder, "libibverbs.so")); err != nil {
		return err
	}
	for _, words := range []string{
		"-shared -fPIC -Wl,-soname,libibverbs.so.1 -Wl,--version-script=null.map -o libibverbs.so.1 null.c",
		"-o loop loop.c -L. -libverbs",
	} {
		args := append([]string{"gcc", "-O2", "-Wall", "-Wextra", "-Werror"}, strings.Fields(words)...)
		if _, err := process.Run(ctx, process.Program{Args: args, Dir: folder}); err != nil {
			return fmt.Errorf("compile the null library (Debian packages gcc and libibverbs-dev): %w", err)
		}
	}
	return nil
}

// round measures the C loop, the null library and the device once each.
func round(ctx context.Context, o options, folder string, all figures) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ms := strconv.FormatFloat(o.duration.Seconds()*1e3, 'f', -1, 64)
	child := func(device string) []string {
		args := []string{self, "overhead", "-child", device, "-t", o.duration.String(), "-only", o.only}
		if device == nullDevice && o.profile != "" {
			args = append(args, "-cpuprofile", o.profile)
		}
		return args
	}
	for _, c := range []struct {
		device  string
		command []string
	}{
		{nullDevice, []string{filepath.Join(folder, "loop"), ms}},
		{nullDevice, child(nullDevice)},
		{o.device, child(o.device)},
	} {
		if c.device == "" {
			continue
		}
		p := process.Program{Args: c.command}
		if c.device == nullDevice {
			p.Env = []string{"LD_LIBRARY_PATH=" + folder}
		}
		out, err := process.Run(ctx, p)
		if err != nil {
			return fmt.Errorf("measure %s: %w", c.device, err)
		}
		if err := all.read(c.device, strings.NewReader(out)); err != nil {
			return err
		}
	}
	return nil
}

// read adds the lines of one program: case, ns and, from the SDK, allocations.
func (f figures) read(device string, r io.Reader) error {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		columns := strings.Split(lines.Text(), "\t")
		ns, err := strconv.ParseFloat(columns[min(1, len(columns)-1)], 64)
		if err != nil {
			return fmt.Errorf("a figure of %s is %q: %w", device, lines.Text(), err)
		}
		f.add(device, columns[0], ns, columns[2:])
	}
	return nil
}
