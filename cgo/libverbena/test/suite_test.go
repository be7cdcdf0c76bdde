//go:build linux

package test

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// modules are those of rdma-core 44 that are not for one vendor's adapters, how many tests they
// have, how many of these pass with the rxe driver of Linux 6.1, and how many at least pass here. Both
// skip the others, except that one of test_qpex fails with rxe. Here they skip what needs raw packets,
// tag matching, ibv_import_device, a GPU's dma-buf, and huge pages on machines without.
var modules = []struct {
	name             string
	tests, rxe, here int
}{
	{"test_addr", 3, 3, 3},
	{"test_atomic", 9, 7, 9},
	{"test_cq", 4, 4, 4},
	{"test_cq_events", 2, 2, 2},
	{"test_cqex", 5, 4, 5},
	{"test_device", 22, 13, 21},
	{"test_flow", 5, 0, 0},
	{"test_fork", 1, 1, 1},
	{"test_mr", 27, 8, 17},
	{"test_odp", 17, 0, 15},
	{"test_parent_domain", 6, 0, 5},
	{"test_pd", 4, 4, 4},
	{"test_qp", 26, 21, 21},
	{"test_qpex", 20, 17, 20},
	{"test_rdmacm", 10, 0, 10},
	{"test_relaxed_ordering", 3, 2, 3},
	{"test_shared_pd", 1, 0, 0},
	{"test_tag_matching", 4, 0, 0},
}

// python is Debian's, which finds the package python3-pyverbs.
const python = "/usr/bin/python3"

// suiteFolder returns a folder with the files of the suite.
func suiteFolder(t *testing.T) string {
	t.Helper()
	netns.Need(t, exec.Command(python, "-c", "import pyverbs.device").Run(), "rdma-core's tests need pyverbs (Debian package python3-pyverbs)")
	from := "/usr/share/doc/rdma-core/tests"
	if _, err := os.Stat(filepath.Join(from, "run_tests.py")); err != nil {
		// Slim images leave out what packages have in /usr/share/doc.
		unpacked := t.TempDir()
		script := "cd '" + unpacked + "' && apt-get download python3-pyverbs rdma-core && for package in *.deb; do dpkg -x $package .; done"
		netns.Need(t, exec.Command("sh", "-c", script).Run(), from+" does not exist, so the package is downloaded")
		from = filepath.Join(unpacked, from)
	}
	to := t.TempDir()
	files, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, f := range files {
		if !f.IsDir() {
			unpack(t, filepath.Join(from, f.Name()), to)
		}
	}
	return to
}

// unpack copies a file, which may be compressed, to a folder.
func unpack(t *testing.T, from, folder string) {
	t.Helper()
	file, err := os.Open(from)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	var in io.Reader = file
	name, compressed := strings.CutSuffix(filepath.Base(from), ".gz")
	if compressed {
		in, err = gzip.NewReader(file)
		require.NoError(t, err)
	}
	data, err := io.ReadAll(in)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, name), data, 0o644))
}

// runModule runs a module.
func runModule(t *testing.T, v variant, devices, suite, module string) tally {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report")
	script, err := filepath.Abs("testdata/suite.py")
	require.NoError(t, err)
	env := v.environment(t, "VERBENA_DEVICES="+devices, "ADDRESS=127.0.0.1")
	out, err := run(t, env, python, script, suite, report, module, "--dev", "soft_lo", "--port", "1", "--gid", "0")
	lines, readErr := os.ReadFile(report)
	o := suiteOutcome(string(lines))
	if err = errors.Join(err, readErr); err != nil || len(o.Failed) > 0 {
		t.Errorf("%s: %v; failed: %v\n%s", module, err, o.Failed, out)
	}
	return o
}

// suiteOutcome reads the lines that testdata/suite.py writes.
func suiteOutcome(output string) (a tally) {
	count := 0
	for text := range strings.Lines(output) {
		var line struct {
			Count                 int
			Test, Outcome, Reason string
		}
		if json.Unmarshal([]byte(text), &line) != nil {
			continue
		}
		count += line.Count
		switch line.Outcome {
		case "passed":
			a.Passed++
		case "skipped":
			a.skip(line.Reason, 1)
		case "failed":
			a.Failed = append(a.Failed, line.Test)
		}
	}
	for a.tests() < count {
		a.Failed = append(a.Failed, "has no result")
	}
	return a
}

// reserveHugePages gives the machine some huge pages during the test, if it has none and may have.
func reserveHugePages(t *testing.T) {
	const number = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	if before, err := os.ReadFile(number); err != nil || strings.TrimSpace(string(before)) != "0" {
		return
	}
	if os.WriteFile(number, []byte("8"), 0) == nil {
		t.Cleanup(func() { require.NoError(t, os.WriteFile(number, []byte("0"), 0)) })
	}
}

// TestSuite runs rdma-core's tests, and prints a table beside what passes with rxe. With -short
// it does so once; otherwise also without shared memory, and with AddressSanitizer.
func TestSuite(t *testing.T) {
	suite := suiteFolder(t)
	reserveHugePages(t)
	t.Run("plain", func(t *testing.T) { runSuite(t, plain, "soft-lo", suite) })
	t.Run("EFA", func(t *testing.T) {
		o := runModule(t, plain, "soft-lo?efa=on", suite, "test_efa_srd")
		assert.Empty(t, o.Skipped)
		assert.Equal(t, 11, o.Passed)
	})
	if testing.Short() {
		return
	}
	t.Run("UDP", func(t *testing.T) { runSuite(t, plain, "soft-lo?local=off", suite) })
	t.Run("sanitized", func(t *testing.T) { runSuite(t, sanitized, "soft-lo", suite) })
}

func runSuite(t *testing.T, v variant, devices, suite string) {
	var table strings.Builder
	row := func(module string, tests, passed, skipped, failed, rxe any, reasons string) {
		fmt.Fprintf(&table, "%-22s %6v %7v %8v %7v %11v  %s\n", module, tests, passed, skipped, failed, rxe, reasons)
	}
	row("module", "tests", "passed", "skipped", "failed", "rxe passed", "skipped because")
	var tests, passed, skipped, failed, rxe int
	for _, m := range modules {
		o := runModule(t, v, devices, suite, m.name)
		assert.Equal(t, m.tests, o.tests(), "%s: tests", m.name)
		assert.GreaterOrEqual(t, o.Passed, m.here, "%s: fewer tests pass than before", m.name)
		n, reasons := 0, []string(nil)
		for _, reason := range slices.Sorted(maps.Keys(o.Skipped)) {
			n += o.Skipped[reason]
			reasons = append(reasons, fmt.Sprintf("%d: %s", o.Skipped[reason], reason))
		}
		row(m.name, o.tests(), o.Passed, n, len(o.Failed), m.rxe, strings.Join(reasons, "; "))
		tests, passed, skipped, failed, rxe = tests+o.tests(), passed+o.Passed, skipped+n, failed+len(o.Failed), rxe+m.rxe
	}
	row("all", tests, passed, skipped, failed, rxe, "")
	t.Log("\n" + table.String())
}
