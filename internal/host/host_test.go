package host

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fromTheSystem are the functions that take from the system what a Host decides.
var fromTheSystem = map[string][]string{
	"time":    {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"},
	"context": {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"},
}

// What works on a device takes time, random numbers and goroutines from its host: a single
// time.Now would make simulations differ from run to run, rarely.
func TestNothingPassesTheHostBy(t *testing.T) {
	var files []string
	for _, pattern := range []string{
		"rdma/*.go", "dma/*.go", "mmap/*.go", "bufinv/*.go", "syncevent/*.go", "await/*.go", "graph/*.go", "internal/lane/*.go",
		"oob/call.go", "oob/cm*.go", "oob/done.go", "oob/exchange.go", "rsocket/*.go",
	} {
		found, err := filepath.Glob(filepath.Join("..", "..", pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "rsocket/stacks.go") { // which no simulation uses
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		require.NoError(t, err)
		for _, name := range found(file) {
			t.Errorf("%s uses %s; use the device's host (internal/host)", path, name)
		}
	}
}

// found returns what a file takes from the system.
func found(file *ast.File) (names []string) {
	for _, i := range file.Imports {
		switch path, _ := strconv.Unquote(i.Path.Value); path {
		case "crypto/rand", "math/rand", "math/rand/v2", "hash/maphash":
			names = append(names, path)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			names = append(names, "a go statement")
		case *ast.SelectorExpr:
			x, _ := n.X.(*ast.Ident)
			if n.Sel.Name == "Go" && (x == nil || x.Name != "host") {
				names = append(names, "Go of something else than package host")
			}
			if x == nil {
				return true
			}
			for _, f := range fromTheSystem[x.Name] {
				if n.Sel.Name == f {
					names = append(names, x.Name+"."+f)
				}
			}
		}
		return true
	})
	return names
}

func TestWhatPassesTheHostByIsFound(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "", `package p
import "crypto/rand"
func f(g *sync.WaitGroup) {
	go f(g)
	g.Go(func() { time.Sleep(time.Until(time.Time{})) })
	host.Go(h, g, nil)
}`, 0)
	require.NoError(t, err)
	assert.Equal(t, []string{"crypto/rand", "a go statement", "Go of something else than package host", "time.Sleep", "time.Until"}, found(file))
}

func TestSystem(t *testing.T) {
	assert.Equal(t, System, Of(nil))
	assert.Equal(t, System, Of(struct{}{}))
	synctest.Test(t, func(t *testing.T) {
		start := System.Now()
		ctx, cancel := WithTimeout(context.Background(), System, time.Minute)
		defer cancel()
		<-ctx.Done()
		assert.Equal(t, time.Minute, System.Now().Sub(start))
		require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
		early, cancel := WithTimeout(context.Background(), System, time.Minute)
		cancel()
		require.ErrorIs(t, context.Cause(early), context.Canceled)
	})
	assert.NotEqual(t, Uint64(System), Uint64(System))
}

func TestAwait(t *testing.T) {
	c := make(chan int, 1)
	c <- 1
	v, ok := Await(context.Background(), nil, nil, c)
	assert.Equal(t, 1, v)
	assert.True(t, ok)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, ok = Await(ctx, nil, nil, c)
	assert.False(t, ok)
	c <- 2
	v, ok = Await(ctx, nil, nil, c)
	assert.Equal(t, 2, v, "it came first")
	assert.True(t, ok)
}
