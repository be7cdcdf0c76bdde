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

	"github.com/verbena-rdma/verbena/samples/internal/pair"
)

// longest is how many lines a sample of a pair may have.
const longest = 110

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
	for _, p := range pair.Samples() {
		for _, name := range []string{p.Requester, p.Responder} {
			assert.True(t, steps[name], "the steps of %s are missing", name)
			assert.Contains(t, lengths, name)
			assert.LessOrEqual(t, len(source(name)), longest, name)
		}
	}
}
