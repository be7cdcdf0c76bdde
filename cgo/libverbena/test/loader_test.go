//go:build linux

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// tool builds verbena, once, and returns its path.
var tool = sync.OnceValues(func() (string, error) {
	to := filepath.Join(folder, "verbena")
	out, err := exec.Command("go", "build", "-o", to, "../../../cmd/verbena").CombinedOutput()
	if err != nil {
		return "", &os.PathError{Op: string(out), Path: to, Err: err}
	}
	return to, nil
})

// verbenaRun returns the beginning of a command line that runs a program by verbena run.
func verbenaRun(t *testing.T, flags ...string) []string {
	t.Helper()
	library := plain.library(t)
	to, err := tool()
	require.NoError(t, err)
	return append(append([]string{to, "run", "-lib", library}, flags...), "--")
}

// build compiles a file of testdata.
func build(t *testing.T, source, to string, flags ...string) string {
	t.Helper()
	args := append([]string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", to, filepath.Join("testdata", source)}, flags...)
	out, err := exec.Command("cc", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return to
}

// systemLibrary returns the path of a library of the system.
func systemLibrary(t *testing.T, name string) string {
	t.Helper()
	for _, path := range systemLibraries(t) {
		if filepath.Base(path) == name {
			return path
		}
	}
	t.Fatalf("this system has no %s", name)
	return ""
}

// Programs that load libibverbs and librdmacm themselves find the devices, whatever name, flag and
// function they do it with: with the library preloaded, and by verbena run.
func TestLoaders(t *testing.T) {
	library := plain.library(t)
	scene := t.TempDir()
	plugins := filepath.Join(scene, "plugins")
	require.NoError(t, os.Mkdir(plugins, 0o755))
	program := build(t, "loader.c", filepath.Join(scene, "loader"), "-ldl", "-Wl,--export-dynamic", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/plugins")
	shared := func(to, define string, flags ...string) string {
		return build(t, "loaderplugin.c", to, append([]string{"-shared", "-fPIC", "-D" + define, "-ldl"}, flags...)...)
	}
	shared(filepath.Join(plugins, "libloaderplugin.so"), "PLUGIN", "-libverbs")
	tracer := shared(filepath.Join(scene, "tracer.so"), "TRACER")
	versions := filepath.Join(scene, "versions.map")
	require.NoError(t, os.WriteFile(versions, []byte("IBVERBS_1.1 { ibv_*; }; IBVERBS_1.99 { ibv_new_*; }; IBVERBS_PRIVATE_99 { _verbs_*; };\n"), 0o644))
	newer := filepath.Join(scene, "newer")
	require.NoError(t, os.Mkdir(newer, 0o755))
	shared(filepath.Join(newer, "libibverbs.so.1"), "NEWER", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script="+versions)

	env := append(os.Environ(), "VERBENA_DEVICES=soft-lo",
		"SYSTEM_VERBS="+systemLibrary(t, "libibverbs.so.1"), "SYSTEM_CM="+systemLibrary(t, "librdmacm.so.1"))
	with := func(more ...string) []string { return append(env[:len(env):len(env)], more...) }
	preload := filepath.Join(library, "libverbena.so")
	list, err := run(t, env, program)
	require.NoError(t, err, "%s", list)
	for _, name := range strings.Fields(list) {
		user, linked := "", program // what the user preloads
		search := os.Getenv("LD_LIBRARY_PATH")
		switch name {
		case "traced":
			user = tracer + ":"
		case "unknown_function":
			linked = build(t, "loader.c", filepath.Join(scene, "linked"), "-ldl", "-Wl,--export-dynamic", "-Wl,--no-as-needed", filepath.Join(newer, "libibverbs.so.1"))
			search = newer
		}
		if name != "deep_plugin" { // it needs the names in LD_LIBRARY_PATH
			t.Run("preloaded/"+name, func(t *testing.T) {
				out, err := run(t, with("LD_PRELOAD="+user+preload, "LD_LIBRARY_PATH="+search), linked, name)
				require.NoError(t, err, "%s", out)
				assert.Empty(t, out)
			})
		}
		t.Run("verbena run/"+name, func(t *testing.T) {
			out, err := run(t, with("LD_PRELOAD="+strings.TrimSuffix(user, ":"), "LD_LIBRARY_PATH="+search), append(verbenaRun(t), linked, name)...)
			require.NoError(t, err, "%s", out)
			assert.Empty(t, out)
		})
	}
}

// pythonLoader is a program of Python that loads a library by its name.
const pythonLoader = `
import ctypes, sys
verbs = ctypes.CDLL(sys.argv[1])
count = ctypes.c_int()
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
devices = verbs.ibv_get_device_list(ctypes.byref(count))
verbs.ibv_get_device_name.restype = ctypes.c_char_p
print(*(verbs.ibv_get_device_name(ctypes.c_void_p(devices[i])).decode() for i in range(count.value)))
`

func TestPythonLoader(t *testing.T) {
	netns.Need(t, exec.Command(python, "-c", "import ctypes").Run(), "Debian package python3")
	for _, name := range []string{"libibverbs.so", "libibverbs.so.1", systemLibrary(t, "libibverbs.so.1"), "librdmacm.so.1", "libefa.so", systemLibrary(t, "libefa.so.1")} {
		for _, words := range [][]string{nil, verbenaRun(t)} {
			out, err := run(t, plain.environment(t, "VERBENA_DEVICES=soft-lo"), append(words, python, "-c", pythonLoader, name)...)
			require.NoError(t, err, "%s", out)
			assert.Equal(t, "soft_lo\n", out, "%s %v", name, words)
		}
	}
}
