package peers

import (
	"strings"

	"github.com/verbena-rdma/verbena/internal/process"
)

// perftest is the programs of perftest 4.5, on an RDMA device of the kernel, or under verbena
// run.
type perftest struct {
	counted
	folder string // that holds the programs
	device string
	under  []string // the beginning of its command lines
}

func (perftest) measures(f figure) bool { return f.isData() }

func (p perftest) commands(j *job) (server, client process.Program) {
	program := "ib_write_bw"
	more := []string{"-t", number(depth)}
	switch {
	case j.figure.kind == oneWay:
		program, more = "ib_write_lat", nil
	case j.figure.kind == woken:
		program, more = "ib_send_lat", []string{"-e"}
	case j.figure.kind == rate:
		more = []string{"-t", number(window), "-l", number(batch), "-Q", number(batch)}
	case j.figure.op != "write":
		program = "ib_" + j.figure.op + "_bw"
	}
	common := append(p.under[:len(p.under):len(p.under)], p.folder+"/"+program, "-d", p.device, "-F", "-p", number(j.port), "-s", number(j.figure.size), "-n", number(j.count))
	server.Args = append(common, more...)
	client.Args = append(server.Args[:len(server.Args):len(server.Args)], j.server.String())
	return server, client
}

// read knows that perftest prints bandwidth in units of 2^20 bytes.
func (perftest) read(j *job, out string) (s sample, err error) {
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
	// Size, number, least, most, median, mean ...; or size, number, peak, mean, millions of messages a
	// second.
	first, columns := "peak[MB/sec]", 5
	if j.figure.isTime() {
		first, columns = "t_min[usec]", 6
	}
	switch {
	case rows != 1:
		return s, badOutput(out, "it contains %d lines of figures, want one", rows)
	case !strings.Contains(strings.Join(head, " "), first):
		return s, badOutput(out, "the table has no column %s", first)
	case len(row) < columns:
		return s, badOutput(out, "it has an unexpected number of figures, %d", len(row))
	case row[0] != number(j.figure.size) || row[1] != number(j.count):
		return s, badOutput(out, "the figures are not for %d operations of %d bytes", j.count, j.figure.size)
	}
	switch {
	case j.figure.isTime():
		return j.sample(out, 1, row[columns-2], row[columns-1])
	case j.figure.kind == rate:
		return j.sample(out, 1e6, row[columns-1])
	}
	return j.sample(out, 1<<20, row[columns-2])
}
