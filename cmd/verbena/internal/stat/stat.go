// Package stat is verbena stat: the counters and connections of running programs.
package stat

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/internal/statsocket"
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/verbs"
)

const text = `Shows the devices, contexts, stacks and connections of running programs on the SDK, with their
counters: what ss -ti and rdma statistic show of the kernel's. It sees programs of the same user, in
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
	shots, err := snapshots(o.pid)
	if o.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = errors.Join(err, e.Encode(shots))
	} else {
		for i := range shots {
			show(stdout, &shots[i], o.all)
		}
	}
	return exit.Code(ctx, "verbena stat", err, stderr)
}

// snapshots asks the programs, all or that process. It goes on where one does not answer.
func snapshots(pid int) (shots []statsocket.Snapshot[metrics.Object], err error) {
	names, err := statsocket.Names()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		process, data, err := statsocket.Read(name)
		if pid != 0 && process != pid {
			continue
		}
		var s statsocket.Snapshot[metrics.Object]
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("ask process %d: %w", process, err))
			continue
		}
		s.PID = cmp.Or(process, s.PID)
		shots = append(shots, s)
	}
	slices.SortStableFunc(shots, func(a, b statsocket.Snapshot[metrics.Object]) int { return cmp.Compare(a.PID, b.PID) })
	switch {
	case len(shots) > 0 || len(errs) > 0:
	case pid != 0:
		errs = append(errs, fmt.Errorf("process %d shows nothing: it is not there, is another user's or in another network namespace, or does not call metrics.Serve", pid))
	default:
		errs = append(errs, errors.New("no program shows anything: none of this user calls metrics.Serve in this network namespace"))
	}
	return shots, errors.Join(errs...)
}

// show prints what a program has shown.
func show(w io.Writer, s *statsocket.Snapshot[metrics.Object], all bool) {
	_, _ = fmt.Fprintf(w, "process %d %s\n", s.PID, clean(s.Program))
	for i := range s.Objects {
		o := &s.Objects[i]
		switch o.Kind {
		case "connection", "stream":
			_, _ = fmt.Fprintf(w, "  %s\n      %s\n", clean(line(o)), clean(inLine(o, all)))
			continue
		}
		_, _ = fmt.Fprintf(w, "  %s\n", clean(line(o)))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, c := range o.Counters {
			if all {
				_, _ = fmt.Fprintf(t, "    %s\t%s\t%s\n", clean(c.Name), value(c), clean(c.Help))
			} else if c.Value != 0 {
				_, _ = fmt.Fprintf(t, "    %s\t%s\n", clean(c.Name), value(c))
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

// clean replaces what could command a terminal: another program has sent the text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
