package docs

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// qualified is a name of a package, with a method or field of it; member is one of a type
	// whose package is not named.
	qualified = regexp.MustCompile(`(?:^|[^\w./"-])([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	member    = regexp.MustCompile(`(?:^|[^\w./"-])([A-Z]\w*)\.([A-Z]\w*)`)
)

// TestNames: names of the API in the text of documents exist, and calls of functions have as many
// arguments as these take.
func TestNames(t *testing.T) {
	api := newAPI(t)
	files, err := filepath.Glob("*.md")
	require.NoError(t, err)
	names := 0
	for _, name := range append(files, "../README.md", "../CONTRIBUTING.md") {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		text = fence.ReplaceAllFunc(text, func(b []byte) []byte { return bytes.Repeat([]byte("\n"), bytes.Count(b, []byte("\n"))) })
		for i, line := range strings.Split(string(text), "\n") {
			for _, code := range inline.FindAllString(line, -1) {
				names++
				for _, wrong := range api.wrong(strings.Trim(code, "`")) {
					t.Errorf("%s:%d: %s: %s", name, i+1, code, wrong)
				}
			}
		}
	}
	require.Greater(t, names, 1000)
}

// TestNamesAreChecked: names and calls that do not fit the API are found, and others are not.
func TestNamesAreChecked(t *testing.T) {
	api := newAPI(t)
	for _, code := range []string{"rdma.QueryCapabilities(dev)", "rdma.ErrNothing", "rdma.Config.Colour", "pe.Core.NoMethod", "Context.NoMethod", "Inventory.Lend(n)"} {
		require.NotEmpty(t, api.wrong(code), code)
	}
	for _, code := range []string{"rdma.QueryCapabilities(dev, verbs.RC)", "rdma.Config.Path.MTU", "Context.Stop", "`context.Background`", "mmap.Register(dev, …)", "Engine.Do"} {
		require.Empty(t, api.wrong(code), code)
	}
}

// api is what the public packages export.
type api map[string]*types.Package // by name

func newAPI(t *testing.T) api {
	c := newCodeChecker(t)
	list := api{}
	for _, name := range packages {
		if strings.HasPrefix(name, module) {
			p, err := c.importer.Import(name)
			require.NoError(t, err)
			list[path.Base(name)] = p
		}
	}
	return list
}

func (a api) wrong(code string) (list []string) {
	if strings.HasSuffix(code, "…") { // the beginning of names
		return nil
	}
	for _, m := range qualified.FindAllStringSubmatch(code, -1) {
		p := a[m[1]]
		if p == nil {
			continue
		}
		switch object := p.Scope().Lookup(m[2]); {
		case object == nil:
			list = append(list, fmt.Sprintf("package %s has no %s", m[1], m[2]))
		case m[3] != "" && !has(object, m[3]):
			list = append(list, fmt.Sprintf("%s.%s has no %s", m[1], m[2], m[3]))
		}
	}
	for _, m := range member.FindAllStringSubmatch(code, -1) {
		known, found := false, false
		for _, p := range a {
			if object, ok := p.Scope().Lookup(m[1]).(*types.TypeName); ok {
				known, found = true, found || has(object, m[2])
			}
		}
		if known && !found {
			list = append(list, fmt.Sprintf("no %s has a %s", m[1], m[2]))
		}
	}
	return append(list, a.wrongCall(code)...)
}

// has reports whether a type has a method or a field.
func has(object types.Object, name string) bool {
	if object, _, _ := types.LookupFieldOrMethod(object.Type(), true, object.Pkg(), name); object != nil {
		return true
	}
	return false
}

// wrongCall checks the number of arguments of a call of a package's function.
func (a api) wrongCall(code string) []string {
	expr, err := parser.ParseExpr(code)
	if err != nil {
		return nil // with things left out
	}
	call, ok := expr.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 { // none: just a name
		return nil
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	name, ok := selector.X.(*ast.Ident)
	if !ok || a[name.Name] == nil {
		return nil
	}
	object, ok := a[name.Name].Scope().Lookup(selector.Sel.Name).(*types.Func)
	if !ok {
		return nil
	}
	if s := object.Signature(); !s.Variadic() && s.Params().Len() != len(call.Args) {
		return []string{fmt.Sprintf("it takes %d arguments", s.Params().Len())}
	}
	return nil
}

// TestPorting: the names of DOCA are written out, so that a search finds them, and those of its
// headers that programs use most are there.
func TestPorting(t *testing.T) {
	text, err := os.ReadFile("porting-from-doca.md")
	require.NoError(t, err)
	abbreviated := regexp.MustCompile("`_\\w+|doca_\\w*(?:xxx|…|\\*)")
	require.Empty(t, abbreviated.FindAllString(string(text), -1))
	for _, name := range []string{
		"doca_argp_init", "doca_log_backend_create_standard", "doca_error_get_descr", "doca_ctx_flush_tasks", "doca_task_submit_ex",
		"doca_task_batch_set_user_data", "doca_buf_arr_create", "doca_mmap_set_dpa_memrange", "doca_mmap_cap_is_export_pci_supported",
		"doca_rdma_bridge_get_dev_pd", "doca_rdma_bridge_open_dev_from_pd", "doca_rdma_bridge_get_buf_mkey", "doca_rdma_bridge_prepare_connection",
		"doca_rdma_task_write_imm_allocate_init", "doca_rdma_task_receive_get_result_opcode", "doca_rdma_set_transport_type", "doca_buf_pool_destroy",
		"doca_sync_event_wait_gt_yield", "doca_rdma_cap_task_read_is_supported", "DOCA_ERROR_AGAIN",
	} {
		require.Regexp(t, "`"+name+"\\b", string(text))
	}
}
