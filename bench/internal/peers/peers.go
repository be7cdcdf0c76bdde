// Package peers has Verbena and other programs measure the same figures, in turns, and compares them:
// RDMA with UCX, libfabric and perftest, streams with TCP, files with scp. A scene is where the two
// ends run, and which tools take part; a tool knows a program; a figure is what is measured.
package peers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/internal/process"
)

const usage = `usage: bench peers [flags]

Measures the same figures with Verbena and with those of UCX (ucx_perftest), libfabric
(fi_pingpong), perftest and OpenSSH that are installed. Every program runs as two
processes, in several rounds. The output shows the figures and their ratios. It needs Linux, and
root for network namespaces, which it creates and removes.

`

// options are the flags.
type options struct {
	rounds  int
	busy    int           // programs that compute all the time, beside those that are measured
	time    time.Duration // of each measurement
	limit   time.Duration // of each measurement, including setup
	scenes  []string
	mib     int64 // size of the file
	verbena string
	log     io.Writer
}

// Run runs bench peers.
func Run(ctx context.Context, args []string) error {
	o := options{log: io.Discard}
	f := flag.NewFlagSet("bench peers", flag.ExitOnError)
	f.IntVar(&o.rounds, "rounds", 5, "number of rounds; in each round every program makes all its measurements")
	f.IntVar(&o.busy, "busy", 0, "`number` of busy loops, each a process, that run beside both ends")
	f.DurationVar(&o.time, "t", 300*time.Millisecond, "`time` of each measurement; programs that count operations get a number that takes about as long")
	f.DurationVar(&o.limit, "timeout", time.Minute, "`time` limit of a measurement; its programs are then killed")
	chosen := f.String("scene", "local,adapter,library,veth1500,veth9000", "`scenes`, separated by commas")
	f.Int64Var(&o.mib, "mib", 2048, "size of the file in `MiB`; memory must hold it twice")
	f.StringVar(&o.verbena, "verbena", "", "the `program` verbena (default: it is built)")
	asJSON := f.Bool("json", false, "write all values, as JSON")
	markdown := f.Bool("markdown", false, "write the tables in Markdown")
	verbose := f.Bool("v", false, "write the command lines, and each value, to standard error")
	f.Usage = func() {
		fmt.Fprint(f.Output(), usage+"Scenes:\n")
		for _, s := range scenes {
			fmt.Fprintf(f.Output(), "  %-12s %s\n", s.name, s.about)
		}
		fmt.Fprintln(f.Output())
		f.PrintDefaults()
	}
	_ = f.Parse(args) // exits on an error
	o.scenes = strings.Split(*chosen, ",")
	for _, name := range o.scenes {
		if !slices.ContainsFunc(scenes, func(s sceneKind) bool { return s.name == name }) {
			return fmt.Errorf("there is no scene %q; see -help", name)
		}
	}
	if f.NArg() > 0 || o.rounds < 1 || o.busy < 0 || o.time < 5*time.Millisecond || o.limit <= o.time || o.mib < 1 || o.mib > 1<<20 {
		return errors.New("-rounds must be positive, -busy not negative, -t at least 5ms and less than -timeout, -mib 1 to 1048576, and no arguments are allowed; see -help")
	}
	if *verbose {
		o.log = os.Stderr
	}
	r, err := compare(ctx, &o)
	if r == nil || r.Rounds == 0 {
		return err
	}
	if *asJSON {
		return errors.Join(err, r.WriteJSON(os.Stdout))
	}
	return errors.Join(err, r.Write(os.Stdout, *markdown))
}

// compare measures all scenes. If it is interrupted, it returns the rounds that are complete.
func compare(ctx context.Context, o *options) (r *measure.Result, err error) {
	folder, err := os.MkdirTemp("", "verbena-peers-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if o.verbena == "" {
		o.verbena = filepath.Join(folder, "verbena")
		if err := build(ctx, o.verbena); err != nil {
			return nil, err
		}
	}
	if o.verbena, err = exec.LookPath(o.verbena); err != nil {
		return nil, err
	}
	m := &measurer{options: o}
	defer func() {
		for _, done := range m.closers {
			err = errors.Join(err, done())
		}
	}()
	m.find(ctx)
	var list []*measure.Scene
	for _, name := range o.scenes {
		s, err := m.scene(ctx, name)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	load := measure.StartLoad()
	stop, err := startBusy(ctx, o.busy)
	if err != nil {
		return nil, err
	}
	r, err = measure.Run(ctx, list, o.rounds, o.log)
	m.cpu += stop()
	r.Notes = m.missing
	r.About = []string{measure.Machine(), "Compared: " + strings.Join(m.versions, ", ") + ".", load.Others(m.cpu)}
	if o.busy > 0 {
		r.About = append(r.About, fmt.Sprintf("Busy loops beside both ends: %d.", o.busy))
	}
	return r, err
}

// startBusy starts n processes that compute until stop, which returns their processor time.
func startBusy(ctx context.Context, n int) (stop func() time.Duration, err error) {
	var loops []*process.Process
	stop = func() (cpu time.Duration) {
		for _, p := range loops {
			p.Kill()
			cpu += p.CPU()
		}
		return cpu
	}
	for range n {
		p, err := process.Start(ctx, process.Program{Args: []string{"sh", "-c", "while :; do :; done"}})
		if err != nil {
			stop()
			return nil, err
		}
		loops = append(loops, p)
	}
	return stop, nil
}

// build builds verbena. Its module has more dependencies than this one.
func build(ctx context.Context, path string) error {
	root, err := process.Run(ctx, process.Program{Args: []string{"go", "list", "-m", "-f", "{{.Dir}}", "github.com/verbena-rdma/verbena"}})
	if err == nil {
		_, err = process.Run(ctx, process.Program{Args: []string{"go", "build", "-o", path, "./cmd/verbena"}, Dir: strings.TrimSpace(root)})
	}
	return err
}

// measurer makes measurements.
type measurer struct {
	*options
	closers []func() error
	cpu     time.Duration // processor time of all measured programs

	// What was found on the machine. The path of a program that was not found is empty.
	ucx, pingPong string
	perftest      string // folder
	device        string // the first RDMA device of the kernel; empty: there is none
	versions      []string
	missing       []string
}

// devices is where the kernel lists its RDMA devices.
const devices = "/sys/class/infiniband"

// find finds programs of others, and the kernel's device.
func (m *measurer) find(ctx context.Context) {
	find := func(program, name, why string, version ...string) string {
		path, err := exec.LookPath(program)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			m.missing = append(m.missing, fmt.Sprintf("not measured: %s: there is no %s; %s", name, program, why))
			return ""
		}
		if len(version) > 0 {
			m.versions = append(m.versions, strings.TrimSpace(name+" "+lastWord(ctx, version...)))
		}
		return path
	}
	own, _ := process.Run(ctx, process.Program{Args: []string{m.verbena, "-version"}, Limit: time.Minute})
	m.versions = append(m.versions, strings.TrimSpace(own))
	m.ucx = find("ucx_perftest", "UCX", "install the Debian package ucx-utils", "ucx_info", "-v")
	m.pingPong = find("fi_pingpong", "libfabric", "install the Debian package libfabric-bin", "fi_info", "--version")
	if path := find("ib_write_bw", "perftest", "install the Debian package perftest", "ib_write_bw", "--version"); path != "" {
		m.perftest = filepath.Dir(path)
	}
	if list, err := os.ReadDir(devices); err == nil && len(list) > 0 {
		m.device = list[0].Name()
	}
}

// lastWord returns the last word of the first line that a program prints, which is the version in
// all programs here.
func lastWord(ctx context.Context, args ...string) string {
	out, _ := process.Run(ctx, process.Program{Args: args, Limit: time.Minute})
	first, _, _ := strings.Cut(out, "\n")
	words := strings.Fields(first)
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

// measurement has a tool measure a figure between two hosts. A program that runs a given number of
// operations is measured once more before, to find out how many the others need; that first
// measurement is not a result.
func (m *measurer) measurement(t tool, f figure, at place) measure.Measurement {
	count := 0
	return measure.Measurement{Name: f.String(), Do: func(ctx context.Context) ([]measure.Value, error) {
		if first := t.firstCount(f); first > 0 && count == 0 {
			found, err := m.run(ctx, t, f, at, first)
			if err != nil {
				return nil, err
			}
			count = countFor(f, found, m.time, first)
		}
		s, err := m.run(ctx, t, f, at, count)
		return f.values(s), err
	}}
}

// mostCount is the most operations of a measurement, so that programs can hold it in their
// integers.
const mostCount = 1 << 30

// countFor estimates, from one measurement, how many operations take the time t. It returns at
// least first, rounded down to batches.
func countFor(f figure, found sample, t time.Duration, first int) int {
	n := t.Seconds() / f.each(found)
	if f.isTime() {
		n /= 2 // a round trip is two times
	}
	return max(int(min(n, mostCount)), first) / batch * batch
}

// run runs a pair of programs.
func (m *measurer) run(ctx context.Context, t tool, f figure, at place, count int) (sample, error) {
	port, err := FreePort()
	if err != nil {
		return sample{}, err
	}
	j := &job{figure: f, count: count, time: m.time, limit: m.limit, server: at.address, port: port, link: at.link}
	server, client := t.commands(j)
	server.Args, client.Args = slices.Concat(at.prefix[0], server.Args), slices.Concat(at.prefix[1], client.Args)
	_, _ = fmt.Fprintf(m.log, "%s\n%s\n", textOf(server), textOf(client))
	_, stays := t.(interface{ stays() })
	o, err := Pair(ctx, server, client, port, m.limit, stays)
	m.cpu += o.CPU
	if err != nil {
		return sample{}, err
	}
	j.elapsed = o.Elapsed
	return t.read(j, o.Output)
}
