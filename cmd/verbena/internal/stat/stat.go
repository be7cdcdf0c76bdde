// Package stat is verbena stat: the counters and connections of running programs.
package stat

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/internal/statsocket"
	"github.com/verbena-rdma/verbena/internal/terminal"
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/verbs"
)

const text = `Shows the devices, contexts, stacks, agents and connections of running programs on the SDK, with
their counters: what ss -ti and rdma statistic show of the kernel's. It sees programs of the same user, in
the same network namespace, that call metrics.Serve; verbena proxy does so with -stat. Counters
that are zero are left out. Linux only.`

type options struct {
	pid       int
	json, all bool
}

// Page describes the command.
func Page() *usage.Page { return page(&options{}) }

func page(o *options) *usage.Page {
	f := usage.NewFlags("verbena stat")
	f.IntVar(&o.pid, "pid", 0, "only this process")
	f.BoolVar(&o.json, "json", false, "print everything as JSON; times are in nanoseconds")
	f.BoolVar(&o.all, "a", false, "show counters that are zero, too, and what each counts")
	return &usage.Page{Name: "verbena stat", About: "show counters and connections of running programs", Forms: []string{"[flags]"}, Text: text, Flags: f}
}

// Main runs the command, and returns its exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	operands, err := page(&o).Parse(args, stdout)
	if err == nil && len(operands) > 0 {
		err = errors.New("verbena stat takes no arguments")
	}
	if err != nil {
		return exit.WrongArguments("verbena stat", err, stderr)
	}
	names, err := statsocket.Names()
	if err != nil {
		return exit.Code(ctx, "verbena stat", err, stderr)
	}
	shots, unknown, err := snapshots(ctx, names, o.pid)
	if o.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = errors.Join(err, e.Encode(shots))
	} else {
		for i := range shots {
			show(stdout, &shots[i], o.all)
		}
	}
	if unknown != "" {
		_, _ = fmt.Fprintf(stderr, "verbena stat: %s\n", unknown)
	}
	return exit.Code(ctx, "verbena stat", err, stderr)
}

// maxAsked is how many programs are asked at the same time.
const maxAsked = 8

// answer is what a program has answered, or why it has not.
type answer struct {
	process int // 0: not known
	shot    statsocket.Snapshot[metrics.Object]
	err     error
}

// errEnded: the program has ended, maybe amid its answer.
var errEnded = errors.New("the program has ended")

func ask(ctx context.Context, name string, pid int) (a answer) {
	var data []byte
	a.process, data, a.err = statsocket.Read(ctx, name, pid)
	if a.err == nil && (pid == 0 || a.process == pid) {
		a.err = json.NewDecoder(bytes.NewReader(data)).Decode(&a.shot)
	}
	for _, ended := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(a.err, ended) {
			a.err = errEnded
		}
	}
	return a
}

// snapshots asks the programs at the sockets, all or that process. It goes on where one does not answer, and
// leaves out those that have ended and those of other users. unknown are the sockets of which it does not
// even know that; it is an error if nothing else is there.
func snapshots(ctx context.Context, names []string, pid int) (shots []statsocket.Snapshot[metrics.Object], unknown string, err error) {
	answers := make([]answer, len(names))
	var asked sync.WaitGroup
	places := make(chan struct{}, maxAsked)
	for i, name := range names {
		places <- struct{}{}
		asked.Go(func() {
			answers[i] = ask(ctx, name, pid)
			<-places
		})
	}
	asked.Wait()
	shots = []statsocket.Snapshot[metrics.Object]{} // as JSON it is no null
	if ctx.Err() != nil {
		return shots, "", ctx.Err()
	}
	var errs []error
	busy := 0
	for _, a := range answers {
		who := "a program"
		if a.process > 0 {
			who = fmt.Sprintf("process %d", a.process)
		}
		switch {
		case errors.Is(a.err, statsocket.ErrBusy):
			busy++
		case pid != 0 && a.process != pid, a.err == errEnded, errors.Is(a.err, os.ErrPermission):
		case errors.Is(a.err, statsocket.ErrSilent):
			errs = append(errs, fmt.Errorf("%s has not answered within %v: it is stopped (by SIGSTOP or a debugger), or busy with other clients", who, statsocket.AnswerTimeout))
		case a.err != nil:
			errs = append(errs, fmt.Errorf("ask %s: %s", who, clean(a.err.Error())))
		default:
			cleanSnapshot(&a.shot)
			a.shot.PID = cmp.Or(a.process, a.shot.PID)
			shots = append(shots, a.shot)
		}
	}
	if busy > 0 {
		unknown = fmt.Sprintf("sockets with this user's name that do not answer: %d (busy, or another user's)", busy)
	}
	slices.SortStableFunc(shots, func(a, b statsocket.Snapshot[metrics.Object]) int { return cmp.Compare(a.PID, b.PID) })
	switch {
	case len(shots) > 0 || len(errs) > 0:
		return shots, unknown, errors.Join(errs...)
	case pid != 0 && busy > 0:
		err = fmt.Errorf("process %d shows nothing yet: %s; try again", pid, unknown)
	case pid != 0:
		err = fmt.Errorf("process %d shows nothing: it is not there, is another user's or in another network namespace, or does not call metrics.Serve", pid)
	case busy > 0:
		err = errors.New(unknown)
	default:
		err = errors.New("no program shows anything: none of this user calls metrics.Serve in this network namespace")
	}
	return shots, "", err
}

// show prints what a program has shown.
func show(w io.Writer, s *statsocket.Snapshot[metrics.Object], all bool) {
	_, _ = fmt.Fprintf(w, "process %d %s\n", s.PID, s.Program)
	for i := range s.Objects {
		o := &s.Objects[i]
		switch o.Kind {
		case "connection", "stream":
			_, _ = fmt.Fprintf(w, "  %s\n      %s\n", line(o), inLine(o, all))
			continue
		}
		_, _ = fmt.Fprintf(w, "  %s\n", line(o))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, c := range o.Counters {
			if all {
				_, _ = fmt.Fprintf(t, "    %s\t%s\t%s\n", c.Name, value(c), c.Help)
			} else if c.Value != 0 {
				_, _ = fmt.Fprintf(t, "    %s\t%s\n", c.Name, value(c))
			}
		}
		_ = t.Flush()
	}
}

// line names an object.
func line(o *metrics.Object) string {
	parts := []string{o.Kind, o.Name}
	if o.Device != o.Name {
		parts = append(parts, "on "+o.Device)
	}
	parts = append(parts, o.State)
	if o.Local != "" {
		parts = append(parts, o.Local, "to", cmp.Or(o.Peer, "nobody yet"))
	}
	if o.Path != "" {
		parts = append(parts, "by "+o.Path)
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

// inLine is the counters of an object in a line, as ss -i has them.
func inLine(o *metrics.Object, all bool) string {
	var parts []string
	for _, c := range o.Counters {
		if all || c.Value != 0 {
			parts = append(parts, c.Name+":"+value(c))
		}
	}
	return strings.Join(parts, " ")
}

func value(c verbs.Counter) string {
	if c.Unit == "nanoseconds" {
		return time.Duration(min(c.Value, 1<<63-1)).Round(100 * time.Nanosecond).String()
	}
	return fmt.Sprint(c.Value)
}

// cleanSnapshot cleans all texts of a snapshot, which another program has sent.
func cleanSnapshot(s *statsocket.Snapshot[metrics.Object]) {
	s.Program = clean(s.Program)
	for i := range s.Objects {
		o := &s.Objects[i]
		for _, text := range []*string{&o.Kind, &o.Name, &o.Device, &o.State, &o.Path, &o.Local, &o.Peer} {
			*text = clean(*text)
		}
		for i := range o.Counters {
			c := &o.Counters[i]
			c.Name, c.Help, c.Unit = clean(c.Name), clean(c.Help), clean(c.Unit)
		}
	}
}

// clean makes a text one line of printable characters.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, terminal.Printable(s))
}
