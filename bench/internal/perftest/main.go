// Package perftest compares the SDK with the programs of the package perftest, and connections
// by address with librdmacm's cmtime. It boots the virtual machine of test/rig once, and
// prints a table. make bench-rig runs it.
//
// Both run on the kernel's rxe, one after the other in each round, since the speed of the
// machine changes from minute to minute. Compare the ratios, not the figures.
package perftest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/test/rig"
)

// Run runs bench perftest.
func Run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("bench perftest", flag.ExitOnError)
	rounds := f.Int("rounds", 5, "number of times each measurement is made")
	duration := f.Duration("t", 500*time.Millisecond, "time of each measurement of the SDK, after its warm-up")
	only := f.String("run", strings.Join(measurements, " "), "the measurements, separated by spaces")
	verbose := f.Bool("v", false, "write each figure to standard error as it comes")
	_ = f.Parse(args) // exits on an error
	if f.NArg() > 0 || *rounds < 1 || *duration <= 0 {
		return errors.New("-rounds and -t must be positive, and no arguments are allowed; see -help")
	}
	var progress io.Writer = io.Discard
	if *verbose {
		progress = os.Stderr
	}
	return run(ctx, strings.Fields(*only), *rounds, *duration, progress)
}

// measurements are those that both programs support.
var measurements = []string{"write_bw", "read_bw", "send_bw", "write_lat", "dials"}

func run(ctx context.Context, names []string, rounds int, duration time.Duration, progress io.Writer) error {
	for _, name := range names {
		if !known(name) {
			return fmt.Errorf("there is no measurement %q; choose from %s", name, strings.Join(measurements, ", "))
		}
	}
	folder, err := os.MkdirTemp("", "verbena-perftest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	files := map[string]string{}
	for name, pkg := range map[string]string{"bench": "bench", "verbena": "cmd/verbena"} {
		binary := filepath.Join(folder, name)
		build := exec.CommandContext(ctx, "go", "build", "-tags", "verbs", "-o", binary, "github.com/verbena-rdma/verbena/"+pkg)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		files["/bin/"+name] = binary
	}
	var output strings.Builder
	each := duration + 20*time.Second
	_, err = rig.Boot(ctx, rig.Job{
		Files:   files,
		Script:  fmt.Sprintf(script, strings.Join(names, " "), rounds, duration),
		MTU:     9000,
		Timeout: time.Minute + time.Duration(rounds*len(names))*3*each,
	}, io.MultiWriter(&output, progress))
	if err != nil {
		return fmt.Errorf("%w\n%s", err, &output)
	}
	figures, err := parse(output.String())
	if err != nil {
		return err
	}
	_, err = io.WriteString(os.Stdout, table(figures))
	return err
}

func known(name string) bool {
	for _, m := range measurements {
		if m == name {
			return true
		}
	}
	return false
}

// script prints lines "FIGURE measurement program value". perftest's bandwidth is in Gb/s; the
// fifth column of its latencies is the median. Both ends are on the same device. Each end has
// a processor of its own, except where both poll and the kernel needs the rest of their time.
const script = `
measurements=%q rounds=%d time=%v
flags="-d rxe0 -x 1 -m 4096"
perftest() { # MEASUREMENT FLAGS...
	local m=$1
	shift
	$first ib_$m $flags "$@" >/dev/null 2>&1 &
	await-port 18515
	$second ib_$m $flags "$@" localhost | awk -v m=$m '
		$1 == 8 { print "FIGURE", m, "perftest", $5 }
		$1 == 65536 { print "FIGURE", m, "perftest", $4 / 8 }'
	wait
}
sdk() { # MEASUREMENT NAME DEVICE FLAGS...
	local m=$1 n=$2 d=$3
	shift 3
	$second verbena perf -d $d "$@" -once -p 18600 >/dev/null 2>&1 &
	await-port 18600
	$first verbena perf -d $d "$@" -p 18600 -test $m -m 4096 $shape -D $time -csv - localhost | awk -F, -v m=$m -v n=$n '
		NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i }
		NR == 2 && m == "write_lat" { print "FIGURE", m, n, $column["typical_us"] }
		NR == 2 && m != "write_lat" { print "FIGURE", m, n, $column["bytes_per_second"] / 1e9 }'
	wait
}
cmtime() { # the sum of the steps until all connections are established, for each
	command cmtime -b 10.0.0.1 -c 100 >/dev/null 2>&1 &
	sleep 1
	command cmtime -s 10.0.0.1 -c 100 |
		awk '/^(create|resolve|connect)/ { sum += $NF } END { print "FIGURE dials perftest", sum }'
	kill %%%%
	wait || true
}
dials() { # NAME DEVICE
	bench dials -d $2 -connections 100 -rounds 1 -t $time |
		awk -v n=$1 '$1 == "dials" { print "FIGURE dials", n, $(NF - 2) }'
}
for m in $measurements; do
	if [ $m = dials ]; then
		for round in $(seq $rounds); do
			cmtime
			dials rxe rxe0
			dials soft soft-lo
		done
		continue
	fi
	first="taskset 1" second="taskset 2" size="-s 65536 -t 16 -n 500 --report_gbits" shape="-s 65536 -t 16"
	case $m in
	send_bw) first= second= ;;
	write_lat) size="-s 8 -n 10000" shape="-s 8" ;;
	esac
	for round in $(seq $rounds); do
		perftest $m $size
		sdk $m rxe rxe0 -x 1
		sdk $m soft soft-lo
	done
done
`
