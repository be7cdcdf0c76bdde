//go:build linux

package test

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// suites are the lines of the table. Those that scripts/fabric.sh has not built have no rows.
func suites(t *testing.T) []*suite {
	return []*suite{
		{name: "ibverbs-utils", title: "ping-pongs of libibverbs", from: "ibverbs-utils", rows: verbsTools()},
		{name: "rdmacm-utils", title: "programs of librdmacm", from: "rdmacm-utils", rows: rdmacmTools()},
		{name: "perftest", title: "perftest", from: "perftest", rows: append(perftest(), perftestCM()...)},
		{name: "qperf", title: "qperf", from: "qperf", rows: qperf()},
		{name: "fio", title: "fio, engine rdma", from: "fio", rows: fio()},
		{name: "ucx_perftest", title: "ucx_perftest", from: "ucx-utils", rows: slices.Concat(ucx(), ucxMore(), ucxLoopback())},
		{name: "fi_pingpong", title: "fi_pingpong: msg, rxm", from: "libfabric-bin", rows: libfabric()},
		{name: "dapl", title: "uDAPL", from: "dapl2-utils", rows: dapl(t, "dtest -b 65536", "dtest -b 65536 -p", "dtest -b 65536 -c", "dtestx", "dtestsrq", "dtestcm")},
		{name: "mpi", title: "Open MPI over UCX", from: "openmpi-bin", rows: mpi(t)},
		{name: "mpich", title: "MPICH over UCX: NetPIPE", from: "netpipe-mpich2", rows: mpich()},
		{name: "hpcc", title: "HPC Challenge, 4 processes, Open MPI", from: "hpcc", rows: hpcc(t)},
		{name: "rdma-core", title: "rdma-core 44's tests", from: "python3-pyverbs", rows: rdmaCore(t)},
		{name: "iser", title: "iSER: tgt and libiscsi", from: "tgt, libiscsi-bin", rows: iser(t)},
		{name: "qemu", title: "QEMU's live migration", from: "qemu-system-x86", rows: migration(t)},
		{name: "valkey", title: "Valkey 8.1.1's test of RDMA", from: "source package valkey", rows: valkey(t)},
		{name: "ucx-gtest", title: "UCX 1.13.1's tests", from: "source package ucx", rows: ucxTests(t)},
		{name: "fabtests", title: "fabtests 1.17: msg, rxm", from: "libfabric v1.17.0", rows: fabtests(t)},
		{name: "fabtests-efa", title: "fabtests 1.17: efa", from: "libfabric v1.17.0", rows: fabtestsEFA(t)},
		{name: "mpi-efa", title: "Open MPI over libfabric: efa", from: "openmpi-bin", rows: mpiEFA(t)},
		{name: "mpi4py", title: "mpi4py 3.1.4's tests, 4 processes", from: "mpi4py 3.1.4", rows: mpi4py(t)},
	}
}

// fabricSource returns a folder below that of sources, if scripts/fabric.sh has built it.
func fabricSource(t *testing.T, name string) (string, bool) {
	path, err := filepath.Abs(filepath.Join("../../../.build/fabric/src", name))
	require.NoError(t, err)
	_, err = os.Stat(path)
	return path, err == nil
}

// ucxMore are the operations of ucx_perftest that the rows of ucx leave out.
func ucxMore() (rows []row) {
	for _, test := range []string{"put_bw", "add_lat", "add_mr"} {
		rows = append(rows, row{
			program: "ucx_perftest", server: "ucx_perftest -p PORT", prints: "Final:",
			client: "ucx_perftest -p PORT HOST -t " + test + " -n 500 -s 8 -x rc_verbs -d DEV:1",
		})
	}
	for _, transports := range []string{"rc_verbs,ud_verbs,self", "ud_verbs,self"} {
		env := []string{"UCX_TLS=" + transports, "UCX_NET_DEVICES=DEV:1"}
		for _, test := range []string{
			"tag_sync_lat", "tag_sync_bw", "ucp_put_lat", "ucp_put_bw", "ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap",
			"stream_lat", "ucp_am_lat", "ucp_am_bw",
		} {
			rows = append(rows, row{
				program: "ucx_perftest", server: "ucx_perftest -p PORT", prints: "Final:", env: env,
				client: "ucx_perftest -p PORT HOST -t " + test + " -n 200 -s 8",
			})
		}
	}
	return rows
}

// ucxLoopback is ucx_perftest with itself.
func ucxLoopback() (rows []row) {
	for _, transports := range []string{"rc_verbs,ud_verbs", "ud_verbs"} {
		for _, test := range []string{"tag_lat", "ucp_get"} {
			rows = append(rows, row{
				program: "ucx_perftest", prints: "Final:", local: true, client: "ucx_perftest -l -t " + test + " -n 200 -s 4096",
				env: []string{"UCX_TLS=" + transports, "UCX_NET_DEVICES=DEV:1"},
			})
		}
	}
	return rows
}

// dapl are programs of uDAPL, with the provider that uses librdmacm.
func dapl(t *testing.T, programs ...string) (rows []row) {
	config := filepath.Join(t.TempDir(), "dat.conf")
	require.NoError(t, os.WriteFile(config, []byte(`soft_lo u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "lo 0" ""
soft_e0 u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "e0 0" ""
`), 0o644))
	prints := map[string]string{"dtestsrq": "Test Complete", "dtestcm": "TOTAL"}
	for _, program := range programs {
		name, _, _ := strings.Cut(program, " ")
		rows = append(rows, row{
			program: name, server: program + " -P DEV", client: program + " -P DEV -h HOST", retries: true,
			prints: cmp.Or(prints[name], "PASSED"), env: []string{"DAT_OVERRIDE=" + config},
		})
	}
	return rows
}

// rdmaCore are the modules of rdma-core's tests.
func rdmaCore(t *testing.T) (rows []row) {
	suite := suiteFolder(t)
	script, err := filepath.Abs("testdata/suite.py")
	require.NoError(t, err)
	for _, m := range modules {
		rows = append(rows, row{
			program: "python3", local: true, env: []string{"ADDRESS=HOST"}, counts: suiteOutcome,
			client: strings.Join([]string{python, script, suite, "/dev/stdout", m.name, "--dev DEV --port 1 --gid 0"}, " "),
		})
	}
	return rows
}

// migration are migrations of a guest of QEMU.
func migration(t *testing.T) (rows []row) {
	script, err := filepath.Abs("testdata/migrate.py")
	require.NoError(t, err)
	folder := t.TempDir()
	for _, pin := range []string{"off", "on"} {
		end := func(role string) string {
			return strings.Join([]string{python, script, role, filepath.Join(folder, "PORT"), "HOST PORT", pin}, " ")
		}
		rows = append(rows, row{
			program: "qemu-system-x86_64", server: end("destination"), client: end("source"),
			prints: "memories are equal", retries: true, stays: true,
		})
	}
	return rows
}

// mpich is a ping-pong of two processes. NetPIPE compares no data, but needs each message.
func mpich() []row {
	return []row{{
		limit: 10 * time.Minute, program: "NPmpich2", local: true, prints: "65539 bytes", client: "mpirun.mpich -np 2 NPmpich2 -u 65536 -o /dev/null",
		env: ucxDevice,
	}}
}

// hpcc is the HPC Challenge, which checks its results.
func hpcc(t *testing.T) []row {
	script, err := filepath.Abs("testdata/hpcc.sh")
	require.NoError(t, err)
	return []row{{
		program: "hpcc", local: true, prints: "Success=1", limit: 15 * time.Minute, client: strings.Join([]string{"sh", script, t.TempDir(), openMPI, "-np 4 hpcc"}, " "),
		env: ucxDevice,
	}}
}

// valkey is Valkey's own test of RDMA, 100 times, each with a server of its own. The test saves the
// data in a child of the server while other threads go on.
func valkey(t *testing.T) (rows []row) {
	folder, ok := fabricSource(t, "valkey")
	if !ok {
		return nil
	}
	script, err := filepath.Abs("testdata/valkey-server.sh")
	require.NoError(t, err)
	data := t.TempDir()
	for range 100 {
		rows = append(rows, row{
			program: "sh", server: strings.Join([]string{"sh", script, folder, data, "HOST PORT"}, " "), listens: "accept connections rdma", stays: true,
			client: filepath.Join(folder, "tests/rdma/rdma-test") + " --thread 4 -h HOST -p PORT", prints: "KVs [OK]",
		})
	}
	return rows
}

// ucxTests are UCX's tests of the transports that use libibverbs, and of its use of librdmacm.
func ucxTests(t *testing.T) (rows []row) {
	built, ok := fabricSource(t, "ucx/test/gtest/gtest")
	if !ok {
		return nil
	}
	for _, filter := range []string{"*rc_verbs*", "*ud_verbs*", "*rdmacm*"} {
		filter += "-*.envelope/*" // benchmarks
		rows = append(rows, row{
			program: "sh", local: true, counts: gtestOutcome, limit: 30 * time.Minute,
			client: built + " --gtest_filter=" + filter, env: []string{"UCX_NET_DEVICES=DEV:1", "UCX_GDB_COMMAND=true", "UCX_HANDLE_ERRORS=bt"},
			rest: func(output string) string {
				if seen, ended := gtestSeen(output); ended {
					return built + " --gtest_filter=" + filter + ":" + strings.Join(seen, ":")
				}
				return ""
			},
		})
	}
	return rows
}

var (
	gtestCount = regexp.MustCompile(`(?m)^\[==========\] Running (\d+) tests?`)
	gtestLine  = regexp.MustCompile(`(?m)^\[ +(RUN|SKIP|OK|FAILED) +\] (.*)$`)
)

// gtestSeen returns the tests that have begun, and whether the last has ended the program.
func gtestSeen(output string) (names []string, ended bool) {
	for _, line := range gtestLine.FindAllStringSubmatch(output, -1) {
		switch {
		case line[1] == "RUN":
			name, _, _ := strings.Cut(line[2], " <")
			names, ended = append(names, name), true
		case line[1] != "SKIP":
			ended = false
		}
	}
	return names, ended
}

// gtestOutcome reads what UCX's tests print, with Google's test framework, also in several runs.
func gtestOutcome(output string) (a tally) {
	runs, reason := "", ""
	for _, line := range gtestLine.FindAllStringSubmatch(output, -1) {
		switch name, _, _ := strings.Cut(line[2], " <"); {
		case line[1] == "RUN":
			if runs != "" {
				a.Failed = append(a.Failed, runs+" ended the program")
			}
			runs, reason = name, ""
		case line[1] == "SKIP":
			reason = strings.Trim(line[2], "()")
		case runs == "": // a list at the end
		case line[1] == "FAILED":
			a.Failed = append(a.Failed, runs)
			runs = ""
		case reason != "":
			a.skip(reason, 1)
			runs = ""
		default:
			a.Passed++
			runs = ""
		}
	}
	if runs != "" {
		a.Failed = append(a.Failed, runs+" ended the program")
	}
	if count := gtestCount.FindStringSubmatch(output); count != nil {
		if n, _ := strconv.Atoi(count[1]); n > a.tests() {
			a.skip("an earlier test ended the program", n-a.tests())
		}
	}
	return a
}

// What a place knows is filled in for whole words only.
func TestFill(t *testing.T) {
	p := &place{host: "192.0.2.1"}
	require.Equal(t, "UCX_NET_DEVICES=soft_lo:1 192.0.2.1 -p 7", p.fill(&end{device: "soft_lo"}, "UCX_NET_DEVICES=DEV:1 HOST -p PORT", "7"))
}

// Tests that follow one that has ended the program run, and count.
func TestGtestGoesOn(t *testing.T) {
	const first = "[==========] Running 4 tests from 1 test suite.\n" +
		"[ RUN      ] a/x.one/0 <rc>\n[       OK ] a/x.one/0 (1 ms)\n[ RUN      ] a/x.two/0 <rc>\naborted\n"
	names, ended := gtestSeen(first)
	require.Equal(t, []string{"a/x.one/0", "a/x.two/0"}, names)
	require.True(t, ended)
	const rest = "[==========] Running 2 tests from 1 test suite.\n" +
		"[ RUN      ] a/x.three/0 <rc>\n[     SKIP ] (none)\n[       OK ] a/x.three/0 (1 ms)\n" +
		"[ RUN      ] a/x.four/0 <rc>\n[  FAILED  ] a/x.four/0, where GetParam() = rc (1 ms)\n[  FAILED  ] 1 test, listed below:\n"
	_, ended = gtestSeen(first + rest)
	require.False(t, ended)
	require.Equal(t, tally{
		Passed: 1, Skipped: map[string]int{"none": 1}, Failed: []string{"a/x.two/0 ended the program", "a/x.four/0"},
	}, gtestOutcome(first+rest))
}

// fabtests are the tests of libfabric that scripts/runfabtests.sh of fabtests has, but for those
// that it leaves out for these providers.
func fabtests(t *testing.T) (rows []row) {
	for _, p := range []struct{ name, exclude string }{
		{"verbs", "verbs/verbs.exclude"}, {"verbs;ofi_rxm", "ofi_rxm/ofi_rxm.exclude"},
	} {
		commands, env := fabtestsFor(t, p.exclude)
		for _, command := range commands {
			r := row{
				program: "fi_info", env: env, retries: true, apart: true,
				server: command + " -p " + p.name + " -B PORT -s HOST", client: command + " -p " + p.name + " -P PORT -s FROM HOST",
			}
			if command == "fi_shared_ctx -e msg --no-tx-shared-ctx" {
				r.cannot = "its server receives into memory that it has not registered"
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// notEFA are the tests that end at once since the provider efa, or this version of it, lacks what they test.
var notEFA = regexp.MustCompile("^fi_msg|-e msg|dgram|fi_rdm_rma_event|fi_multi_ep|fi_rdm_cntr")

// fabtestsEFA are the same for the provider of EFA, whose peers learn each other's addresses by TCP.
func fabtestsEFA(t *testing.T) (rows []row) {
	commands, env := fabtestsFor(t, "efa/efa.exclude")
	for _, command := range commands {
		r := row{
			program: "fi_info", env: env, options: "efa=on",
			server: command + " -p efa -E=PORT", client: command + " -p efa -E=PORT HOST",
		}
		if notEFA.MatchString(command) {
			r.cannot = "the provider lacks what it tests"
		}
		rows = append(rows, r)
	}
	return rows
}

// mpiEFA is what mpi has over UCX, over libfabric's provider for EFA.
func mpiEFA(t *testing.T) []row {
	r := mpi(t)[0]
	r.client = "mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include efa --mca btl ^openib,vader,tcp,ofi mpi_pingpong"
	r.options, r.ranks = "efa=on", false // SRD does not share a port
	return []row{r}
}

// fabtestsFor are the commands for a provider, with their environment.
func fabtestsFor(t *testing.T, exclude string) (commands, env []string) {
	folder, ok := fabricSource(t, "libfabric/fabtests")
	if !ok {
		return nil, nil
	}
	script, err := os.ReadFile(filepath.Join(folder, "scripts/runfabtests.sh"))
	require.NoError(t, err)
	excluded := excludes(t, filepath.Join(folder, "test_configs", exclude))
	for _, list := range regexp.MustCompile(`(?ms)^(functional|short)_tests=\((.*?)^\)`).FindAllStringSubmatch(string(script), -1) {
		for _, test := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(list[2], -1) {
			if !slices.ContainsFunc(excluded, func(e *regexp.Regexp) bool { return e.MatchString(test[1]) }) {
				commands = append(commands, test[1])
			}
		}
	}
	return commands, []string{"PATH=" + filepath.Join(folder, "install/bin") + ":" + os.Getenv("PATH")}
}

// excludes reads a list of regular expressions.
func excludes(t *testing.T, file string) (list []*regexp.Regexp) {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, regexp.MustCompile(line))
		}
	}
	return list
}

// mpi4py are the tests of mpi4py, but for those that start processes, and one-sided communication,
// which Open MPI 4.1's osc/ucx does not have for all types.
func mpi4py(t *testing.T) (rows []row) {
	folder, ok := fabricSource(t, "mpi4py/test")
	if !ok {
		return nil
	}
	return []row{{
		program: "mpirun", local: true, counts: unittestOutcome, limit: 15 * time.Minute,
		client: openMPI + " -np 4 " +
			python + " " + filepath.Join(folder, "runtests.py") + " -e test_spawn -e test_dynproc -e test_rma -e test_win",
		env: ucxDevice,
	}}
}

var (
	unittestRan  = regexp.MustCompile(`(?m)^Ran (\d+) tests? in`)
	unittestSkip = regexp.MustCompile(`skipped=(\d+)`)
	unittestFail = regexp.MustCompile(`(?m)^(?:FAIL|ERROR): (\S+) \((\S+)\)`)
)

// unittestOutcome reads what Python's unittest prints: that of the first process, and all failures.
func unittestOutcome(output string) (a tally) {
	ran := unittestRan.FindStringSubmatch(output)
	if ran == nil {
		return tally{Failed: []string{"has no result"}}
	}
	for _, f := range unittestFail.FindAllStringSubmatch(output, -1) {
		a.Failed = append(a.Failed, f[2]+"."+f[1])
	}
	if skipped := unittestSkip.FindStringSubmatch(output); skipped != nil {
		n, _ := strconv.Atoi(skipped[1])
		a.skip("skipped by the suite", n)
	}
	n, _ := strconv.Atoi(ran[1])
	a.Passed = max(0, n-a.tests())
	return a
}
