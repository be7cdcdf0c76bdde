package peers

import (
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/internal/process"
)

// ucx is ucx_perftest of UCX 1.13 with one of its transports.
type ucx struct {
	counted
	path       string
	transports string // as in UCX_TLS
}

func (ucx) measures(f figure) bool { return f.isData() }

// ucxReads is how many reads are in flight: as many as ucx_perftest has for writes and
// messages. Its default for reads is one.
const ucxReads = 32

func (u ucx) commands(j *job) (server, client process.Program) {
	test := "ucp_put_bw"
	var more []string
	switch {
	case j.figure.kind == oneWay:
		test = "ucp_put_lat"
	case j.figure.kind == woken:
		test, more = "tag_lat", []string{"-E", "sleep"} // a put does not wake the peer
	case j.figure.op == "read":
		test, more = "ucp_get", []string{"-O", number(ucxReads)}
	case j.figure.op == "send":
		test = "tag_bw"
	}
	// Log messages would go to standard output.
	env := []string{"UCX_TLS=" + u.transports, "UCX_LOG_LEVEL=error"}
	if u.transports == "tcp" {
		env = append(env, "UCX_NET_DEVICES="+j.link)
	}
	common := append([]string{"-p", number(j.port), "-t", test, "-s", number(j.figure.size), "-n", number(j.count)}, more...)
	server = process.Program{Env: env, Args: append([]string{u.path}, common...)}
	client = process.Program{Env: env, Args: append([]string{u.path, j.server.String(), "-v", "-f"}, common...)}
	return server, client
}

// ucxHead is the first line with -v. The second column is the median: ucx_perftest prints
// percentile 50 by default.
const ucxHead = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"

// read knows that ucx_perftest prints bandwidth in units of 2^20 bytes.
func (ucx) read(j *job, out string) (s sample, err error) {
	list := lines(out)
	if len(list) != 2 || list[0] != ucxHead {
		return s, badOutput(out, "want the line %q and one line of figures", ucxHead)
	}
	words := strings.Split(list[1], ",")
	if len(words) != strings.Count(ucxHead, ",")+1 {
		return s, badOutput(out, "it has an unexpected number of figures, %d", len(words))
	}
	if n, err := strconv.Atoi(strings.TrimSpace(words[0])); err != nil || n != j.count {
		return s, badOutput(out, "it made %s operations, want %d", words[0], j.count)
	}
	switch {
	case j.figure.isTime():
		return j.sample(out, 1, words[1], words[3])
	case j.figure.kind == rate:
		return j.sample(out, 1, words[7])
	}
	return j.sample(out, 1<<20, words[5])
}
