package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/rig"
)

// leastShare is what the SDK has to reach of the bandwidth of perftest.
const leastShare = 0.9

// TestRigPerftest measures bandwidth on the kernel's rxe, in turns with perftest,
// until one turn reaches the share, or there were many: other programs take the
// processors whenever they like. VERBENA_PERFTEST is a number of turns to be made in
// any case, with latency, and the software device beside it, for docs/performance.md.
func TestRigPerftest(t *testing.T) {
	rig.Require(t)
	turns, asked := 16, os.Getenv("VERBENA_PERFTEST")
	if asked != "" {
		var err error
		turns, err = strconv.Atoi(asked)
		require.NoError(t, err)
	}
	out := rig.Run(t, rig.Job{
		Files:   map[string]string{"/bin/bench": rig.Build(t, ".", "-tags", "verbs")},
		Script:  fmt.Sprintf(perftestScript, turns, asked, leastShare),
		MTU:     9000,
		Timeout: time.Minute + time.Duration(turns)*20*time.Second,
	})
	figures := parseFigures(t, out)
	for _, m := range []string{"write_bw", "read_bw", "send_bw"} {
		theirs, ours := figures[m+" perftest"], figures[m+" rxe"]
		require.NotEmpty(t, ours)
		require.Len(t, theirs, len(ours))
		var shares []float64
		for i := range ours {
			shares = append(shares, ours[i]/theirs[i])
		}
		assert.GreaterOrEqual(t, slices.Max(shares), leastShare, "%s: perftest %v GB/s, the SDK %v", m, theirs, ours)
	}
	if asked != "" {
		for _, line := range ratios(figures) {
			t.Log(line)
		}
	}
}

// parseFigures collects lines "FIGURE measurement program value".
func parseFigures(t *testing.T, out string) map[string][]float64 {
	figures := map[string][]float64{}
	for line := range strings.Lines(out) {
		_, rest, found := strings.Cut(line, "FIGURE ")
		if !found {
			continue
		}
		words := strings.Fields(rest)
		require.Len(t, words, 3, "%q", line)
		v, err := strconv.ParseFloat(words[2], 64)
		require.NoError(t, err, "%q", line)
		name := words[0] + " " + words[1]
		figures[name] = append(figures[name], v)
	}
	return figures
}

// ratios are rows of docs/performance.md, of medians and of the best turns.
func ratios(figures map[string][]float64) (rows []string) {
	for _, m := range []string{"write_bw", "read_bw", "send_bw", "write_lat"} {
		best := slices.Max[[]float64]
		if m == "write_lat" {
			best = slices.Min[[]float64]
		}
		theirs, ours, soft := figures[m+" perftest"], figures[m+" rxe"], figures[m+" soft"]
		rows = append(rows, fmt.Sprintf("| %s | %.3g, %.3g, %.3g | %.2f | %.2f | %.2f | %.2f |", m,
			median(theirs), median(ours), median(soft),
			median(ours)/median(theirs), best(ours)/best(theirs), median(soft)/median(ours), best(soft)/best(ours)))
	}
	return rows
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// perftest's bandwidth is in Gb/s; its fifth column of latencies is the median.
// Both ends are on the same device.
const perftestScript = `
turns=%d all=%q share=%v
flags="-d rxe0 -x 1 -m 4096"
theirs() { # PROGRAM FLAGS...
	local program=$1
	shift
	"$program" $flags "$@" >/dev/null 2>&1 &
	await-port 18515
	"$program" $flags "$@" localhost
	wait
}
their_bandwidth() {
	theirs ib_$1 -s 65536 -t 16 -n 500 --report_gbits | awk -v m=$1 '$1 == 65536 { print "FIGURE", m, "perftest", $4 / 8 }'
}
their_latency() {
	theirs ib_write_lat -s 8 -n 2000 | awk '$1 == 8 { print "FIGURE write_lat perftest", $5 }'
}
ours() { # MEASUREMENT NAME DEVICE
	bench -d "$3" -run $1 -mtu 4096 -size 65536 -window 16 -t 500ms | awk -v m=$1 -v n=$2 '$1 == m { print "FIGURE", m, n, $2 }'
}
for m in write_bw read_bw send_bw; do
	for turn in $(seq $turns); do
		{ their_bandwidth $m; ours $m rxe rxe0; } >turn
		cat turn
		if [ -n "$all" ]; then
			ours $m soft soft-lo
		elif awk -v share=$share '{ v[NR] = $4 } END { exit !(v[2] >= share * v[1]) }' turn; then
			break
		fi
	done
done
[ -n "$all" ] || exit 0
for turn in $(seq $turns); do
	their_latency
	ours write_lat rxe rxe0
	ours write_lat soft soft-lo
done
`
