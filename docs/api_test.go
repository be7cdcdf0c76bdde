package docs

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hidden are the folders whose packages are not for users of the SDK. gid and lane, below
// verbs, are what rdma and dma are made of.
var hidden = []string{"internal", "samples", "bench", "test", "testdata", "scripts", "docs", "cmd", "gid", "lane"}

// pkg is a public package: all files of its folder, whatever they are built for.
type pkg struct {
	path  string // from the root of the module
	files *token.FileSet
	code  []*ast.File
	tests []*ast.File
}

// publicPackages parses the packages that users import.
func publicPackages(t *testing.T) []*pkg {
	t.Helper()
	found := map[string]*pkg{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "..":
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if nested == nil || strings.HasPrefix(name, ".") || slices.Contains(hidden, name) {
				return filepath.SkipDir
			}
			return nil
		case filepath.Ext(name) != ".go":
			return nil
		}
		folder, err := filepath.Rel("..", filepath.Dir(path))
		require.NoError(t, err)
		p := found[folder]
		if p == nil {
			p = &pkg{path: filepath.ToSlash(folder), files: token.NewFileSet()}
			found[folder] = p
		}
		file, err := parser.ParseFile(p.files, path, nil, parser.ParseComments)
		require.NoError(t, err)
		if strings.HasSuffix(name, "_test.go") {
			p.tests = append(p.tests, file)
		} else {
			p.code = append(p.code, file)
		}
		return nil
	})
	require.NoError(t, err)
	var list []*pkg
	for _, folder := range slices.Sorted(maps.Keys(found)) {
		if p := found[folder]; len(p.code) > 0 && p.code[0].Name.Name != "main" {
			list = append(list, p)
		}
	}
	require.GreaterOrEqual(t, len(list), 13)
	return list
}

// TestEveryIdentifierIsDocumented: packages, and all that they export, have comments: types,
// functions, methods, fields, methods of interfaces, and constants and variables, which may
// share the comment of their group.
func TestEveryIdentifierIsDocumented(t *testing.T) {
	for _, p := range publicPackages(t) {
		documented := false
		for _, file := range p.code {
			documented = documented || file.Doc != nil
			for _, decl := range file.Decls {
				for _, missing := range undocumented(decl) {
					t.Errorf("%v: %s.%s has no comment", p.files.Position(missing.pos), p.path, missing.name)
				}
			}
		}
		assert.True(t, documented, "package %s has no comment", p.path)
	}
}

// undocumentedName is an identifier without a comment.
type undocumentedName struct {
	name string
	pos  token.Pos
}

func undocumented(decl ast.Decl) (list []undocumentedName) {
	add := func(name *ast.Ident, prefix string, comments ...*ast.CommentGroup) {
		if !name.IsExported() || slices.ContainsFunc(comments, func(c *ast.CommentGroup) bool { return c != nil }) {
			return
		}
		list = append(list, undocumentedName{prefix + name.Name, name.Pos()})
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		prefix := ""
		if d.Recv != nil {
			receiver := typeName(d.Recv.List[0].Type)
			if !ast.IsExported(receiver) {
				return nil
			}
			prefix = receiver + "."
		}
		add(d.Name, prefix, d.Doc)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					add(name, "", d.Doc, s.Doc, s.Comment)
				}
			case *ast.TypeSpec:
				add(s.Name, "", d.Doc, s.Doc)
				if !s.Name.IsExported() {
					continue
				}
				var fields *ast.FieldList
				switch kind := s.Type.(type) {
				case *ast.StructType:
					fields = kind.Fields
				case *ast.InterfaceType:
					fields = kind.Methods
				default:
					continue
				}
				for _, field := range fields.List {
					if field.Tag != nil && strings.Contains(field.Tag.Value, `help:"`) {
						continue // a counter: its text is in the tag
					}
					for _, name := range field.Names { // an embedded type has its own comment
						add(name, s.Name.Name+".", field.Doc, field.Comment)
					}
				}
			}
		}
	}
	return list
}

// typeName is the name of the type of a receiver.
func typeName(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// firstTypes are the types that a newcomer meets, each of which has an example of its own.
var firstTypes = map[string][]string{
	"await":        {"Func", "State", "Task"},
	"bufinv":       {"Inventory", "List", "Pool"},
	"descriptor":   {"Scanner", "WriteFile"},
	"device":       {"List", "Open"},
	"device/route": {"Find"},
	"dma":          {"Context"},
	"graph":        {"Graph", "Task"},
	"mmap":         {"Map"},
	"pe":           {"Core", "Engine", "StateError"},
	"pe/backend":   {"Backend"},
	"rdma":         {"Connection", "Context", "Pool", "ReceiveTask", "SubmitAll", "TaskError"},
	"soft":         {"Config", "Device"},
	"syncevent":    {"Context", "Event"},
	"verbs":        {"QP"},
}

// TestEveryPackageHasExamples: each has one at least that runs and whose output is checked,
// and so have the types that a newcomer meets.
func TestEveryPackageHasExamples(t *testing.T) {
	for _, p := range publicPackages(t) {
		var running []string
		for _, e := range doc.Examples(p.tests...) {
			if e.Output != "" {
				running = append(running, e.Name)
			} else {
				t.Errorf("%s: Example%s is not run: it has no output", p.path, e.Name)
			}
		}
		assert.NotEmpty(t, running, "package %s has no example that runs", p.path)
		for _, name := range firstTypes[p.path] {
			assert.True(t, slices.ContainsFunc(running, func(example string) bool {
				return example == name || strings.HasPrefix(example, name+"_")
			}), fmt.Sprintf("%s.%s has no example that runs", p.path, name))
		}
	}
}
