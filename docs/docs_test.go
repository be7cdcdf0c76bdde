// Package docs has the documents, and tests that they agree with the code.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tourStep = regexp.MustCompile("^\\| \\d+ \\| `([^`]+)` \\| (`[^|]+`) \\|")
	sources  = regexp.MustCompile("`((?:pe|rdma|bufinv|mmap|internal|soft|test|cgo)/[a-z_0-9/]+\\.[ch]?(?:go)?)`")
	quoted   = regexp.MustCompile("`([^`]+)`")
)

// TestTour: the files that the tour names exist, and those of its steps have the
// functions named there.
func TestTour(t *testing.T) {
	text, err := os.ReadFile("tour.md")
	require.NoError(t, err)
	for _, m := range sources.FindAllStringSubmatch(string(text), -1) {
		_, err := os.Stat(filepath.Join("..", m[1]))
		assert.NoError(t, err)
	}
	steps := 0
	for line := range strings.Lines(string(text)) {
		m := tourStep.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		steps++
		functions := functionsOf(t, filepath.Join("..", m[1]))
		for _, name := range quoted.FindAllStringSubmatch(m[2], -1) {
			assert.True(t, functions(name[1]), "%s has no function %s", m[1], name[1])
		}
	}
	assert.Greater(t, steps, 40)
}

// TestContributing: the files that CONTRIBUTING.md names with their folder exist.
func TestContributing(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	require.NoError(t, err)
	files := 0
	for line := range strings.Lines(string(text)) {
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			path := m[1]
			if filepath.Ext(path) != ".go" || !strings.Contains(path, "/") {
				continue
			}
			if within, ok := strings.CutPrefix(path, "roce/"); ok {
				path = "soft/internal/roce/" + within
			}
			files++
			assert.FileExists(t, filepath.Join("..", path))
		}
	}
	assert.Greater(t, files, 20)
}

// functionsOf returns whether a source file declares a function.
func functionsOf(t *testing.T, path string) func(name string) bool {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	if filepath.Ext(path) != ".go" {
		return func(name string) bool { return strings.Contains(string(text), " "+name+"(") }
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			names[f.Name.Name] = true
		}
	}
	return func(name string) bool { return names[name] }
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence   = regexp.MustCompile("(?s)```.*?```")
	inline  = regexp.MustCompile("`[^`\n]*`")
)

// TestLinks: links in the documents, here and at the root of the module, lead to files and
// headings that exist.
func TestLinks(t *testing.T) {
	files, err := filepath.Glob("*.md")
	require.NoError(t, err)
	top, err := filepath.Glob("../*.md")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(top), 3)
	for _, from := range append(files, top...) {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		for _, m := range link.FindAllSubmatch(inline.ReplaceAll(fence.ReplaceAll(text, nil), nil), -1) {
			to, err := url.Parse(string(m[1]))
			if !assert.NoError(t, err) || to.Host != "" {
				continue
			}
			path := from
			if to.Path != "" {
				path = filepath.Join(filepath.Dir(from), to.Path)
			}
			target, err := os.ReadFile(path)
			if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
				continue
			}
			if assert.NoError(t, err, "%s: %s", from, m[1]) && to.Fragment != "" {
				assert.Contains(t, anchors(target), to.Fragment, "%s: %s", from, m[1])
			}
		}
	}
}

// anchors are the names of a document's headings, as they stand in links.
func anchors(text []byte) (list []string) {
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range heading.FindAllSubmatch(fence.ReplaceAll(text, nil), -1) {
		list = append(list, strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(string(m[1])), ""), " ", "-"))
	}
	return list
}
