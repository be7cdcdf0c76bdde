package tool

import (
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

// UCX is ucx_perftest of UCX 1.13 with one of its transports.
type UCX struct {
	Path       string
	Transports string // as in UCX_TLS
}

// Name implements Tool.
func (u UCX) Name() string { return "UCX " + u.Transports }

// Program implements Tool.
func (u UCX) Program() string { return u.Path }

// Measures implements Tool.
func (UCX) Measures(figure.Figure) bool { return true }

// FirstCount implements Tool.
func (UCX) FirstCount(f figure.Figure) int { return firstCount(f) }

// ucxReads is how many reads are in flight: as many as ucx_perftest has for writes and
// messages. Its default for reads is one.
const ucxReads = 32

// Commands implements Tool.
func (u UCX) Commands(j *Job) (server, client Command) {
	var test string
	var more []string
	switch j.Figure.Kind {
	case figure.OneWay:
		test = "ucp_put_lat"
	case figure.Woken:
		test, more = "tag_lat", []string{"-E", "sleep"} // a put does not wake the peer
	case figure.Rate:
		test = "ucp_put_bw"
	default:
		switch j.Figure.Op {
		case plan.Read:
			test, more = "ucp_get", []string{"-O", strconv.Itoa(ucxReads)}
		case plan.Send:
			test = "tag_bw"
		default:
			test = "ucp_put_bw"
		}
	}
	// Log messages would go to standard output.
	env := []string{"UCX_TLS=" + u.Transports, "UCX_LOG_LEVEL=error"}
	if u.Transports == "tcp" {
		env = append(env, "UCX_NET_DEVICES="+j.Link)
	}
	common := append([]string{"-p", strconv.Itoa(j.Port), "-t", test, "-s", strconv.Itoa(j.Figure.Size), "-n", strconv.Itoa(j.Count)}, more...)
	server = Command{env, append([]string{u.Path}, common...)}
	client = Command{env, append([]string{u.Path, j.Server.String(), "-v", "-f"}, common...)}
	return server, client
}

// ucxHead is the first line with -v. The second column is the median: ucx_perftest prints
// percentile 50 by default.
const ucxHead = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"

// Read implements Tool. ucx_perftest prints bandwidth in units of 2^20 bytes.
func (UCX) Read(j *Job, out string) (s figure.Sample, err error) {
	list := lines(out)
	if len(list) != 2 || list[0] != ucxHead {
		return s, badOutput(out, "want the line %q and one line of figures", ucxHead)
	}
	words := strings.Split(list[1], ",")
	if len(words) != strings.Count(ucxHead, ",")+1 {
		return s, badOutput(out, "it has an unexpected number of figures, %d", len(words))
	}
	if n, err := strconv.Atoi(strings.TrimSpace(words[0])); err != nil || n != j.Count {
		return s, badOutput(out, "it made %s operations, want %d", words[0], j.Count)
	}
	switch {
	case j.Figure.IsTime():
		v, err := positive(words[1], words[3])
		if err != nil {
			return s, badOutput(out, "%v", err)
		}
		return figure.Sample{Median: v[0], Mean: v[1]}, nil
	case j.Figure.Kind == figure.Rate:
		v, err := positive(words[7])
		if err != nil {
			return s, badOutput(out, "%v", err)
		}
		return figure.Sample{Mean: v[0]}, nil
	}
	v, err := positive(words[5])
	if err != nil {
		return s, badOutput(out, "%v", err)
	}
	return figure.Sample{Mean: v[0] * (1 << 20)}, nil
}
