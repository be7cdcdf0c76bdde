package device_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program on the SDK links little: what the tool and the measurements need stays with them.
func TestLinkedModules(t *testing.T) {
	const module = "github.com/verbena-rdma/verbena"
	log := []string{"github.com/mattn/go-colorable", "github.com/mattn/go-isatty", "github.com/rs/zerolog", "golang.org/x/sys"}
	linked := func(patterns ...string) (modules []string) {
		for _, tags := range []string{"", "verbs"} {
			args := append([]string{"list", "-deps", "-tags", tags, "-f", "{{with .Module}}{{.Path}}{{end}}"}, patterns...)
			out, err := exec.CommandContext(t.Context(), "go", args...).Output()
			require.NoError(t, err)
			modules = append(modules, strings.Fields(string(out))...)
		}
		slices.Sort(modules)
		return slices.DeleteFunc(slices.Compact(modules), func(m string) bool { return m == module })
	}
	var public []string
	for _, p := range []string{"await", "bufinv", "descriptor", "device", "device/route", "dma", "graph", "mmap", "oob", "pe", "rdma", "soft", "syncevent", "verbs"} {
		public = append(public, module+"/"+p)
	}
	assert.Equal(t, log, linked(public...))
	assert.Equal(t, log, linked(module+"/samples/..."), "the samples, which make demo builds")
}
