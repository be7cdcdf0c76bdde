//go:build linux

package test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/assert"
)

// row is a pair of programs: a server and a client, or a client alone. DEV, HOST and PORT stand
// for the device, the server's address, and a port.
type row struct {
	program  string // or several; their Debian packages are in packages
	server   string
	client   string
	env      []string
	prints   string                    // a part of the client's output
	short    bool                      // it also runs in the short form, and in places that are short
	retries  bool                      // the client fails before the server listens, which nothing shows
	listens  string                    // what the server prints when it listens, if nothing else shows it
	stays    bool                      // the server does not end by itself
	local    bool                      // for processes of one machine only
	ranks    bool                      // they find each other by GID and queue pair number, also at one interface
	apart    bool                      // not on the loopback interface
	cannot   string                    // why the client fails, which prints prints then
	notRxe   string                    // why it is not run with rxe at an end, where it fails with rxe at both ends
	options  string                    // of both devices, in make fabric
	lossless string                    // why it is not run where packets are lost
	limit    time.Duration             // 0: patience
	counts   func(output string) tally // what became of the tests that it runs; nil: it is one test
	// rest returns the client for the tests that an earlier one has ended the program before, or "".
	rest func(output string) string
}

// unrepeated is why programs cannot work where packets are lost.
const unrepeated = "waits for datagrams or unreliable messages that are lost"

var packages = map[string]string{
	"ibv_": "ibverbs-utils", "ib_": "perftest", "ucx_perftest": "ucx-utils", "rping": "rdmacm-utils", "ucmatose": "rdmacm-utils",
	"udaddy": "rdmacm-utils", "cmtime": "rdmacm-utils", "rdma_": "rdmacm-utils", "fi_": "libfabric-bin", "mpicc": "openmpi-bin libopenmpi-dev",
	"tgtd": "tgt", "iscsi-": "libiscsi-bin", "dtest": "dapl2-utils", "qemu-system": "qemu-system-x86",
	"NPmpich2": "netpipe-mpich2", "hpcc": "hpcc",
}

func packageOf(program string) string {
	for prefix, name := range packages {
		if strings.HasPrefix(program, prefix) {
			return name
		}
	}
	return program
}

// verbsTools are the programs of ibverbs-utils.
func verbsTools() (rows []row) {
	rows = []row{
		{program: "ibv_devices", client: "ibv_devices", prints: "soft_lo", short: true, local: true},
		{program: "ibv_devinfo", client: "ibv_devinfo -v -d DEV", prints: "RoCE v2", short: true, local: true},
	}
	for _, service := range []string{"rc", "uc", "ud", "srq"} {
		program := "ibv_" + service + "_pingpong"
		for _, mode := range []string{"", " -e"} { // polling, and completion events
			check := " -c"
			if service == "uc" { // its server repeats what it expects to have come
				check = ""
			}
			command := fmt.Sprintf("%s -d DEV -g GID -p PORT -n 200%s%s", program, mode, check)
			if service == "srq" || service == "ud" {
				command = strings.TrimSuffix(command, " -c")
			}
			lossless := ""
			if service == "uc" || service == "ud" {
				lossless = unrepeated
			}
			rows = append(rows, row{program: program, server: command, client: command + " HOST", prints: "bytes in", short: service == "rc", lossless: lossless})
		}
	}
	for _, mode := range []string{"", " -e"} {
		command := "ibv_xsrq_pingpong -d DEV -g GID -p PORT -n 200" + mode
		rows = append(rows, row{program: "ibv_xsrq_pingpong", server: command, client: command + " HOST", prints: "success", short: mode == "", notRxe: xrcOnRxe})
	}
	return rows
}

// xrcOnRxe is why XRC is not run on rxe.
const xrcOnRxe = "rxe has no XRC"

// perftest are the programs of perftest: each operation and transport service, with completion
// events, in both directions, and over all sizes.
func perftest() (rows []row) {
	add := func(program, options string, short bool) {
		command := fmt.Sprintf("%s -d DEV -p PORT %s", program, options)
		lossless := ""
		if strings.Contains(options, "-c U") {
			lossless = unrepeated
		}
		notRxe := ""
		if strings.Contains(options, "-c XRC") {
			notRxe = xrcOnRxe
		}
		rows = append(rows, row{program: program, server: command, client: command + " HOST", prints: "#bytes", short: short, lossless: lossless, notRxe: notRxe})
	}
	for _, service := range []string{"RC", "UC", "UD", "XRC"} {
		amount := "-n 500"
		if service == "UC" { // it repeats nothing: all fits into the socket's buffer
			amount = "-n 40 -s 4096"
		}
		for _, what := range []string{"lat", "bw"} {
			add("ib_send_"+what, amount+" -c "+service, service == "RC")
			add("ib_send_"+what, amount+" -e -c "+service, false)
			if service != "UD" {
				add("ib_write_"+what, amount+" -c "+service, service == "RC")
			}
		}
		add("ib_send_bw", amount+" -b -c "+service, false)
		if service != "UC" { // nothing slows down its sender: messages of megabytes overflow the socket
			add("ib_send_bw", "-n 50 -a -c "+service, service == "UD")
		}
	}
	for _, operation := range []string{"read", "atomic"} {
		add("ib_"+operation+"_lat", "-n 500", true)
		add("ib_"+operation+"_bw", "-n 500", false)
		add("ib_"+operation+"_lat", "-n 500 -e", false)
		add("ib_"+operation+"_bw", "-n 500 -b", false)
	}
	add("ib_atomic_lat", "-n 500 -A CMP_AND_SWAP", false)
	add("ib_read_bw", "-n 500 -c XRC -q 4", false)
	add("ib_atomic_bw", "-n 500 -c XRC", false)
	add("ib_write_bw", "-n 20 -a -b", true)
	add("ib_read_bw", "-n 20 -a", false)
	add("ib_write_lat", "-n 20 -a", false)
	add("ib_write_bw", "-n 500 -q 8", false)
	add("ib_send_bw", "-n 500 -r 64 --use-srq -q 4", false)
	add("ib_write_bw", "-D 1", false)
	return rows
}

// udOnRxe is why UCX's transport for UD, and what sets up its connections with it, is not run.
const udOnRxe = "UCX's UD hangs with rxe at both ends, too"

// asleep is a test of UCX whose ends, after some messages, sleep until there is an event.
const asleep = "tag_lat -E sleep -w 100"

// ucx are the tests of UCX over the transports that use libibverbs.
func ucx() (rows []row) {
	for _, transport := range []string{"rc_verbs", "ud_verbs"} {
		for _, test := range []string{"am_lat", "am_bw", "put_lat", "get", "fadd", "cswap"} {
			if transport == "ud_verbs" && !strings.HasPrefix(test, "am") {
				continue // UD has no RDMA
			}
			size, layout := "8", "short"
			if test == "get" {
				size, layout = "4096", "zcopy"
			}
			notRxe := ""
			if transport == "ud_verbs" {
				notRxe = udOnRxe
			}
			rows = append(rows, row{
				program: "ucx_perftest", server: "ucx_perftest -p PORT", prints: "Final:", short: test == "am_lat", notRxe: notRxe,
				client: fmt.Sprintf("ucx_perftest -p PORT HOST -t %s -n 500 -s %s -D %s -x %s -d DEV:1", test, size, layout, transport),
			})
		}
		tls := transport
		if transport == "rc_verbs" {
			tls += ",ud_verbs" // by which UCX sets up its connections
		}
		for _, test := range []string{"tag_lat", "tag_bw", "stream_bw", "ucp_get", asleep} {
			rows = append(rows, row{
				program: "ucx_perftest", server: "ucx_perftest -p PORT", prints: "Final:", short: test == asleep, notRxe: udOnRxe,
				// While a program sleeps, UCX looks for lost datagrams only every 100 ms, and asks for them
				// after 250 ms and longer, unless told.
				env:    []string{"UCX_TLS=" + tls + ",self", "UCX_NET_DEVICES=DEV:1", "UCX_UD_ASYNC_TIMER_TICK=10ms", "UCX_UD_MIN_POKE_TIME=20ms"},
				client: "ucx_perftest -p PORT HOST -t " + test + " -n 200 -s 65536",
			})
		}
	}
	return rows
}

// places are where the rows run: two processes of this machine, whose devices use shared memory
// or only UDP, and two network namespaces. Each list has a network of its own. UDP on the loopback
// interface differs little from UDP between namespaces, so it runs the rows of the short form.
func places(t *testing.T) [][]*place {
	udp := onLoopback("UDP", "soft-lo?local=off")
	udp.short = true
	lists := [][]*place{{onLoopback("shared memory", "soft-lo"), udp}}
	if testing.Short() {
		return lists
	}
	return append(lists, networkPlaces(t))
}

// in reports whether the row runs in a place.
func (r *row) in(p *place) bool {
	loopback := p.host == "127.0.0.1"
	switch {
	case p.short && !r.short:
		return false
	case r.local:
		return loopback || r.ranks && p.name == oneInterface
	case r.apart:
		return !loopback
	default:
		return p.name != oneInterface || r.short
	}
}

// Programs that use adapters run as they are, none of them hangs, and none needs an option that
// it would not need on an adapter.
func TestPrograms(t *testing.T) { runPrograms(t, places(t)...) }

// runPrograms runs the rows in the places of each list, with the lists side by side. It prints a
// table for each.
func runPrograms(t *testing.T, lists ...[]*place) {
	t.Helper()
	plain.library(t) // before the time of the first row begins
	var rows []row
	for _, list := range [][]row{verbsTools(), rdmacmTools(), perftest(), perftestCM(), ucx(), qperf(), fio(), libfabric(), mpi(t), iser(t), dapl(t, "dtestx", "dtestsrq"), migration(t), ucxLoopback()} {
		rows = append(rows, list...)
	}
	for _, places := range lists {
		t.Run(places[0].name, func(t *testing.T) {
			t.Parallel()
			table := new(strings.Builder)
			w := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
			for i := range rows {
				if r := &rows[i]; r.short || !testing.Short() {
					t.Run(r.client, func(t *testing.T) { r.runAll(t, places, w) })
				}
			}
			_ = w.Flush()
			t.Logf("\n%s", table)
		})
	}
}

// runAll runs a row in its places, and writes its line of the table.
func (r *row) runAll(t *testing.T, places []*place, table io.Writer) {
	for name := range strings.FieldsSeq(r.program) {
		needProgram(t, name, packageOf(name))
	}
	_, _ = fmt.Fprint(table, r.client)
	defer func() { _, _ = fmt.Fprintln(table) }()
	for _, p := range places {
		if !r.in(p) {
			continue
		}
		if p.control != nil && r.notRxe != "" {
			_, _ = fmt.Fprintf(table, "\t%s: %s", p.name, r.notRxe)
			continue
		}
		began := time.Now()
		output, err := r.run(t, p)
		result := "ok"
		if err != nil && p.control != nil {
			_, controlErr := r.run(t, p.control)
			err = fmt.Errorf("%w\n%s: %v", err, p.control.name, controlErr)
		}
		switch {
		case !assert.NoError(t, err, "%s, %s", r.client, p.name):
			result = "FAILED"
		case r.cannot != "":
			result = r.cannot
		}
		t.Logf("%s, %s: %s in %v: %s", r.client, p.name, result, time.Since(began).Round(time.Millisecond), lastLines(output, 1))
		_, _ = fmt.Fprintf(table, "\t%s: %s", p.name, result)
	}
}

// libfabric's provider for EFA runs on devices that look like one, also where packets are lost.
func TestLibfabricEFA(t *testing.T) {
	needProgram(t, "fi_pingpong", packageOf("fi_pingpong"))
	for _, options := range []string{"efa=on", "efa=on&loss=0.01"} {
		r := row{server: "fi_pingpong -p efa -e rdm -I 50 -B PORT", client: "fi_pingpong -p efa -e rdm -I 50 -P PORT HOST", prints: "1m "}
		_, err := r.run(t, onLoopback("EFA", "soft-lo?"+options))
		assert.NoError(t, err, options)
	}
}
