// Package overhead measures what an operation costs above the adapter. It runs the layers of the
// SDK over a libibverbs that completes each request at once (csrc/null.c), beside a C loop over
// the same library, and over the software device. It needs gcc and the headers of libibverbs,
// and a build with -tags verbs.
package overhead

import (
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

	"github.com/verbena-rdma/verbena/bench/internal/measure"
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
	f.BoolVar(&o.tsv, "tsv", false, "print each figure, in columns separated by tabs: device, case, ns, allocations")
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
	self, err := os.Executable()
	if err != nil {
		return err
	}
	programs := o.programs(temp, self)
	if o.tsv {
		return printAll(ctx, o.rounds, programs)
	}
	s := &measure.Scene{Title: "an operation", Ratios: []measure.Ratio{{Of: 0, To: 1, Title: programs[0].name + " : C"}}}
	for _, p := range programs {
		s.Contenders = append(s.Contenders, measure.Contender{Name: p.name, Own: true, Measurements: []measure.Measurement{
			{Name: "all cases", Do: func(ctx context.Context) ([]measure.Value, error) { return p.values(ctx, o.only) }},
		}})
	}
	r, err := measure.Run(ctx, []*measure.Scene{s}, o.rounds, io.Discard)
	if r.Rounds == 0 {
		return err
	}
	r.About = []string{measure.Machine()}
	return errors.Join(err, r.Write(os.Stdout, false))
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

// program measures the cases of a layer or a device.
type program struct {
	name string
	process.Program
}

// programs are the SDK over the null library, the C loop over the same, and the SDK on the device.
func (o options) programs(folder, self string) []program {
	child := func(device string) []string {
		return []string{self, "overhead", "-child", device, "-t", o.duration.String(), "-only", o.only}
	}
	null := child(nullDevice)
	if o.profile != "" {
		null = append(null, "-cpuprofile", o.profile)
	}
	env := []string{"LD_LIBRARY_PATH=" + folder}
	ms := strconv.FormatFloat(o.duration.Seconds()*1e3, 'f', -1, 64)
	list := []program{
		{nullDevice, process.Program{Args: null, Env: env}},
		{"C", process.Program{Args: []string{filepath.Join(folder, "loop"), ms}, Env: env}},
	}
	if o.device != "" {
		list = append(list, program{o.device, process.Program{Args: child(o.device)}})
	}
	return list
}

// lines runs the program, and returns the columns of its lines: case, ns and, from the SDK,
// allocations.
func (p program) lines(ctx context.Context) (list [][]string, err error) {
	out, err := process.Run(ctx, p.Program)
	if err != nil {
		return nil, fmt.Errorf("measure %s: %w", p.name, err)
	}
	for line := range strings.Lines(out) {
		list = append(list, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return list, nil
}

// printAll prints all lines of all programs, for programs that compare.
func printAll(ctx context.Context, rounds int, programs []program) error {
	for range rounds {
		for _, p := range programs {
			lines, err := p.lines(ctx)
			if err != nil {
				return err
			}
			for _, columns := range lines {
				fmt.Println(p.name + "\t" + strings.Join(columns, "\t"))
			}
		}
	}
	return nil
}

// sameInC has the case of the C loop that does the same on one thread.
var sameInC = map[string]string{
	"verbs write/1":                  "C, fields set/1",
	"verbs write/64":                 "C, fields set/64",
	"verbs write/64, one completion": "C, fields set/64, one completion",
	"verbs, empty poll":              "C, empty poll",
	"rdma write/1":                   "C, fields set/1",
	"rdma write/64":                  "C, fields set/64",
	"rdma write/64, one completion":  "C, fields set/64, one completion",
	"rdma write, allocated anew/1":   "C, fields set/1",
	"rdma, idle Progress":            "C, empty poll",
	"await write, one caller/1":      "C, fields set/1",
}

// values returns the figures of the cases whose name contains a text. The C loop's are also those of
// the cases that do the same.
func (p program) values(ctx context.Context, only string) (values []measure.Value, err error) {
	lines, err := p.lines(ctx)
	if err != nil {
		return nil, err
	}
	add := func(name, unit, text string) error {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("a figure of %s is %q: %w", p.name, text, err)
		}
		if strings.Contains(name, only) {
			values = append(values, measure.Value{Row: measure.Row{Title: name, Unit: unit, Less: true}, Of: v})
		}
		return nil
	}
	for _, columns := range lines {
		err := add(columns[0], "ns", columns[min(1, len(columns)-1)])
		if err == nil && len(columns) > 2 && columns[2] != "0.00" {
			err = add(columns[0], "allocations", columns[2])
		}
		for name, same := range sameInC {
			if err == nil && same == columns[0] {
				err = add(name, "ns", columns[1])
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if len(values) == 0 && p.name == nullDevice { // C has not all cases
		return nil, fmt.Errorf("no case contains %q", only)
	}
	return values, nil
}
