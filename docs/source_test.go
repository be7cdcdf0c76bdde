package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the code of the tests into the documents")

// sourceBlock is a block of code whose source is a test: the comment in front of it names the
// file, and the declarations in it that the block shows.
var sourceBlock = regexp.MustCompile("(<!-- source: (\\S+): ([^>]+?) -->\n)```go\n((?s:.*?))```\n")

// TestCookbook: the code that the cookbook and the pages on rsocket and simulation show is that of
// tests. With -update it becomes so.
func TestCookbook(t *testing.T) {
	for _, name := range fromTests {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		blocks := sourceBlock.FindAllSubmatch(text, -1)
		require.Equal(t, strings.Count(string(text), "```go\n"), len(blocks), "a block of Go in %s has no source", name)
		updated := sourceBlock.ReplaceAllFunc(text, func(block []byte) []byte {
			m := sourceBlock.FindSubmatch(block)
			code := sourceOf(t, string(m[2]), strings.Fields(string(m[3])))
			if !*update {
				assert.Equal(t, code, string(m[4]), "%s: run go test ./docs -run TestCookbook -update", m[1])
			}
			return fmt.Appendf(nil, "%s```go\n%s```\n", m[1], code)
		})
		if *update {
			require.NoError(t, os.WriteFile(name, updated, 0o644))
		}
	}
}

// fromTests are the documents whose code is that of tests.
var fromTests = []string{"cookbook.md", "rsocket.md", "simulation.md"}

// sourceOf returns the source of declarations, with their comments, in the order of the names: a
// function, "Type.Method", a type, or a constant, whose group is shown.
func sourceOf(t *testing.T, path string, names []string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.ParseComments)
	require.NoError(t, err)
	found := map[string]string{}
	for _, decl := range file.Decls {
		begin := decl.Pos()
		add := func(name string, comment *ast.CommentGroup) {
			if comment != nil {
				begin = comment.Pos()
			}
			found[name] = string(text[files.Position(begin).Offset:files.Position(decl.End()).Offset]) + "\n"
		}
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = typeName(d.Recv.List[0].Type) + "." + name
			}
			add(name, d.Doc)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					add(s.Name.Name, d.Doc)
				case *ast.ValueSpec:
					add(s.Names[0].Name, d.Doc)
				}
			}
		}
	}
	var parts []string
	for _, name := range names {
		if assert.Contains(t, found, name, "%s has no declaration %s", path, name) {
			parts = append(parts, found[name])
		}
	}
	return strings.Join(parts, "\n")
}
