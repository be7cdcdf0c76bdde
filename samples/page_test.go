package samples

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// longest is how many lines a sample may have. The ping-pongs show all ten steps of the
// verbs. The programs of the key-value store took 292, 378 and 339 lines at first.
func longest(name string) int {
	switch {
	case strings.HasPrefix(name, "verbs_"):
		return 150
	case name == "kv_server":
		return 292 / 2
	case name == "kv_client":
		return 378 / 2
	case name == "kv_client_await":
		return 339 / 2
	case strings.HasPrefix(name, "broadcast_"):
		return 158 // that of the first version of the longer one
	}
	return 110
}

var (
	lengthRow = regexp.MustCompile(`(?m)^\| \[(\w+)\]\([^)]*\) \| \d+ \| (\d+) \|$`)
	stepLine  = regexp.MustCompile("(\\d+) `([^`]+)`")
)

// docs/samples.md says how long each sample is, and which of its lines take which step.
func TestSamplesPage(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") != "" {
		t.Skip("the sources are not here")
	}
	page, err := os.ReadFile(filepath.Join("..", "docs", "samples.md"))
	require.NoError(t, err)
	source := func(name string) []string {
		text, err := os.ReadFile(filepath.Join(name, "main.go"))
		require.NoError(t, err)
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	lengths := map[string]string{}
	for _, row := range lengthRow.FindAllStringSubmatch(string(page), -1) {
		lengths[row[1]] = row[2]
		assert.Equal(t, strconv.Itoa(len(source(row[1]))), row[2], "lines of %s", row[1])
	}
	steps := map[string]bool{}
	for _, section := range strings.Split(string(page), "\n### ")[1:] {
		name, rows, _ := strings.Cut(section, "\n")
		lines := source(name)
		for _, m := range stepLine.FindAllStringSubmatch(rows, -1) {
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			steps[name] = true
			if assert.True(t, n >= 1 && n <= len(lines), "%s has no line %d", name, n) {
				assert.Contains(t, lines[n-1], m[2], "%s, line %d", name, n)
			}
		}
	}
	programs, err := filepath.Glob(filepath.Join("*", "main.go"))
	require.NoError(t, err)
	for _, p := range programs {
		name := filepath.Dir(p)
		assert.LessOrEqual(t, len(source(name)), longest(name), name)
		if name == "demo" {
			continue // it runs the others
		}
		assert.Contains(t, lengths, name)
		if !strings.HasPrefix(name, "kv_") && !strings.HasPrefix(name, "broadcast_") { // these are made of what the others show
			assert.True(t, steps[name], "the steps of %s are missing", name)
		}
	}
}
