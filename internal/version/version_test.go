package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDescribe(t *testing.T) {
	settings := func(pairs ...string) (list []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return list
	}
	const revision = "0123456789abcdef0123456789abcdef01234567"
	for want, info := range map[string]debug.BuildInfo{
		"devel (go1.26.0 linux/amd64)": {},
		"v1.2.0 (go1.26.0 linux/amd64)": {
			Main: debug.Module{Path: module, Version: "v1.2.0"}},
		"devel (revision 0123456789ab; go1.26.0 linux/amd64)": {
			Main:     debug.Module{Path: module, Version: "(devel)"},
			Settings: settings("vcs", "git", "vcs.revision", revision, "vcs.modified", "false")},
		"v0.0.0-1-0123+dirty (revision 0123456789ab, modified; go1.26.0 linux/amd64)": {
			Main:     debug.Module{Path: module, Version: "v0.0.0-1-0123+dirty"},
			Settings: settings("vcs.modified", "true", "vcs.revision", revision)},
		"devel (revision 42; go1.26.0 linux/amd64)": {
			Main: debug.Module{Path: module}, Settings: settings("vcs.revision", "42")},
		// go install module@version, of a commit without a tag, before and after a release.
		"v0.0.0-20260102030405-0123456789ab (revision 0123456789ab; go1.26.0 linux/amd64)": {
			Main: debug.Module{Path: module, Version: "v0.0.0-20260102030405-0123456789ab"}},
		"v1.2.1-0.20260102030405-0123456789ab+incompatible (revision 0123456789ab; go1.26.0 linux/amd64)": {
			Main: debug.Module{Path: module, Version: "v1.2.1-0.20260102030405-0123456789ab+incompatible"}},
		// The repository is that of another module.
		"v1.3.0 (go1.26.0 linux/amd64)": {
			Main:     debug.Module{Path: "example.org/store", Version: "v7.0.0"},
			Deps:     []*debug.Module{{Path: "golang.org/x/sys", Version: "v0.1.0"}, {Path: module, Version: "v1.3.0"}},
			Settings: settings("vcs.revision", revision)},
		"v1.4.0 (go1.26.0 linux/amd64)": {
			Deps: []*debug.Module{{Path: module, Version: "v1.3.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v1.4.0"}}}},
	} {
		info.GoVersion = "go1.26.0"
		assert.Equal(t, want, describe(&info, "linux/amd64"))
	}
}

// The linker's commit is for builds without any other.
func TestCommitOfTheLinker(t *testing.T) {
	folder := t.TempDir()
	for flag, want := range map[string]string{
		"-X " + module + "/internal/version.commit=fedcba9876543210": "(revision fedcba987654; go",
		"": "(go",
	} {
		program := filepath.Join(folder, "verbena")
		out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-s -w "+flag, "-o", program, "../../samples/device_info").CombinedOutput()
		require.NoError(t, err, "%s", out)
		out, err = exec.Command(program, "-version").CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), want)
		assert.Contains(t, string(out), runtime.Version())
	}
}

func TestNumberInC(t *testing.T) {
	header, err := os.ReadFile("version.h")
	require.NoError(t, err)
	assert.Contains(t, string(header), `#define VERBENA_VERSION "`+Number+"\"\n")
}

// A test binary is a program like any other.
func TestString(t *testing.T) {
	assert.Contains(t, String(), runtime.Version())
	assert.Contains(t, String(), runtime.GOOS+"/"+runtime.GOARCH)
}
