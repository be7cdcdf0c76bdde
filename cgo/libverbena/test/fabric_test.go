//go:build linux

package test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// tally is what became of tests.
type tally struct {
	Passed  int
	Skipped map[string]int // by reason
	Failed  []string       // what they are, and why they failed
}

func (a *tally) tests() int {
	n := a.Passed + len(a.Failed)
	for _, skipped := range a.Skipped {
		n += skipped
	}
	return n
}

func (a *tally) skip(reason string, n int) {
	if a.Skipped == nil {
		a.Skipped = make(map[string]int)
	}
	a.Skipped[reason] += n
}

func (a *tally) add(b tally) {
	a.Passed += b.Passed
	a.Failed = append(a.Failed, b.Failed...)
	for reason, n := range b.Skipped {
		a.skip(reason, n)
	}
}

// suite is a line of the table of docs/fabric.md.
type suite struct {
	name  string // for ROWS
	title string
	from  string // where the programs come from
	rows  []row
}

// venue is a column of the table. Rows run in one of its places.
type venue struct {
	name        string
	alone, pair *place // for programs of one host; for others
	noLoopback  *place // for programs that do not use loopback interfaces
	loss        bool
}

// place returns where a row runs.
func (v *venue) place(r *row) *place {
	switch {
	case r.local:
		return v.alone
	case r.apart:
		return v.noLoopback
	default:
		return v.pair
	}
}

// venues are shared memory, UDP, and UDP with loss. The loopback interface of each is in a network
// namespace of its own.
func venues(t *testing.T) []*venue {
	runs := func(n netns.Namespace, device, visible, faults string) end {
		flags := []string{"-d", device}
		if faults != "" {
			flags = append(flags, "-faults", faults)
		}
		return end{prefix: append(n.Run(), verbenaRun(t, flags...)...), device: visible}
	}
	loopback := func(name, device, faults string) *place {
		e := runs(netns.New(t), device, "soft_lo", faults)
		return &place{name: name, server: e, client: e, host: "127.0.0.1", from: "127.0.0.1"}
	}
	between := func(name, faults string) (one, two *place) {
		hosts := netns.Hosts(t, 2, 1500)
		a := runs(hosts[0].Namespace, "soft-"+netns.Link, "soft_"+netns.Link, faults)
		b := runs(hosts[1].Namespace, "soft-"+netns.Link, "soft_"+netns.Link, faults)
		here, there := hosts[0].V4.String(), hosts[1].V4.String()
		return &place{name: name, server: a, client: a, host: here, from: here}, &place{name: name, server: a, client: b, host: here, from: there}
	}
	shared := loopback("shared memory", "soft-lo", "")
	one, _ := between("shared memory", "")
	list := []*venue{{name: "shared memory", alone: shared, pair: shared, noLoopback: one}}
	for _, faults := range []string{"", "loss=0.01"} {
		name := "UDP"
		if faults != "" {
			name = "UDP, 1 % loss"
		}
		_, two := between(name, faults)
		list = append(list, &venue{name: name, alone: loopback(name, "soft-lo?local=off", faults), pair: two, noLoopback: two, loss: faults != ""})
	}
	return list
}

// fabric is a run of make fabric.
type fabric struct {
	folder  string // of the results: a file for each suite and venue
	capture bool
}

func (f *fabric) file(s *suite, v *venue, ending string) string {
	return filepath.Join(f.folder, s.name, strings.NewReplacer(" ", "-", ",", "", "%", "percent").Replace(v.name)+ending)
}

func (f *fabric) result(s *suite, v *venue) (a tally, ok bool) {
	data, err := os.ReadFile(f.file(s, v, ".json"))
	return a, err == nil && json.Unmarshal(data, &a) == nil
}

// run runs a suite in a venue, and keeps the result, with the output of what failed.
func (f *fabric) run(t *testing.T, s *suite, v *venue) {
	result, failures := f.file(s, v, ".json"), f.file(s, v, ".txt")
	if len(s.rows) == 0 {
		t.Skip("scripts/fabric.sh has not built it")
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(result), 0o755))
	for _, old := range []string{result, failures} {
		if err := os.Remove(old); err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
	}
	var all tally
	var said strings.Builder
	for i := range s.rows {
		r := s.rows[i]
		r.limit = cmp.Or(r.limit, 3*time.Minute)
		for name := range strings.FieldsSeq(r.program) {
			needProgram(t, name, packageOf(name))
		}
		switch {
		case r.cannot != "":
			all.skip(r.cannot, 1)
			continue
		case v.loss && r.lossless != "":
			all.skip(r.lossless, 1)
			continue
		}
		began := time.Now()
		p, captures := v.place(&r).with(r.options, r.options), ""
		if f.capture {
			captures = f.file(s, v, fmt.Sprintf("-%d", i))
			require.NoError(t, os.MkdirAll(captures, 0o755))
			p = p.capturing(captures)
		}
		output, err := r.run(t, p)
		for more := r; r.rest != nil; {
			client := r.rest(output)
			if client == "" || client == more.client {
				break
			}
			more.client = client
			said, again := more.run(t, p)
			output, err = output+said, errors.Join(err, again)
		}
		one := tally{Passed: 1}
		switch {
		case r.counts != nil:
			one = r.counts(output)
			if err != nil && len(one.Failed) == 0 {
				one.Failed = []string{fmt.Sprintf("%s: %v", r.client, firstLine(err))}
			}
		case err != nil:
			one = tally{Failed: []string{r.client}}
		}
		t.Logf("%s, %s, %s: %d passed, %d failed, %v", s.name, v.name, r.client, one.Passed, len(one.Failed), time.Since(began).Round(time.Millisecond))
		all.add(one)
		if len(one.Failed) == 0 {
			_ = os.RemoveAll(captures)
			continue
		}
		fmt.Fprintf(&said, "== %s\n%v\n%v\n%s\n\n", r.client, one.Failed, err, output)
		require.NoError(t, os.WriteFile(failures, []byte(said.String()), 0o644))
	}
	data, err := json.MarshalIndent(all, "", "\t")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(result, data, 0o644))
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// capturing returns a place whose devices write captures into a folder. That ends shared memory.
func (p *place) capturing(folder string) *place {
	option := func(role string) string { return "capture=" + filepath.Join(folder, role+"-{pid}.pcap") }
	return p.with(option("server"), option("client"))
}

// with returns a place whose devices have more options.
func (p *place) with(server, client string) *place {
	with := *p
	for e, options := range map[*end]string{&with.server: server, &with.client: client} {
		last := len(e.prefix) - 1 // "--"
		if options == "" {
			continue
		}
		if e.prefix = slices.Clone(e.prefix); e.prefix[last-2] == "-faults" {
			e.prefix[last-1] += "&" + options
		} else {
			e.prefix = append(e.prefix[:last], "-faults", options, "--")
		}
	}
	return &with
}

// TestFabric runs programs and test suites of others, for make fabric, and writes the table of
// docs/fabric.md. VERBENA_FABRIC is the folder of the results, which another run continues;
// VERBENA_FABRIC_ROWS a regular expression for suites to run again, or ".".
func TestFabric(t *testing.T) {
	f := &fabric{folder: os.Getenv("VERBENA_FABRIC"), capture: os.Getenv("VERBENA_FABRIC_CAPTURE") != ""}
	if f.folder == "" {
		t.Skip("make fabric runs it")
	}
	choice := os.Getenv("VERBENA_FABRIC_ROWS")
	chosen, err := regexp.Compile("^(" + choice + ")$")
	require.NoError(t, err)
	suites, columns := suites(t), venues(t)
	t.Run("run", func(t *testing.T) {
		for _, v := range columns {
			t.Run(v.name, func(t *testing.T) {
				t.Parallel()
				for _, s := range suites {
					if _, have := f.result(s, v); have && !chosen.MatchString(s.name) || choice != "." && !chosen.MatchString(s.name) {
						continue
					}
					t.Run(s.name, func(t *testing.T) { f.run(t, s, v) })
				}
			})
		}
	})
	f.write(t, suites, columns)
}

// The table is between these lines of the document.
const (
	fabricDocument = "../../../docs/fabric.md"
	tableBegins    = "<!-- make fabric writes what follows -->\n"
	tableEnds      = "<!-- make fabric wrote what precedes -->\n"
)

// write writes the table into the document.
func (f *fabric) write(t *testing.T, suites []*suite, columns []*venue) {
	data, err := os.ReadFile(fabricDocument)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(data), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	require.True(t, found && ends, "%s lacks the lines between which the table is", fabricDocument)
	page := before + tableBegins + f.table(suites, columns) + tableEnds + after
	require.NoError(t, os.WriteFile(fabricDocument, []byte(page), 0o644))
}

// maxReasons is how many reasons for skipping tests of a suite are in the document.
const maxReasons = 6

// common removes from a command line what all rows have.
var common = strings.NewReplacer(" -d DEV", "", " -P DEV", "", " -p PORT", "", " -P PORT", "", " -g GID", "", " -h HOST", "", " HOST", "", " -s FROM", "")

// folders are those of programs and files of a command line, which are of one machine.
var folders = regexp.MustCompile(`(^| )/\S*/`)

// table is the table, with what was skipped, and what failed.
func (f *fabric) table(suites []*suite, columns []*venue) string {
	var table, notes strings.Builder
	table.WriteString("\n| suite | from |")
	for _, v := range columns {
		table.WriteString(" " + v.name + " |")
	}
	table.WriteString("\n|---|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, s := range suites {
		fmt.Fprintf(&table, "| %s | %s |", s.title, s.from)
		skipped, failed := make(map[string]int), make(map[string][]string)
		for _, v := range columns {
			a, ok := f.result(s, v)
			if !ok {
				table.WriteString(" not run |")
				continue
			}
			n := 0
			for reason, count := range a.Skipped {
				skipped[reason] = max(skipped[reason], count)
				n += count
			}
			fmt.Fprintf(&table, " %d / %d / %d |", a.Passed, n, len(a.Failed))
			for _, what := range a.Failed {
				failed[what] = append(failed[what], v.name)
			}
		}
		table.WriteString("\n")
		var lines []string
		reasons := slices.SortedFunc(maps.Keys(skipped), func(a, b string) int {
			return cmp.Or(skipped[b]-skipped[a], strings.Compare(a, b))
		})
		for i, reason := range reasons {
			if i == maxReasons {
				lines = append(lines, fmt.Sprintf("other reasons (%d) in .build/fabric", len(reasons)-i))
				break
			}
			lines = append(lines, fmt.Sprintf("%d skipped (%s)", skipped[reason], reason))
		}
		for _, what := range slices.Sorted(maps.Keys(failed)) {
			lines = append(lines, fmt.Sprintf("`%s` fails (%s)", folders.ReplaceAllString(common.Replace(what), "$1"), strings.Join(failed[what], "; ")))
		}
		if len(lines) > 0 {
			fmt.Fprintf(&notes, "- %s: %s\n", s.name, strings.Join(lines, "; "))
		}
	}
	return table.String() + "\n" + notes.String() + "\n"
}
