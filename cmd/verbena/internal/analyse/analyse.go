// Package analyse is verbena analyse: what a packet capture of RoCEv2 shows, and what went wrong.
package analyse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/progress"
	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/soft/capture"
)

const text = `Says what a capture of RoCEv2 traffic shows: the connections, what they did, what was lost,
repeated or refused, and why. FILE is a pcap or pcapng file of a software device (option
capture), tcpdump, dumpcap or Wireshark; - is the standard input, which is read to its end also
after Ctrl-C: the program that writes it ends it.`

type options struct{ json, verbose bool }

// Page describes the command.
func Page() *usage.Page { return page(&options{}) }

func page(o *options) *usage.Page {
	f := usage.NewFlags("verbena analyse")
	f.BoolVar(&o.json, "json", false, "print all figures as JSON; times are in nanoseconds")
	f.BoolVar(&o.verbose, "v", false, "print the details of all connections, not only of those with a problem")
	return &usage.Page{Name: "verbena analyse", About: "say what a packet capture of RoCEv2 shows, and what went wrong",
		Forms: []string{"[flags] FILE"}, Text: text, Flags: f}
}

// Main runs the command, and returns its exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	operands, err := page(&o).Parse(args, stdout)
	if err == nil && len(operands) != 1 {
		err = errors.New("name one capture, after the flags")
	}
	if err != nil {
		return exit.WrongArguments("verbena analyse", err, stderr)
	}
	var in io.Reader = os.Stdin
	if name := operands[0]; name == "-" {
		// Ctrl-C is for the program that writes the pipe, too. What it still writes is part of the
		// capture, and then the pipe ends. A second signal ends this program.
		ctx = context.WithoutCancel(ctx)
	} else {
		file, err := os.Open(name)
		if err != nil {
			return exit.Code(ctx, "verbena analyse", err, stderr)
		}
		defer func() { _ = file.Close() }()
		in = interruptible{ctx, file}
	}
	r, err := capture.Analyse(in)
	empty := r.Packets == 0 && len(notes(r)) == 0
	switch {
	case err != nil && empty: // most likely it is no capture
	case o.json:
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = errors.Join(err, e.Encode(r))
	default:
		show(stdout, r, o.verbose)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", operands[0], err)
		if !empty {
			err = fmt.Errorf("%w; what is above was read before", err)
		}
	}
	if errors.As(err, new(interrupt.Error)) { // which exit.Code does not print
		_, _ = fmt.Fprintf(stderr, "verbena analyse: %v\n", err)
	}
	return exit.Code(ctx, "verbena analyse", err, stderr)
}

// interruptible reads until the context ends.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(b []byte) (int, error) {
	if err := context.Cause(i.ctx); err != nil {
		return 0, err
	}
	return i.r.Read(b)
}

// show prints a table of the connections, and the details of some.
func show(w io.Writer, r *capture.Report, verbose bool) {
	_, _ = fmt.Fprintf(w, "%d packets of RoCEv2 in %v, %d connections\n", r.Packets, rounded(r.Last.Sub(r.First)), len(r.Connections))
	for _, line := range notes(r) {
		_, _ = fmt.Fprintln(w, line)
	}
	if len(r.Connections) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "\tservice\tfrom\tto\tpackets\tbytes\toperations\tround trip\trepeats\tlost\tmarked\tICRC")
	for i, c := range r.Connections {
		for j := range c.Sent {
			d := &c.Sent[j]
			if d.Packets == 0 && (j > 0 || c.Sent[1].Packets > 0) {
				continue
			}
			number, roundTrip := fmt.Sprint(i+1), "-"
			if j > 0 && c.Sent[0].Packets > 0 {
				number = ""
			}
			if d.RoundTrip.Count > 0 {
				roundTrip = rounded(d.RoundTrip.Mean).String()
			}
			_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", number, c.Service, end(c.Ends[j]), end(c.Ends[1-j]), d.Packets,
				progress.Bytes(d.Bytes), operations(d), roundTrip, d.Repeats.Total(), d.LostBefore+d.LostAfter, d.Marked, d.ICRCErrors)
		}
	}
	_ = t.Flush()
	for i, c := range r.Connections {
		if verbose || c.Diagnosis != "" {
			_, _ = fmt.Fprintln(w)
			details(w, i+1, c)
		}
	}
}

// notes are about packets that belong to no connection of the table.
func notes(r *capture.Report) (lines []string) {
	for _, n := range []struct {
		count int64
		what  string
	}{
		{r.LeftOut.Connections, "connections, not used for the longest time, were left out to bound the memory"},
		{r.Ignored.LinkType, "frames of link types that are not supported were ignored"},
		{r.Ignored.Blocks, "packets in Simple or obsolete Packet Blocks of pcapng were ignored"},
		{r.Ignored.Fragments, "IP fragments were ignored: RoCEv2 packets must not be fragmented"},
		{r.Ignored.Malformed, "packets were malformed, or recorded too short (tcpdump -s)"},
		{r.Ignored.ICRCErrors, "packets of no known connection had a wrong ICRC: they were changed on the way"},
		{r.Ignored.Unchecked, "packets were not checked for changes on the way: they were cut (tcpdump -s), or have no ICRC yet"},
	} {
		if n.count > 0 {
			lines = append(lines, fmt.Sprint(n.count, " ", n.what))
		}
	}
	return lines
}

func details(w io.Writer, number int, c *capture.Connection) {
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(w, "  %-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	_, _ = fmt.Fprintf(w, "%d: %s, %s to %s%s%s\n", number, c.Service, end(c.Ends[0]), end(c.Ends[1]), given(", port ", int64(c.Port)), given(", path MTU ", int64(c.MTU)))
	if c.Diagnosis != "" {
		line("diagnosis", "%s", c.Diagnosis)
	}
	line("outcome", "%s, after %v", c.Outcome, rounded(c.Last.Sub(c.First)))
	var events []string
	for _, e := range c.Events {
		text := fmt.Sprintf("%s by %v at %v", e.Message, e.From, rounded(e.At.Sub(c.First)))
		if e.Times > 1 {
			text += fmt.Sprintf(" (%d times)", e.Times)
		}
		if e.Reason != "" {
			text += " (" + e.Reason + ")"
		}
		events = append(events, text)
	}
	if len(events) > 0 {
		line("messages", "%s", strings.Join(events, ", "))
	}
	for i := range c.Sent {
		d := &c.Sent[i]
		if d.Packets == 0 {
			continue
		}
		var parts []string
		add := func(n int64, what string) {
			if n > 0 {
				parts = append(parts, fmt.Sprint(n, " ", what))
			}
		}
		add(d.Repeats.Sequence, "repeated after a sequence NAK")
		add(d.Repeats.RNR, "repeated after an RNR NAK")
		add(d.Repeats.Response, "repeated after a missing response")
		add(d.Repeats.TimeOut, "repeated after a time-out")
		add(d.Repeats.AckLost, "repeated though acknowledged")
		add(d.Repeats.Duplicated, "duplicated")
		add(d.LostBefore, "lost before the capture")
		add(d.LostAfter, "lost behind the capture")
		add(d.Gaps, "gaps")
		add(d.Unrecorded, "missing in the capture alone")
		add(d.Reordered, "overtaken")
		add(d.Marked, "marked (ECN)")
		add(d.Notified, "congestion notifications")
		add(d.ICRCErrors, "with a wrong ICRC")
		add(d.SequenceNAKs, "sequence NAKs")
		add(d.RNRNAKs, "RNR NAKs")
		for _, reason := range slices.Sorted(maps.Keys(d.NAKs)) {
			add(d.NAKs[reason], "NAKs: "+reason)
		}
		if d.RoundTrip.Count > 0 {
			parts = append(parts, fmt.Sprintf("round trip %v to %v", rounded(d.RoundTrip.Min), rounded(d.RoundTrip.Max)))
		}
		if len(parts) > 0 {
			line("sent", "by %v: %s", c.Ends[i].Addr, strings.Join(parts, ", "))
		}
	}
}

func end(e capture.End) string {
	if e.QPN == 0 {
		return e.Addr.String()
	}
	return fmt.Sprintf("%v/%#x", e.Addr, e.QPN)
}

func given(name string, n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(name, n)
}

func operations(d *capture.Direction) string {
	var parts []string
	for _, o := range []struct {
		n    int64
		name string
	}{{d.Sends, "send"}, {d.Writes, "write"}, {d.Reads, "read"}, {d.Atomics, "atomic"}} {
		if o.n > 0 {
			parts = append(parts, fmt.Sprint(o.n, " ", o.name))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// rounded rounds a duration to about three digits.
func rounded(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
