package samples

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// longest is how many lines a sample may have.
const longest = 110

var quote = regexp.MustCompile("`([^`]+)`")

// docs/samples.md has a section for each sample, whose heading names the programs that it is
// about. Its table has a column for each of them, with code of that program. The steps that the
// page calls common are in all pairs with connections.
func TestSamplesPage(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") != "" {
		t.Skip("the sources are not here")
	}
	text, err := os.ReadFile(filepath.Join("..", "docs", "samples.md"))
	require.NoError(t, err)
	page := string(text)
	source := func(name string) string {
		text, err := os.ReadFile(filepath.Join(name, "main.go"))
		require.NoError(t, err)
		return string(text)
	}
	described := map[string]bool{}
	for _, section := range strings.Split(page, "\n### ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		programs := strings.Split(heading, ", ")
		quotes := 0
		for i, name := range programs {
			described[name] = true
			for _, code := range quotesOf(body, 2+i) {
				quotes++
				assert.Contains(t, source(name), code, "%s", name)
			}
		}
		// Programs are made of what the other samples show.
		if !strings.HasPrefix(heading, "kv_") && !strings.HasPrefix(heading, "broadcast_") {
			assert.NotZero(t, quotes, "the section of %s shows no code", heading)
		}
	}
	_, common, _ := strings.Cut(page, "\n## Common steps\n")
	common, _, _ = strings.Cut(common, "\n## ")
	steps := quotesOf(common, 2)
	assert.NotEmpty(t, steps)
	files, err := filepath.Glob(filepath.Join("*", "main.go"))
	require.NoError(t, err)
	for _, file := range files {
		name := filepath.Dir(file)
		code := source(name)
		assert.LessOrEqual(t, strings.Count(code, "\n"), longest, "lines of %s", name)
		assert.True(t, described[name] || name == "demo", "%s has no section", name) // demo runs the others
		if strings.HasPrefix(name, "rdma_") {
			for _, step := range steps {
				assert.Contains(t, code, step, "%s", name)
			}
		}
	}
}

// quotesOf returns the code in a column of the tables in a text. Column 1 is the first.
func quotesOf(text string, column int) (quotes []string) {
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "|") || column >= len(cells) {
			continue
		}
		for _, m := range quote.FindAllStringSubmatch(cells[column], -1) {
			quotes = append(quotes, m[1])
		}
	}
	return quotes
}
