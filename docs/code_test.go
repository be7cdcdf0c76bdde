package docs

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/verbena-rdma/verbena"

// given are the names that blocks of code use without declaring them.
const given = `
var (
	ctx                     context.Context
	background              = context.Background()
	dev                     verbs.Device
	engine                  *pe.Engine
	r                       *rdma.Connections
	conn                    *rdma.Connection
	mem, local, shared      *mmap.Map
	buf, src, dst           *bufinv.Buf
	reads                   *rdma.Pool
	writes                  *rdma.Pool
	sends                   *rdma.Pool
	datagrams               *rdma.DatagramPool
	n                       int
	desc                    []byte
	log                     zerolog.Logger
)
`

// packages are those that blocks of code use without importing them.
var packages = []string{
	"bufio", "bytes", "context", "encoding/binary", "errors", "fmt", "io", "io/fs", "net/netip", "os", "os/signal",
	"strings", "sync", "syscall", "testing", "testing/synctest", "time",
	"github.com/rs/zerolog", "github.com/stretchr/testify/require",
	module + "/await", module + "/bufinv", module + "/descriptor", module + "/device", module + "/device/route",
	module + "/dma", module + "/graph",
	module + "/mmap", module + "/oob", module + "/pe", module + "/pe/backend", module + "/rdma", module + "/rsocket", module + "/soft", module + "/soft/capture", module + "/soft/sim", module + "/syncevent", module + "/verbs",
}

var (
	goBlock      = regexp.MustCompile("(?s)```go\n(.*?)```")
	elidedLines  = regexp.MustCompile(`(?m)^\s*\.\.\..*$`)
	elidedBodies = strings.NewReplacer("struct { ... }", "struct{}", "{ ... }", "{ panic(0) }", "{...}", "{}", "{…}", "{}")
	declarations = regexp.MustCompile(`(?ms)^(?:func|type) [^\n]*(?:\}|\{\n.*?^\})$`)
	// tolerated are errors of what a block leaves out.
	tolerated = regexp.MustCompile(`^(undefined: [a-z]\w*|declared and not used: .*|missing return|no new variables on left side of :=|` +
		`(not enough|too many) return values(?s:.*)|"[^"]*" imported.* and not used|\w+ redeclared in this block|\s*other declaration of .*)$`)
)

// TestCode: the Go in the documents, and in the comments of packages, fits the API. What blocks
// leave out is not checked, nor is what follows from it.
func TestCode(t *testing.T) {
	c := newCodeChecker(t)
	files, err := filepath.Glob("*.md")
	require.NoError(t, err)
	blocks := 0
	for _, name := range append(files, "../README.md", "../CONTRIBUTING.md") {
		if slices.Contains(fromTests, name) {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range goBlock.FindAllSubmatchIndex(text, -1) {
			blocks++
			c.check(fmt.Sprintf("%s:%d", name, 1+bytes.Count(text[:m[2]], []byte("\n"))), string(text[m[2]:m[3]]))
		}
	}
	require.Greater(t, blocks, 10)
	comments := 0
	for _, p := range publicPackages(t) {
		for _, file := range p.code {
			if file.Doc != nil {
				for _, block := range codeOf(file.Doc.Text()) {
					if _, err := c.parse(block); err != nil {
						continue // a table or a drawing
					}
					comments++
					c.check("the comment of package "+p.path, block)
				}
			}
		}
	}
	require.Greater(t, comments, 5)
}

// TestCodeIsChecked: a call that does not fit the API is found, in code that leaves much out.
func TestCodeIsChecked(t *testing.T) {
	c := newCodeChecker(t)
	for _, code := range []string{
		"caps, err := rdma.QueryCapabilities(dev)\n...\nuse(caps)",
		"x := rdma.NoSuchThing",
		"r.OnStateChange(func(next pe.State) { ... })",
		"func f() {\n\tengine.Run()\n}",
	} {
		require.NotEmpty(t, c.errorsOf(code), code)
	}
	require.Empty(t, c.errorsOf("caps, err := rdma.QueryCapabilities(dev, verbs.RC)\n...\nuse(caps)"))
}

// codeOf returns the blocks of code in a comment: its indented lines.
func codeOf(text string) (blocks []string) {
	var block strings.Builder
	for line := range strings.Lines(text + "\nend\n") {
		switch {
		case strings.HasPrefix(line, "\t"):
			block.WriteString(line[1:])
		case strings.TrimSpace(line) != "" && block.Len() > 0:
			blocks = append(blocks, block.String())
			block.Reset()
		case block.Len() > 0:
			block.WriteByte('\n')
		}
	}
	return blocks
}

// codeChecker checks the types of code.
type codeChecker struct {
	t        *testing.T
	files    *token.FileSet
	importer types.Importer
	source   string // that was parsed last
}

func newCodeChecker(t *testing.T) *codeChecker {
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}, packages...)...)
	out, err := list.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		exports[name] = file
	}
	c := &codeChecker{t: t, files: token.NewFileSet()}
	c.importer = importer.ForCompiler(c.files, "gc", func(name string) (io.ReadCloser, error) { return os.Open(exports[name]) })
	return c
}

func (c *codeChecker) check(where, code string) {
	for _, err := range c.errorsOf(code) {
		c.t.Errorf("%s: %v", where, err)
	}
}

// errorsOf returns what is wrong with a block, with the lines that are.
func (c *codeChecker) errorsOf(code string) (errs []string) {
	file, err := c.parse(code)
	if err != nil {
		return []string{err.Error()}
	}
	elided := strings.Contains(code, "struct { ... }")
	config := types.Config{
		Importer: c.importer,
		Error: func(err error) {
			e := err.(types.Error)
			if tolerated.MatchString(e.Msg) || elided && strings.Contains(e.Msg, "has no field or method") {
				return
			}
			lines := strings.Split(c.source, "\n")
			errs = append(errs, fmt.Sprintf("%s: %s", strings.TrimSpace(lines[c.files.Position(e.Pos).Line-1]), e.Msg))
		},
	}
	_, _ = config.Check("block", c.files, []*ast.File{file}, nil)
	return errs
}

// parse parses a block: a file, or declarations and statements.
func (c *codeChecker) parse(code string) (file *ast.File, err error) {
	code = elidedBodies.Replace(elidedLines.ReplaceAllString(code, ""))
	c.source = code
	if !strings.HasPrefix(code, "package ") {
		var b strings.Builder
		b.WriteString("package block\n")
		for _, name := range packages {
			fmt.Fprintf(&b, "import %q\n", name)
		}
		b.WriteString(given)
		for _, d := range declarations.FindAllString(code, -1) {
			fmt.Fprintln(&b, d)
		}
		fmt.Fprintf(&b, "func _() error {\n%s\nreturn nil\n}\n", declarations.ReplaceAllString(code, ""))
		c.source = b.String()
	}
	return parser.ParseFile(c.files, "", c.source, parser.SkipObjectResolution)
}
