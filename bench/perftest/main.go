// Command perftest measures the SDK beside the programs of the package perftest, and
// connections by address beside librdmacm's cmtime, in one boot of the virtual machine of test/rig, and prints a table. It is what
// make bench-rig runs.
//
// Both run on the kernel's rxe, one after the other in each round, since the speed
// of the machine changes from minute to minute: compare the ratios, not the figures.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/version"
	"github.com/verbena-rdma/verbena/test/rig"
)

func main() {
	rounds := flag.Int("rounds", 5, "how often each measurement is made")
	duration := flag.Duration("t", 500*time.Millisecond, "time of each measurement of the SDK, after its warm-up")
	only := flag.String("run", strings.Join(measurements, " "), "the measurements, separated by spaces")
	verbose := flag.Bool("v", false, "write each figure to standard error as it comes")
	showVersion := flag.Bool("version", false, "print the version, and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println("perftest", version.String())
		return
	}
	if flag.NArg() > 0 || *rounds < 1 || *duration <= 0 {
		fmt.Fprintln(os.Stderr, "perftest: -rounds and -t must be positive, and there are no arguments; see -help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var progress io.Writer = io.Discard
	if *verbose {
		progress = os.Stderr
	}
	if err := run(ctx, strings.Fields(*only), *rounds, *duration, progress); err != nil {
		fmt.Fprintln(os.Stderr, "perftest:", err)
		os.Exit(1)
	}
}

// measurements are those that both sides have.
var measurements = []string{"write_bw", "read_bw", "send_bw", "write_lat", "dials"}

func run(ctx context.Context, names []string, rounds int, duration time.Duration, progress io.Writer) error {
	for _, name := range names {
		if !known(name) {
			return fmt.Errorf("no measurement %q; there are %s", name, strings.Join(measurements, ", "))
		}
	}
	folder, err := os.MkdirTemp("", "verbena-perftest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	bench := filepath.Join(folder, "bench")
	build := exec.CommandContext(ctx, "go", "build", "-tags", "verbs", "-o", bench, "github.com/verbena-rdma/verbena/bench")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build bench: %w\n%s", err, out)
	}
	var output strings.Builder
	each := duration + 20*time.Second
	_, err = rig.Boot(ctx, rig.Job{
		Files:   map[string]string{"/bin/bench": bench},
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

// script prints lines "FIGURE measurement program value". perftest's bandwidth is in
// Gb/s; its fifth column of latencies is the median. Both ends are on the same
// device. Each has a processor of its own, except where both poll and the kernel
// needs what they leave.
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
sdk() { # MEASUREMENT NAME DEVICE
	$first bench -peer-prefix "$second" -d $3 -run $1 -mtu 4096 -size 65536 -window 16 -t $time |
		awk -v m=$1 -v n=$2 '$1 == m { print "FIGURE", m, n, $2 }'
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
	bench -d $2 -run dials -connections 100 -rounds 1 -t $time |
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
	first="taskset 1" second="taskset 2" size="-s 65536 -t 16 -n 500 --report_gbits"
	case $m in
	send_bw) first= second= ;;
	write_lat) size="-s 8 -n 10000" ;;
	esac
	for round in $(seq $rounds); do
		perftest $m $size
		sdk $m rxe rxe0
		sdk $m soft soft-lo
	done
done
`
