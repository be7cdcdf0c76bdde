package rig_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/test/soak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A part is something to be tested in the guest. Parts share one boot and run in
// their order, each by bash with errexit, whatever became of the ones before.
type part struct {
	name   string
	tests  string // folder of a package: the part is its tests that begin with TestGuest
	script string // the part, where it is something else
	// programs are those that the tests start in their short form; otherwise they start all
	// samples, too. To build one takes two seconds.
	programs []string
	c        map[string]string // programs and libraries in C: path in the guest to source
	check    func(t *testing.T, output string)
	// host are programs of the host, and folders of plugins, that are not in the image.
	host    []string
	library bool // needs the library for programs in C, in /lib/verbena
	asan    bool // needs programs that are built for AddressSanitizer, which takes a minute
}

// The last part leaves the guest without an adapter, and then without libibverbs.
var parts = []part{
	{name: "tools", script: toolsScript, check: checkTools},
	{name: "files", script: filesScript, check: checkFiles},
	{name: "ibverbs", tests: "cgo/ibverbs"},
	{name: "rdma", tests: "rdma"},
	{name: "dma", tests: "dma"},
	{name: "syncevent", tests: "syncevent"},
	{name: "samples", tests: "samples", programs: []string{
		"samples/verbs_rc_pingpong", "samples/verbs_uc_pingpong", "samples/verbs_ud_pingpong",
		"samples/cm_rping", "samples/pe_task_error", "samples/graph", "samples/pe_event", "test/workload",
	}},
	{name: "transfer", tests: "transfer"},
	{name: "crosscheck", tests: "test/crosscheck"},
	{name: "rsocket", tests: "rsocket", c: map[string]string{
		"/bin/sockecho": "rsocket/testdata/echo.c", "/lib/newcalls.so": "rsocket/testdata/newcalls.c",
	}},
	{name: "library", tests: "cgo/libverbena/test", library: true, host: []string{
		"fi_pingpong", "fio", "qperf", "ucx_perftest", "/usr/lib/x86_64-linux-gnu/ucx",
	}},
	{name: "verbena", tests: "cmd/verbena"},
	{name: "matrix", tests: "test/matrix", programs: []string{"test/workload"}},
	{name: "sanitized", script: sanitizedScript, asan: true},
	{name: "removal", script: removalScript},
}

// TestRig runs the tests of all packages that need an adapter in one guest, which has
// the kernel's rxe. VERBENA_PARTS names the parts to run, separated by spaces, or is
// "all"; empty stands for all but the programs with the library, in a short form. Short: without the
// sanitized part.
func TestRig(t *testing.T) {
	var chosen []part
	names := strings.Fields(os.Getenv("VERBENA_PARTS"))
	for _, p := range parts {
		switch {
		case len(names) == 0 && (p.asan && testing.Short() || p.library):
			t.Logf("skipped: the part %s, which make rig runs", p.name)
		case len(names) == 0 || names[0] == "all" || slices.Contains(names, p.name):
			chosen = append(chosen, p)
		}
	}
	if len(names) > 0 && names[0] != "all" {
		require.Len(t, chosen, len(names), "VERBENA_PARTS: there are %v", partNames(parts))
	}
	runParts(t, chosen, "^TestGuest", len(names) == 0 || testing.Short())
}

// TestRigSoak runs at length those that find more the longer they run. For a moment
// they are among those of TestRig.
func TestRigSoak(t *testing.T) {
	if !soak.Full(t) {
		t.Skip("make soak-tests runs it")
	}
	runParts(t, slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return p.tests == "" || p.library }), "^TestGuestSoak", false)
}

func partNames(list []part) (names []string) {
	for _, p := range list {
		names = append(names, p.name)
	}
	return names
}

// runParts boots a guest for the parts, of whose tests it runs those that match, in
// their short form (testing.Short) or in full.
func runParts(t *testing.T, chosen []part, match string, short bool) {
	rig.Require(t)
	requireHeaders(t)
	require.NoError(t, rig.ReadSources())
	files := buildForGuest(t, chosen, short)
	limit := 20 * time.Minute // ends a part that hangs
	if soak.Full(t) {
		limit = 72 * time.Hour
	}
	var script strings.Builder
	script.WriteString("export VERBENA_GUEST=1\n")
	dir := t.TempDir()
	for _, p := range chosen {
		text := p.script
		if p.tests != "" {
			text = fmt.Sprintf("%s.test -test.v -test.short=%t -test.timeout %v -test.run '%s'\n", filepath.Base(p.tests), short, limit, match)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, p.name), []byte(text), 0o644))
		fmt.Fprintf(&script, "echo 'PART %[1]s'; SECONDS=0; if timeout %[2]d bash -euo pipefail /parts/%[1]s; then end=PASSED; else end=FAILED; fi; echo \"$end %[1]s\"; echo \"%[1]s took $SECONDS s\"\n", p.name, int(limit.Seconds())+60)
	}
	files["/parts"] = dir
	output := rig.Run(t, rig.Job{
		Files:   files,
		Script:  script.String(),
		MTU:     4500, // makes the path MTU of rxe0 4096
		Timeout: time.Duration(len(chosen)) * limit,
		Results: t.TempDir(),
	})
	for _, p := range chosen {
		t.Run(p.name, func(t *testing.T) {
			_, own, found := strings.Cut(output, "PART "+p.name+"\n")
			require.True(t, found, "it did not begin")
			own, _, passed := strings.Cut(own, "PASSED "+p.name+"\n")
			if !passed {
				own, _, _ = strings.Cut(own, "FAILED "+p.name+"\n")
				t.Errorf("it failed; see the output above from PART %s on\n%s", p.name, strings.Join(failedLine.FindAllString(own, -1), "\n"))
				return
			}
			if p.check != nil {
				p.check(t, own)
			}
		})
	}
}

var failedLine = regexp.MustCompile(`(?m)^ *--- FAIL.*$`)

// buildForGuest builds the tests of the parts, and the programs, all with one command
// of each kind, so that they share what they can.
func buildForGuest(t *testing.T, chosen []part, short bool) map[string]string {
	t.Helper()
	const module = "github.com/verbena-rdma/verbena/"
	bin, programs, asan := t.TempDir(), t.TempDir(), t.TempDir()
	files := map[string]string{}
	tests := []string{module + "test/rig", module + "cgo/ibverbs", module + "rdma"} // of parts with scripts
	for _, p := range chosen {
		if p.tests != "" && !slices.Contains(tests, module+p.tests) {
			tests = append(tests, module+p.tests)
		}
		if p.asan {
			run(t, "go", "test", "-c", "-asan", "-tags", "verbs", "-vet=off", "-o", filepath.Join(asan, "sanitized.test"), module+"cgo/ibverbs")
			files["/bin/sanitized.test"] = filepath.Join(asan, "sanitized.test")
		}
	}
	// Debugging information takes half of the linker's time, and memory of the guest.
	run(t, "go", append([]string{"test", "-c", "-tags", "verbs", "-vet=off", "-ldflags", "-s -w", "-o", bin + "/"}, tests...)...)
	built, err := os.ReadDir(bin)
	require.NoError(t, err)
	for _, file := range built {
		files["/bin/"+file.Name()] = filepath.Join(bin, file.Name())
	}
	for _, p := range chosen {
		for guest, source := range p.c {
			compiled := filepath.Join(t.TempDir(), filepath.Base(guest))
			args := []string{"-O2", "-o", compiled, filepath.Join("../..", source)}
			if strings.HasSuffix(guest, ".so") {
				args = append(args, "-shared", "-fPIC")
			}
			run(t, "cc", args...)
			files[guest] = compiled
		}
	}
	for _, p := range chosen {
		addHost(t, files, p.host, short)
		if p.library {
			files["/lib/verbena"] = t.TempDir()
			run(t, "../../scripts/library.sh", files["/lib/verbena"])
		}
	}
	var started []string
	for _, p := range chosen {
		for _, program := range p.programs {
			started = append(started, module+program)
		}
	}
	if len(started) > 0 {
		if !short {
			started = append(started, module+"samples/...")
		}
		run(t, "go", append([]string{"build", "-tags", "verbs", "-ldflags", "-s -w", "-o", programs + "/"}, started...)...)
		files["/samples"] = programs
	}
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("brought along\n"), 0o644))
	files["/data/below/text"] = text
	tool := filepath.Join(t.TempDir(), "tool")
	require.NoError(t, os.WriteFile(tool, []byte("#!/bin/sh\necho \"tool: $1\"\n"), 0o755))
	files["/usr/bin/tool"] = tool
	return files
}

// addHost adds programs to /bin, and folders to where they are. The guest's tests skip what is
// missing. In CI, that is an error in the long form, for which make full and make rig install all.
func addHost(t *testing.T, files map[string]string, names []string, short bool) {
	t.Helper()
	for _, name := range names {
		guest, host := name, name
		_, err := os.Stat(name)
		if !filepath.IsAbs(name) {
			guest = "/bin/" + name
			host, err = exec.LookPath(name)
		}
		switch {
		case err == nil:
			files[guest] = host
		case !short && os.Getenv("CI") == "true":
			t.Fatalf("missing: %s: %v; CI skips nothing", name, err)
		default:
			t.Logf("skipped in the guest: tests that need %s: %v", name, err)
		}
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
}

// requireHeaders skips the test, or fails it in CI, where the driver for adapters
// cannot be built.
func requireHeaders(t *testing.T) {
	t.Helper()
	for _, c := range []struct{ program, input, missing string }{
		{"cc", "", "a C compiler (Debian package gcc)"},
		{"cc", "#include <infiniband/verbs.h>\n", "the headers of libibverbs (Debian package libibverbs-dev)"},
		{"cc", "#include <rdma/rdma_cma.h>\n", "the headers of librdmacm (Debian package librdmacm-dev)"},
	} {
		cmd := exec.CommandContext(t.Context(), c.program, "-fsyntax-only", "-xc", "-")
		cmd.Stdin = strings.NewReader(c.input)
		if err := cmd.Run(); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("missing: %s; CI skips nothing", c.missing)
			}
			t.Skipf("missing: %s", c.missing)
		}
	}
}

// Two processes of rdma-core and two of perftest talk over the kernel's rxe.
const toolsScript = `
ibv_devinfo -d rxe0 -v
echo "second namespace: $(ip -n s -4 -br addr show v1)"

ibv_rc_pingpong -d rxe0 -g 1 -n 200 -c > server.txt &
await-port 18515
ibv_rc_pingpong -d rxe0 -g 1 -n 200 -c rxe
wait $!
cat server.txt

# On a host with a load of 20 it once printed its row and did not end.
bandwidth() { timeout 300 ib_write_bw -d rxe0 -x 1 -n 200 -s 65536 -F "$@" || [ $? = 124 ]; }
bandwidth > /results/bw-server.txt &
await-port 18515
bandwidth rxe
wait $!
cmp /results/bw-server.txt <(cat /results/bw-server.txt)
echo "server: $(grep '^ *65536' /results/bw-server.txt)"
`

func checkTools(t *testing.T, out string) {
	assert.Contains(t, out, "PORT_ACTIVE")
	assert.Regexp(t, `active_mtu:\s+4096`, out)
	assert.Regexp(t, `GID\[ *1\]:\s+::ffff:10\.0\.0\.1, RoCE v2`, out)
	assert.Regexp(t, `second namespace: v1@\S+ +UP +10\.0\.0\.2/24`, out)
	assert.Len(t, regexp.MustCompile(`200 iters in [0-9.]+ seconds`).FindAllString(out, -1), 2, "both ping-pongs end")
	assert.Regexp(t, `(?m)^ *65536 +200 +\S+ +[0-9.]*[1-9]`, out, "ib_write_bw prints a row")
	assert.Regexp(t, `(?m)^server: +65536 +200 `, out)
}

// Programs of a job come with their permissions and libraries, scripts with what bash
// has.
const filesScript = `
cat /data/below/text
tool "$((6 * 7))" >&2
rig.test -test.run '^TestLastLines$' -test.v
if false; then echo never; fi
! false
echo last
`

func checkFiles(t *testing.T, out string) {
	assert.Contains(t, out, "brought along\n")
	assert.Contains(t, out, "tool: 42\n")
	assert.Contains(t, out, "--- PASS: TestLastLines")
	assert.NotContains(t, out, "never")
	assert.True(t, strings.HasSuffix(out, "last\n"), "standard error and output come in order: %q", out)
}

// The tests of the driver under AddressSanitizer, but for those that measure memory,
// of which the sanitizer has its own, the operations over IPv6, which differ in an address
// and take long, and the failures of connections, which mostly wait.
const sanitizedScript = `
sanitized.test -test.v -test.timeout 20m -test.run ^TestGuest -test.skip 'Cycles|NoAllocation|Failures|Operations/IPv6'
`

// The tests that begin with TestBroken want a machine that lacks something, those
// with TestDeleted and TestUnplugged leave one without a device.
const removalScript = `
verbs() { ibverbs.test -test.v -test.timeout 20m -test.run "^$1"; }
tasks() { rdma.test -test.v -test.timeout 20m -test.run "^$1"; }
for library in $(find / -xdev -name 'librdmacm.so.1*'); do mv $library /root; done
verbs TestBrokenNoManager
chmod 600 /dev/infiniband/uverbs0
verbs TestBrokenNoPermission
verbs TestDeleted
rdma link add rxe0 type rxe netdev v0
tasks TestDeleted
verbs TestUnplugged
/bin/ip -batch - <<END
link add v0 mtu 4500 type veth peer name v1 mtu 4500 netns s
addr add 10.0.0.1/24 dev v0
link set v0 up
END
/bin/ip -n s -batch - <<END
addr add 10.0.0.2/24 dev v1
link set v1 up
END
rdma link add rxe0 type rxe netdev v0
until grep -q ffff:0a00:0001 /sys/class/infiniband/rxe0/ports/1/gids/1; do sleep 0.05; done
tasks TestUnplugged
verbs TestBrokenNoDevice
for library in $(find / -xdev -name 'libibverbs.so.1*'); do mv $library /root; done
verbs TestBrokenNoLibrary
`
