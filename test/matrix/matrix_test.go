package matrix

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Those cases in which every two values meet, with the software device at both ends,
// run on any machine.
func TestCases(t *testing.T) {
	cases := slices.DeleteFunc(All(), func(c Case) bool { return c.Ends != Ends{soft, soft} })
	runCases(t, Covering(2, cases), loopbackPlacement, buildWorkload(t))
}

// buildWorkload builds the program, and returns its folder.
func buildWorkload(t *testing.T, flags ...string) string {
	t.Helper()
	require.NoError(t, rig.ReadSources())
	bin := t.TempDir()
	args := slices.Concat([]string{"build", "-ldflags", "-s -w", "-o", bin + string(filepath.Separator)}, flags, []string{"../workload"})
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// runCases runs cases, all of which must succeed.
func runCases(t *testing.T, cases []Case, where placement, bin string) {
	t.Helper()
	var output bytes.Buffer
	require.NoError(t, runAll(t.Context(), cases, where, bin, io.MultiWriter(os.Stdout, &output)))
	results, err := ParseResults(output.String())
	require.NoError(t, err)
	assert.Len(t, results, len(cases))
	for _, r := range results {
		assert.True(t, r.OK, "%v", r.Case)
	}
}

// TestRigMatrix runs the workload program in a guest, for make matrix. VERBENA_MATRIX
// chooses the cases: "all", or "3" for those in which every three values meet; those in
// which every two meet are among the tests that TestRig of test/rig runs in its
// guest.
// VERBENA_MATRIX_FILE is the document to write, with the summary, and VERBENA_MATRIX_CASES
// the file to write with a cell for each case.
func TestRigMatrix(t *testing.T) {
	choice := os.Getenv("VERBENA_MATRIX")
	if choice == "" {
		t.Skip("make matrix runs it")
	}
	rig.Require(t)
	bin := buildWorkload(t, "-tags", "verbs")
	cases := choose(choice)
	timeout := 10*time.Minute + time.Duration(len(cases))*10*time.Second
	output := rig.Run(t, rig.Job{
		Files:   map[string]string{"/samples": bin, "/bin/matrix.test": rig.BuildTest(t, ".")},
		Script:  fmt.Sprintf("echo \"KERNEL $(uname -r)\"\nVERBENA_GUEST=1 VERBENA_MATRIX=%s matrix.test -test.run TestGuestMatrix -test.timeout %v || true", choice, timeout),
		MTU:     4500,
		Timeout: timeout,
	})
	results, err := ParseResults(output)
	require.NoError(t, err)
	assert.Len(t, results, len(cases))
	all := All()
	slices.SortFunc(results, func(a, b Result) int { return slices.Index(all, a.Case) - slices.Index(all, b.Case) })
	if file := os.Getenv("VERBENA_MATRIX_FILE"); file != "" {
		require.NoError(t, os.WriteFile(file, []byte(page(results, output)), 0o644))
	}
	if file := os.Getenv("VERBENA_MATRIX_CASES"); file != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(casesHead+Cases(results)), 0o644))
	}
	for _, r := range results {
		assert.True(t, r.OK, "%v", r.Case)
	}
}

func choose(choice string) []Case {
	switch choice {
	case "all":
		return scattered(All())
	case "3":
		return Covering(3, All())
	}
	return Covering(2, All())
}

// requireGuest skips a test elsewhere, and gives the workers their addresses there.
func requireGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig, and of make matrix")
	}
	for i := range workers {
		for _, address := range []string{fmt.Sprintf("10.0.0.1%d/24", i), fmt.Sprintf("fd00::1%d/64", i)} {
			out, err := exec.Command("ip", "-n", "s", "addr", "replace", address, "dev", "v1").CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
}

// The pairs of samples run as they are, with all devices. make test has them on the
// software device, and their operations, by the workload program, on rxe.
func TestGuestSamples(t *testing.T) {
	requireGuest(t)
	if testing.Short() {
		t.Skip("make rig runs it")
	}
	for _, e := range ends {
		for _, p := range pair.Samples() {
			t.Run(fmt.Sprintf("%v/%s", e, p.Requester), func(t *testing.T) {
				o := pair.Options{Bin: "/samples", Scratch: t.TempDir(), Way: pair.Dir}
				requester, responder, _ := guestPlacement(Case{Ends: e, Family: 4}, 0)
				o.RequesterPrefix, o.RequesterArgs = requester.command()
				o.ResponderPrefix, o.ResponderArgs = responder.command()
				r, err := pair.Run(t.Context(), p, o)
				require.NoError(t, err)
				require.NoError(t, r.Verify(), "%s\n%s", r.Requester.Stderr, r.Responder.Stderr)
			})
		}
	}
}

// TestGuestMatrix is the part that runs in a guest. Short: every operation on every pair
// of devices of which one is rxe, with other values each time.
func TestGuestMatrix(t *testing.T) {
	requireGuest(t)
	cases := choose(os.Getenv("VERBENA_MATRIX"))
	if testing.Short() {
		cases = onceEach(cases)
	}
	runCases(t, cases, guestPlacement, "/samples")
}

// onceEach returns one case of each operation and pair of devices, but for the software
// device at both ends, which TestCases has: each time one whose other values have been
// there least.
func onceEach(cases []Case) (chosen []Case) {
	times := map[string]int{}
	met := map[string]bool{} // operations with their devices
	sum := func(c Case) (n int) {
		for _, v := range otherValues(c) {
			n += times[v]
		}
		return n
	}
	for _, first := range cases {
		name := first.Pair.Name + first.Ends.String()
		if met[name] || first.Ends == (Ends{soft, soft}) {
			continue
		}
		least := first
		for _, c := range cases {
			if c.Pair.Name == first.Pair.Name && c.Ends == first.Ends && sum(c) < sum(least) {
				least = c
			}
		}
		for _, v := range otherValues(least) {
			times[v]++
		}
		met[name] = true
		chosen = append(chosen, least)
	}
	return chosen
}

func otherValues(c Case) []string {
	return []string{fmt.Sprint(c.Size, " bytes"), fmt.Sprint("IPv", c.Family), fmt.Sprint("MTU ", c.MTU), fmt.Sprint("SGE ", c.SGE)}
}

func TestOnceEach(t *testing.T) {
	chosen := onceEach(Covering(2, All()))
	assert.Len(t, chosen, len(pair.Workloads())*(len(ends)-1))
	want, got := map[string]bool{}, map[string]bool{}
	for _, c := range All() {
		for _, v := range otherValues(c) {
			want[v] = true
		}
	}
	for _, c := range chosen {
		t.Log(c)
		for _, v := range otherValues(c) {
			got[v] = true
		}
	}
	assert.Equal(t, want, got)
}

// page is docs/interop.md.
func page(results []Result, output string) string {
	failed := 0
	for _, r := range results {
		if !r.OK {
			failed++
		}
	}
	_, kernel, _ := strings.Cut(output, "KERNEL ")
	kernel, _, _ = strings.Cut(kernel, "\n")
	return fmt.Sprintf(pageHead, len(results), len(All()), failed, ackTimeout, kernel, rdmaCore()) + Summary(results)
}

const pageHead = `# Every operation beside the kernel's rxe

` + "`make matrix`" + ` writes this page. It runs every operation in a virtual machine, between two processes of one program ([test/workload](../test/workload/main.go)), with each of these values:

| value | |
|---|---|
| devices, requester × responder | rxe (the kernel's software RDMA adapter, through libibverbs) and soft (the software device), on two hosts joined by a virtual cable. With rxe at both ends, rxe talks to itself |
| bytes | 0, 1, 255, 256, 1023, 4096, 65537, 16777216; operations on values have 8 |
| address family | IPv4, IPv6 |
| path MTU | 256, 512, 1024, 2048, 4096 |
| buffers of each task | 1 and 3, alternating from one path MTU to the next and from one family to the other |

The end that receives the data checks every byte. Both ends print a checksum, and the two must be equal.

Cases run: %d of %d. Failed: %d. Both ends use ` + "`-ack-timeout %s`" + `, since an emulated machine on a busy host can stop for longer than the half second for which devices repeat a packet by default. Kernel %s, rdma-core %s, Ethernet with an MTU of 4500.

Each cell has the cases that passed, of those that ran. The file ` + "`.build/matrix.md`" + ` has a cell for each case.

`

const casesHead = `# Every operation beside the kernel's rxe: all cases

` + "`make matrix`" + ` writes this file. Columns are address families and path MTUs. Cells are the seconds that both ends took from start to end under emulation, which say nothing of speed. ⋮ marks tasks with three buffers each. – marks a case that did not run.

`

// rdmaCore is the version of the package that the guest's libibverbs is from.
func rdmaCore() string {
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", "libibverbs1").Output()
	if err != nil {
		return "of unknown version"
	}
	return string(out)
}

// scattered changes the order, so that a run that is cut short has seen something of
// everything.
func scattered(cases []Case) (order []Case) {
	const step = 619 // a prime
	for i := range cases {
		order = append(order, cases[i*step%len(cases)])
	}
	return order
}

func TestScattered(t *testing.T) { assert.ElementsMatch(t, All(), scattered(All())) }

func TestCovering(t *testing.T) {
	for n, most := range map[int]int{2: 80, 3: 400} {
		met := map[string]bool{}
		chosen := Covering(n, All())
		for _, c := range chosen {
			for _, m := range c.valueCombinations(n) {
				met[m] = true
			}
		}
		for _, c := range All() {
			for _, m := range c.valueCombinations(n) {
				require.True(t, met[m], "%v", m)
			}
		}
		assert.Less(t, len(chosen), most)
		t.Logf("every %d values meet in %d cases", n, len(chosen))
	}
}

func TestTables(t *testing.T) {
	all := All()
	results := []Result{{all[0], true, 0.25}, {all[1], true, 1.5}, {all[2], false, 0}, {all[len(all)-1], true, 3}}
	output := "before\n"
	for _, r := range results {
		output += "    " + r.String() + "\nother output: 3\n"
	}
	parsed, err := ParseResults(output)
	require.NoError(t, err)
	assert.Equal(t, results, parsed)
	_, err = ParseResults(resultMark + "send rxe rxe 17 IPv4 256 1: true 0.1")
	require.Error(t, err)
	assert.Equal(t, `| operation | devices | bytes | IPv4, 256 | IPv4, 512 | IPv4, 1024 | IPv4, 2048 | IPv4, 4096 | IPv6, 256 | IPv6, 512 | IPv6, 1024 | IPv6, 2048 | IPv6, 4096 |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
| read | rxe × rxe | 0 | 0.2 | 1.5 ⋮ | failed | – | – | – | – | – | – | – |
| sync_event | soft × soft | 8 | – | – | – | – | – | – | – | – | – | 3.0 |
`, Cases(results))
	assert.Equal(t, `| operation | rxe × rxe | soft × rxe | rxe × soft | soft × soft |
|---|---|---|---|---|
| read | 2 of 3 | – | – | – |
| sync_event | – | – | – | 1 of 1 |
`, Summary(results))
}
