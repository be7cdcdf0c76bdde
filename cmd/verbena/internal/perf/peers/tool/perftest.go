package tool

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

// Perftest is the programs of perftest 4.5, on an RDMA device of the kernel, or under verbena
// run.
type Perftest struct {
	Folder string // that holds the programs
	Device string
	Title  string   // empty: "perftest"
	Under  []string // the beginning of its command lines
}

// Name implements Tool.
func (p Perftest) Name() string { return cmp.Or(p.Title, "perftest") }

// Program implements Tool.
func (p Perftest) Program() string { return p.Folder + "/ib_write_bw" }

// Measures implements Tool.
func (Perftest) Measures(figure.Figure) bool { return true }

// FirstCount implements Tool.
func (Perftest) FirstCount(f figure.Figure) int { return firstCount(f) }

// Commands implements Tool.
func (p Perftest) Commands(j *Job) (server, client Command) {
	program := "ib_write_lat"
	var more []string
	switch j.Figure.Kind {
	case figure.OneWay:
	case figure.Woken:
		program, more = "ib_send_lat", []string{"-e"}
	case figure.Rate:
		program, more = "ib_write_bw", []string{"-t", strconv.Itoa(Window), "-l", strconv.Itoa(Batch), "-Q", strconv.Itoa(Batch)}
	default:
		program, more = "ib_write_bw", []string{"-t", strconv.Itoa(Depth)}
		switch j.Figure.Op {
		case plan.Read:
			program = "ib_read_bw"
		case plan.Send:
			program = "ib_send_bw"
		}
	}
	common := append(p.Under[:len(p.Under):len(p.Under)], p.Folder+"/"+program, "-d", p.Device, "-F", "-p", strconv.Itoa(j.Port), "-s", strconv.Itoa(j.Figure.Size), "-n", strconv.Itoa(j.Count))
	common = append(common, more...)
	server.Args = common
	client.Args = append(common[:len(common):len(common)], j.Server.String())
	return server, client
}

// Read implements Tool. perftest prints bandwidth in units of 2^20 bytes.
func (Perftest) Read(j *Job, out string) (s figure.Sample, err error) {
	var head, row []string
	rows := 0
	for _, l := range lines(out) {
		words := strings.Fields(l)
		switch {
		case strings.HasPrefix(strings.TrimSpace(l), "#bytes"):
			if head != nil {
				return s, badOutput(out, "it contains two tables")
			}
			head = words
		case head != nil && !strings.HasPrefix(l, "---"):
			row = words
			rows++
		}
	}
	if rows != 1 {
		return s, badOutput(out, "it contains %d lines of figures, want one", rows)
	}
	first := map[bool]string{true: "t_min[usec]", false: "peak[MB/sec]"}[j.Figure.IsTime()]
	switch {
	case !strings.Contains(strings.Join(head, " "), first):
		return s, badOutput(out, "the table has no column %s", first)
	case len(row) < 5 || row[0] != strconv.Itoa(j.Figure.Size) || row[1] != strconv.Itoa(j.Count):
		return s, badOutput(out, "the figures are not for %d operations of %d bytes", j.Count, j.Figure.Size)
	}
	if j.Figure.IsTime() { // size, number, least, most, median, mean, ...
		if len(row) < 6 {
			return s, badOutput(out, "it has an unexpected number of figures, %d", len(row))
		}
		v, err := positive(row[4], row[5])
		if err != nil {
			return s, badOutput(out, "%v", err)
		}
		return figure.Sample{Median: v[0], Mean: v[1]}, nil
	}
	// Size, number, peak, mean, millions of messages a second.
	v, err := positive(row[3], row[4])
	if err != nil {
		return s, badOutput(out, "%v", err)
	}
	if j.Figure.Kind == figure.Rate {
		return figure.Sample{Mean: v[1] * 1e6}, nil
	}
	return figure.Sample{Mean: v[0] * (1 << 20)}, nil
}
