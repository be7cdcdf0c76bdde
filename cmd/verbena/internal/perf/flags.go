package perf

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/internal/usage"
)

// defaultPort is the default port of perftest.
const defaultPort = 18515

// options are the flags.
type options struct {
	device   string
	ibPort   int
	gid      int
	port     int
	bind     string
	cm       bool
	perftest bool // the other end is a program of perftest
	once     bool
	timeout  time.Duration
	wait     time.Duration // for a server to come
	memory   int64
	target   string // HOST or HOST:PORT; empty: run the server

	plans    []*plan.Plan
	gbits    bool
	counters bool
	json     string
	csv      string
	profile  string
}

const text = `Measures operations between two hosts, as the perftest programs do. Without HOST, this is the
server; it needs only the flags for device and address, because the client tells it what to measure.
The program bench of the repository compares reports (-json), and draws them.`

// limits returns the limits of a plan on this machine.
func (o *options) limits() plan.Limits {
	return plan.Limits{Memory: o.memory, Connections: 1 << 16, Engines: max(8, 2*runtime.NumCPU())}
}

// validate checks a plan against the limits and the flags of this end.
func (o *options) validate(p *plan.Plan) error {
	batches := p.Test.Kind == plan.Batches
	switch {
	case batches && (o.gid >= 0 || o.ibPort > 0):
		return errors.New("-x and -i cannot be used with batches, for which package transfer chooses port and GID")
	case !batches && strings.Contains(o.device, ","):
		return fmt.Errorf("-d is %s; only batches use several devices", o.device)
	}
	return p.Validate(o.limits())
}

// parsed is the values of flags before they are checked.
type parsed struct {
	options
	plan                      plan.Plan
	tests, sizes, connections string
	duration                  seconds
	all                       bool
	timeoutCode, memory       int
}

// Page describes the command.
func Page() *usage.Page { return (&parsed{}).page() }

func (o *parsed) page() *usage.Page {
	f := usage.NewFlags("verbena perf")
	p := &o.plan
	// both defines a flag under the letter and the long name that it has in perftest.
	both := func(letter, long, about string, define func(name, about string)) {
		define(letter, about)
		usage.Alias(f, long, letter)
	}
	word := func(v *string, zero string) func(string, string) {
		return func(name, about string) { f.StringVar(v, name, zero, about) }
	}
	number := func(v *int, zero int) func(string, string) {
		return func(name, about string) { f.IntVar(v, name, zero, about) }
	}
	yes := func(v *bool) func(string, string) {
		return func(name, about string) { f.BoolVar(v, name, false, about) }
	}
	f.StringVar(&o.tests, "test", "write_bw", "tests, separated by commas, or all: write, write_imm, read, send, fetch_add, compare_swap, each with _bw or _lat; or batch: write_batch and read_batch, which measure package transfer")
	both("d", "ib-dev", "`device`, such as soft-eth0 or mlx5_0 (default: the one by which the system reaches the other end); for batches also several, separated by commas", word(&o.device, ""))
	both("i", "ib-port", "`number` of the port of the device (default 1)", number(&o.ibPort, 0))
	both("x", "gid-index", "`index` of the local GID (default: the one of the route)", number(&o.gid, -1))
	both("p", "port", "`port` to listen on, or to connect to", number(&o.port, defaultPort))
	both("R", "rdma_cm", "connect by connection manager, not over TCP, at both ends", yes(&o.cm))
	f.BoolVar(&o.perftest, "perftest", false, "the other end is the perftest program for the test, such as ib_write_bw, with the same -s, -n and -t (a server needs these flags too)")
	both("s", "size", "bytes of an operation, or several sizes separated by commas (default 65536, latency 2, atomics 8)", word(&o.sizes, ""))
	both("a", "all", "all powers of two from 2 to 2^23 bytes", yes(&o.all))
	both("n", "iters", "operations on each connection (default 5000, latency 1000), or batches", func(name, about string) { f.Int64Var(&p.Iterations, name, 0, about) })
	both("D", "duration", "measure for this `duration`, in seconds or with a unit as in 500ms, instead of a number of operations (default for batches: 1s)", func(name, about string) { f.Var(&o.duration, name, about) })
	both("t", "tx-depth", fmt.Sprintf("operations in flight on each connection (default %d, fewer with more than %d connections; of batches to each peer, %d)", plan.DefaultDepth, plan.DefaultOperations/plan.DefaultDepth, plan.DefaultItemDepth), number(&p.Depth, 0))
	both("r", "rx-depth", "receives posted by each engine (default 512, or twice the number of messages that can be in flight)", number(&p.RecvDepth, 0))
	both("l", "post_list", fmt.Sprintf("number of operations posted together (default 1), or of items of a batch (default %d)", plan.DefaultItems), number(&p.Batch, 0))
	both("Q", "cq-mod", "number of operations for each completion", number(&p.Moderation, 1))
	both("q", "qp", "connections, or several numbers of them separated by commas; with batches: peers, for each of which the server opens an agent", word(&o.connections, "1"))
	both("b", "bidirectional", "measure both directions at once", yes(&p.Bidirectional))
	both("e", "events", "sleep until something completes, instead of polling", yes(&p.Events))
	f.DurationVar(&p.Spin, "spin", 0, "with -e: poll for this time before sleeping")
	both("I", "inline_size", "data of up to at least so many `bytes` are sent inline in the work request (default 64, or the limit of the device)", number(&p.Inline, 0))
	both("m", "mtu", "`bytes` of the path MTU (default: the largest that both ports support)", number(&p.MTU, 0))
	both("S", "sl", "service level", number(&p.SL, 0))
	f.IntVar(&p.TrafficClass, "tclass", 0, "traffic class")
	both("u", "qp-timeout", "`exponent` of the timeout of acknowledgements, 4.096 µs * 2^u (default: chosen by the device)", number(&o.timeoutCode, 0))
	f.IntVar(&p.Engines, "engines", 1, "number of engines at each end, each on its own processor; the connections are spread over them")
	f.IntVar(&p.Rounds, "rounds", 1, "number of rounds; each measures all sizes once")
	f.DurationVar(&p.WarmUp, "warm-up", 100*time.Millisecond, "time to warm up before each measurement")
	f.BoolVar(&p.Verify, "verify", false, "verify all data (this lowers the figures)")
	f.StringVar(&o.json, "json", "", "also write the report to `file`, as JSON; -: standard output, without the table")
	f.StringVar(&o.csv, "csv", "", "also write the report to `file`, as CSV; -: standard output, without the table")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of this end to `file`, for go tool pprof, and go build -pgo")
	f.BoolVar(&o.gbits, "report_gbits", false, "bandwidth in 10^9 bits a second (default: 2^20 bytes a second)")
	f.BoolVar(&o.counters, "counters", false, "print how the counters of both devices have changed")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "time limit for connecting")
	f.DurationVar(&o.wait, "wait", 0, "dial for this `duration`, until the server is there (default: once; its first answer may take 5s)")
	f.StringVar(&o.bind, "bind", "", "`address` that the server listens on (default: all)")
	f.BoolVar(&o.once, "once", false, "serve one client, and end")
	f.IntVar(&o.memory, "max-memory", 2048, "limit of the memory that this end registers, in `MiB`")
	usage.SetType(f, "test", "test,...")
	usage.SetType(f, "s", "bytes,...")
	usage.SetType(f, "q", "number,...")
	return &usage.Page{Name: "verbena perf", About: "measure RDMA between this host and another",
		Forms: []string{"[flags]", "[flags] HOST[:PORT]"}, Text: text, Flags: f}
}

func parseArgs(args []string, stdout io.Writer) (*options, error) {
	var flags parsed
	rest, err := flags.page().ParseMixed(args, stdout)
	if err != nil {
		return nil, err
	}
	o, p, memory := &flags.options, &flags.plan, flags.memory
	switch {
	case len(rest) > 1:
		return nil, fmt.Errorf("several hosts are given: %s; name one, or none to be the server", strings.Join(rest, " and "))
	case o.port < 0 || o.port > 65535 || len(rest) == 1 && o.port == 0:
		return nil, fmt.Errorf("-p is %d; it must be 1 to 65535, or 0 at the server for any free port", o.port)
	case o.gid < -1 || o.ibPort < 0:
		return nil, errors.New("-x and -i cannot be negative")
	case o.timeout <= 0:
		return nil, fmt.Errorf("-timeout is %v; it must be positive", o.timeout)
	case o.wait < 0:
		return nil, fmt.Errorf("-wait is %v; it cannot be negative", o.wait)
	case memory < 1 || memory > 1<<20:
		return nil, fmt.Errorf("-max-memory is %d; it must be 1 to %d", memory, 1<<20)
	case flags.timeoutCode < 0 || flags.timeoutCode > 31:
		return nil, fmt.Errorf("-u is %d; it must be 0 to 31", flags.timeoutCode)
	}
	o.memory = int64(memory) << 20
	if flags.timeoutCode > 0 {
		p.AckTimeout = 4096 * time.Nanosecond << flags.timeoutCode
	}
	if len(rest) == 0 && !o.perftest {
		return o, nil
	}
	if len(rest) > 0 {
		o.target = rest[0]
	}
	p.CM, p.Duration = o.cm, time.Duration(flags.duration)
	if p.Sizes, err = numbers("-s", flags.sizes, plan.MaxSize); err != nil {
		return nil, err
	}
	switch {
	case flags.all && flags.sizes != "":
		return nil, errors.New("-a and -s exclude each other")
	case p.Iterations < 0 || p.Iterations != 0 && p.Duration != 0:
		return nil, errors.New("-n and -D exclude each other, and -n must not be negative")
	case flags.all:
		p.Sizes = plan.AllSizes()
	}
	counts, err := numbers("-q", flags.connections, 1<<16)
	if err != nil {
		return nil, err
	}
	if err := o.makePlans(flags.tests, counts, p); err != nil {
		return nil, err
	}
	if o.perftest {
		return o, checkPerftest(o.plans, o.cm)
	}
	return o, nil
}

// makePlans makes a plan for each test and number of connections.
func (o *options) makePlans(tests string, counts []int, common *plan.Plan) error {
	list := plan.Tests()
	if tests != "all" {
		list = nil
		for name := range strings.SplitSeq(tests, ",") {
			if name == "batch" {
				list = append(list, plan.BatchTests()...)
				continue
			}
			t, err := plan.ParseTest(name)
			if err != nil {
				return err
			}
			list = append(list, t)
		}
	}
	for _, t := range list {
		for _, n := range counts {
			p := *common
			p.Test, p.Connections = t, n
			if t.Kind == plan.Latency && tests == "all" {
				p.Connections, p.Engines, p.Bidirectional, p.Batch, p.Moderation = 1, 1, false, 1, 1
				p.Events = p.Events && t.Op != plan.Write
			}
			p.Complete()
			if err := o.validate(&p); err != nil {
				return fmt.Errorf("%v: %w", t, err)
			}
			o.plans = append(o.plans, &p)
			if t.Kind == plan.Latency && tests == "all" {
				break
			}
		}
	}
	return nil
}

// numbers parses a list of positive numbers.
func numbers(name, list string, most int) (values []int, err error) {
	if list == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("%s is %q; want numbers from 1 to %d, separated by commas", name, list, most)
		}
		values = append(values, n)
	}
	return values, nil
}

// seconds is a flag for a duration: a number without a unit means seconds.
type seconds time.Duration

func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, numErr := strconv.ParseFloat(text, 64); numErr == nil && math.Abs(n) < 1e6 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return errors.New("want a positive time, in seconds or with a unit")
	}
	*s = seconds(d)
	return nil
}

// address returns the host and the port of the server.
func (o *options) address() (host, port string) {
	host, port, err := net.SplitHostPort(o.target)
	if err == nil {
		return host, port
	}
	host = o.target
	if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	return host, strconv.Itoa(o.port)
}
