package preload

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/version"
)

// asProgram is set in the environment of this test binary where it is to be verbena run.
const asProgram = "VERBENA_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := interrupt.Context(context.Background())
		code := Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// compiled has what the compiler made, by its arguments, since most tests need the same.
var compiled sync.Map

// compile compiles a file of testdata, and returns the path of the result.
func compile(t *testing.T, source, out string, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		if os.Getenv("CI") == "true" {
			require.NoError(t, err)
		}
		t.Skip("there is no C compiler (Debian package gcc)")
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(out), 0o755))
	key := strings.Join(append(flags[:len(flags):len(flags)], source), "\x00")
	if made, ok := compiled.Load(key); ok {
		require.NoError(t, os.WriteFile(out, made.([]byte), 0o755))
		return out
	}
	text, err := exec.Command(gcc, append([]string{"-o", out, filepath.Join("testdata", source)}, flags...)...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	made, err := os.ReadFile(out)
	require.NoError(t, err)
	compiled.Store(key, made)
	return out
}

func shared(t *testing.T, source, out string, flags ...string) string {
	t.Helper()
	return compile(t, source, out, append([]string{"-shared", "-fPIC"}, flags...)...)
}

// scene is a folder with a program and the libraries.
type scene struct {
	t       *testing.T
	folder  string
	lib     string // the folder of the libraries
	program string
}

func versionFlag(number string) string { return fmt.Sprintf("-DVERSION=%q", number) }

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, folder: t.TempDir()}
	s.program = compile(t, "program.c", filepath.Join(s.folder, "program"))
	s.lib = filepath.Join(s.folder, "lib")
	s.build(s.lib)
	return s
}

// build builds the libraries, as make build does.
func (s *scene) build(folder string) {
	s.t.Helper()
	for _, name := range []string{preloadedFile, deviceFile} {
		shared(s.t, "libverbena.c", filepath.Join(folder, name), versionFlag(version.Number))
	}
	for _, name := range replaced {
		stem, _, _ := strings.Cut(name, ".")
		link := filepath.Join(folder, "verbena-lib", stem, name)
		require.NoError(s.t, os.MkdirAll(filepath.Dir(link), 0o755))
		require.NoError(s.t, os.Symlink("../../"+preloadedFile, link))
	}
}

// path returns the path of a file in the folder.
func (s *scene) path(name string) string { return filepath.Join(s.folder, name) }

// command returns verbena run with the libraries, in an environment without those variables that
// it sets.
func (s *scene) command(args ...string) *exec.Cmd {
	return s.bare(append([]string{"-lib", s.lib}, args...)...)
}

func (s *scene) bare(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != preloadVariable && name != searchVariable && name != devicesVariable {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// The library of these tests does not remove the files of devices.
	cmd.Env = append(cmd.Env, asProgram+"=1", "XDG_RUNTIME_DIR="+s.folder)
	return cmd
}

// result runs a command, and returns its exit code, or minus the signal, and its outputs.
func (s *scene) result(cmd *exec.Cmd) (code int, stdout, stderr string) {
	s.t.Helper()
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	failed := cmd.Run()
	var exit *exec.ExitError
	if failed != nil && !errors.As(failed, &exit) {
		require.NoError(s.t, failed)
	}
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return -int(status.Signal()), out.String(), err.String()
	}
	return cmd.ProcessState.ExitCode(), out.String(), err.String()
}

// succeeds runs a command that has to succeed, and returns its standard output.
func (s *scene) succeeds(cmd *exec.Cmd) string {
	s.t.Helper()
	code, out, err := s.result(cmd)
	require.Zero(s.t, code, "%s%s", out, err)
	return out
}

// refuses checks that a command is refused, with an exit code and an error that says what.
func (s *scene) refuses(cmd *exec.Cmd, want int, says ...string) {
	s.t.Helper()
	code, out, err := s.result(cmd)
	assert.Equal(s.t, want, code, err)
	assert.Empty(s.t, out, "nothing was started")
	assert.True(s.t, strings.HasPrefix(err, "verbena run: "), err)
	for _, text := range says {
		assert.Contains(s.t, err, text)
	}
}

func TestProgramRuns(t *testing.T) {
	s := newScene(t)
	out := s.succeeds(s.command(s.program, "-v", "a b", ""))
	interrupt := "default"
	if signal.Ignored(os.Interrupt) { // the tests run in the background of a shell
		interrupt = "ignored"
	}
	assert.Equal(t, fmt.Sprintf(`SIGINT %s SIGTERM default
libverbena 42 other 0
argument [%s]
argument [-v]
argument [a b]
argument []
LD_PRELOAD=[%s]
LD_LIBRARY_PATH=[%s]
VERBENA_DEVICES=[unset]
`, interrupt, s.program, s.path("lib/libverbena.so"), s.searched()), out)
}

// searched is the LD_LIBRARY_PATH that a program gets: the folders with the names of libibverbs and
// librdmacm, unless this machine has them, since the library of these tests has no versions.
func (s *scene) searched() string {
	f, err := elf.Open(s.program)
	require.NoError(s.t, err)
	defer f.Close()
	l, err := openLibrary(s.lib)
	require.NoError(s.t, err)
	folders, _, err := l.replacements(&program{linker: newLinker(s.program, f)}, replaced)
	require.NoError(s.t, err)
	if len(folders) == 0 {
		return "unset"
	}
	return searched("", folders...)
}

func TestVerbose(t *testing.T) {
	s := newScene(t)
	cmd := s.command("-v", "-d", "soft-lo?loss=0.5", "--", s.program)
	code, out, err := s.result(cmd)
	assert.Zero(t, code)
	assert.Contains(t, out, "libverbena 42")
	for _, text := range []string{
		"verbena run: program " + s.program + "\n",
		"verbena run: library " + s.path("lib/libverbena.so") + ", version " + version.Number + "\n",
		"verbena run: LD_PRELOAD=" + s.path("lib/libverbena.so") + "\n",
		"verbena run: VERBENA_DEVICES=soft-lo?loss=0.5\n",
	} {
		assert.Contains(t, err, text)
	}
}

func TestExitCodeAndSignals(t *testing.T) {
	s := newScene(t)
	for _, code := range []int{0, 1, 2, 77, 125, 255} {
		got, _, _ := s.result(s.command(s.program, "exit", fmt.Sprint(code)))
		assert.Equal(t, code, got)
	}
	code, _, _ := s.result(s.command(s.program, "abort"))
	assert.Equal(t, -int(syscall.SIGABRT), code)

	// The program is the process that was started, so signals reach it.
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if signal.Ignored(sig) {
			continue
		}
		cmd := s.command(s.program, "wait")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("pid %d\n", cmd.Process.Pid), line)
		require.NoError(t, cmd.Process.Signal(sig))
		require.Error(t, cmd.Wait())
		assert.Equal(t, sig, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	}
}

// A program that a shell runs in the background ignores SIGINT.
func TestIgnoredSignal(t *testing.T) {
	s := newScene(t)
	cmd := s.command(s.program)
	cmd.Args = append([]string{"sh", "-c", `trap "" INT; exec "$0" "$@"`}, cmd.Args...)
	cmd.Path = "/bin/sh"
	assert.Contains(t, s.succeeds(cmd), "SIGINT ignored SIGTERM default")
}

func TestKeepsWhatIsPreloaded(t *testing.T) {
	s := newScene(t)
	other := shared(t, "other.c", s.path("other.so"))
	again := shared(t, "other.c", s.path("again.so"))
	ours := s.path("lib/libverbena.so")
	elsewhere := shared(t, "libverbena.c", s.path("elsewhere/libverbena.so"))
	for before, want := range map[string]string{
		"":                               ours,
		other:                            other + ":" + ours,
		other + " " + again:              other + ":" + again + ":" + ours,
		other + ":" + again:              other + ":" + again + ":" + ours,
		ours:                             ours,
		ours + ":" + other:               other + ":" + ours,
		elsewhere + " " + other:          other + ":" + ours,
		" " + other + "::" + again + " ": other + ":" + again + ":" + ours,
		"/x/libibverbs.so.1":             ours,
	} {
		cmd := s.command(s.program)
		cmd.Env = append(cmd.Env, preloadVariable+"="+before)
		out := s.succeeds(cmd)
		assert.Contains(t, out, "LD_PRELOAD=["+want+"]\n", before)
		loaded := 0
		if strings.Contains(before, other) {
			loaded = 43
		}
		assert.Contains(t, out, fmt.Sprintf("libverbena 42 other %d\n", loaded), before)
	}

	cmd := s.command(s.program) // of two variables of one name, getenv takes the first
	cmd.Path, cmd.Args = s.program, []string{s.program}
	cmd.Env = setenv(append(cmd.Env, "LD_PRELOAD=/nowhere.so", "LD_PRELOAD=/nowhere.so"), preloadVariable, ours)
	assert.Contains(t, s.succeeds(cmd), "libverbena 42")
}

// A program with AddressSanitizer runs, which has to be the first library.
func TestAddressSanitizer(t *testing.T) {
	s := newScene(t)
	sanitized := compile(t, "program.c", s.path("sanitized"), "-fsanitize=address")
	for _, options := range []string{"", "detect_leaks=0"} {
		cmd := s.command("-v", sanitized)
		cmd.Env = append(cmd.Env, asanVariable+"="+options)
		code, out, err := s.result(cmd)
		require.Zero(t, code, "%s%s", out, err)
		assert.Contains(t, out, "libverbena 42")
		assert.Regexp(t, `LD_PRELOAD=\[[^:]*/libasan\.so[^:]*:`+s.path("lib/libverbena.so")+`\]`, out)
		assert.Contains(t, err, strings.TrimSuffix("ASAN_OPTIONS=use_sigaltstack=0:"+options, ":")+"\n")
	}
	// One that has the static library needs the options alone.
	static := compile(t, "program.c", s.path("static"), "-fsanitize=address", "-static-libasan")
	code, out, err := s.result(s.command("-v", static))
	require.Zero(t, code, "%s%s", out, err)
	assert.Contains(t, out, "libverbena 42")
	assert.Contains(t, out, "LD_PRELOAD=["+s.path("lib/libverbena.so")+"]")
	assert.Contains(t, err, "ASAN_OPTIONS=use_sigaltstack=0")
}

func TestDeviceLists(t *testing.T) {
	s := newScene(t)
	for _, c := range []struct {
		args []string
		env  string
		want string
	}{
		{nil, "soft-lo?seed=7", "soft-lo?seed=7"},
		{nil, "  soft-lo   soft-127.0.0.1?loss=0.5 ", "soft-lo soft-127.0.0.1?loss=0.5"},
		{[]string{"-d", "soft-127.0.0.1", "-d", "soft-lo?delay=1ms"}, "", "soft-127.0.0.1 soft-lo?delay=1ms"},
		{[]string{"-d", "soft-127.0.0.1"}, "soft-lo", "soft-127.0.0.1"},
		{[]string{"-d", "soft_lo?loss=0.5"}, "", "soft_lo?loss=0.5"},
		{[]string{"-d", "soft-lo?capture=my trace.pcap"}, "", "soft-lo?capture=my+trace.pcap"},
		{[]string{"-d", "soft-lo?seed=7", "-d", "soft-127.0.0.1", "-faults", "loss=0.01&delay=1ms"}, "", "soft-lo?seed=7&loss=0.01&delay=1ms soft-127.0.0.1?loss=0.01&delay=1ms"},
		{[]string{"-faults", "loss=0.01"}, "soft-lo?loss=0.5", "soft-lo?loss=0.5&loss=0.01"},
		{[]string{"-d", "soft-lo?", "-faults", "loss=0.01"}, "", "soft-lo?loss=0.01"},
	} {
		cmd := s.command(append(c.args, s.program)...)
		if c.env != "" {
			cmd.Env = append(cmd.Env, devicesVariable+"="+c.env)
		}
		assert.Contains(t, s.succeeds(cmd), "VERBENA_DEVICES=["+c.want+"]\n")
	}
	// Every device of this machine has the faults.
	out := s.succeeds(s.command("-faults", "loss=0.25", s.program))
	assert.Contains(t, out, "soft-lo?loss=0.25")
	_, list, _ := strings.Cut(out, "VERBENA_DEVICES=[")
	list, _, _ = strings.Cut(list, "]")
	for _, name := range strings.Fields(list) {
		assert.True(t, strings.HasSuffix(name, "?loss=0.25"), name)
	}
}

func TestWrongDevices(t *testing.T) {
	s := newScene(t)
	for _, c := range []struct {
		args []string
		env  string
		says string
	}{
		{[]string{"-d", "soft-nosuchif0"}, "", "soft-lo"},
		{nil, "soft-lo soft-nosuchif0", "VERBENA_DEVICES: "},
		{nil, "mlx5_0", "mlx5_0"},
		{[]string{"-d", ""}, "", "not the name of a device"},
		{[]string{"-d", "soft-lo soft-lo"}, "", "-d of its own"},
		{[]string{"-d", "soft-lo", "-d", "soft-lo?loss=0.1"}, "", "named twice"},
		{[]string{"-d", "soft-lo", "-d", "soft_lo"}, "", "named twice"},
		{[]string{"-d", "soft-lo?loss=2"}, "", "probability"},
		{[]string{"-faults", "loss=2"}, "", "probability"},
		{[]string{"-faults", "lost=0.1"}, "", "unknown option"},
		{[]string{"-faults", "delay=-1ms"}, "soft-lo", "Delay"},
		{[]string{"-faults", "capture=x", "-d", "soft-lo", "-d", "soft-127.0.0.1"}, "", "same capture file"},
		{[]string{"-faults", ""}, "", "-faults is empty"},
	} {
		cmd := s.command(append(c.args, s.program)...)
		if c.env != "" {
			cmd.Env = append(cmd.Env, devicesVariable+"="+c.env)
		}
		s.refuses(cmd, exitFailed, c.says)
	}
}

// Without an interface that is up there is no device, and the error says what to do.
func TestNoInterface(t *testing.T) {
	s := newScene(t)
	for _, flags := range [][]string{{"-d", "soft-lo"}, {"-faults", "loss=0.1"}} {
		cmd := s.command(append(flags, s.program)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Skipf("skipped: this system does not let users create namespaces: %v", err)
		}
		assert.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
		assert.Contains(t, stderr.String(), "ip link set lo up")
	}
}

func TestCommandLine(t *testing.T) {
	s := newScene(t)
	s.refuses(s.command(), exitFailed, "name the program to run")
	s.refuses(s.bare("-lib", "", s.program), exitFailed, "-lib is empty")
	code, _, err := s.result(s.command("-nosuchflag"))
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, err, "-h lists the flags")
	code, out, _ := s.result(s.command("-h"))
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "usage: verbena run")
}

func TestLibraryIsFound(t *testing.T) {
	s := newScene(t)
	tool := s.path("bin/verbena")
	require.NoError(t, os.MkdirAll(s.path("bin"), 0o755))
	install(t, tool)
	s.build(s.path("lib/verbena"))
	show := func() string {
		cmd := s.bare(s.program)
		cmd.Path = tool
		return s.succeeds(cmd)
	}
	assert.Contains(t, show(), "LD_PRELOAD=["+s.path("lib/verbena/libverbena.so")+"]")
	s.build(s.path("bin")) // beside the tool is first
	assert.Contains(t, show(), "LD_PRELOAD=["+s.path("bin/libverbena.so")+"]")

	cmd := s.bare("-lib", "lib", s.program) // relative to the working directory
	cmd.Dir = s.folder
	assert.Contains(t, s.succeeds(cmd), "LD_PRELOAD=["+s.path("lib/libverbena.so")+"]")
}

// TestWithoutProc: the library is found where there is no /proc, as in some roots of build systems.
func TestWithoutProc(t *testing.T) {
	hidden := []string{"-rm", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"}
	if out, err := exec.Command("unshare", append(hidden, "true")...).CombinedOutput(); err != nil {
		t.Skipf("/proc cannot be hidden from a program here: %v: %s", err, out)
	}
	s := newScene(t)
	tool := s.path("bin/verbena")
	s.build(s.path("bin"))
	install(t, tool)
	for _, name := range []string{tool, "verbena"} {
		cmd := exec.Command("unshare", append(hidden, name, s.program)...)
		cmd.Env = append(s.bare().Env, "PATH="+s.path("bin")+":"+os.Getenv("PATH"))
		assert.Contains(t, s.succeeds(cmd), "LD_PRELOAD=["+s.path("bin/libverbena.so")+"]")
	}
}

// TestValgrind: the Go runtime in the library uses no instruction that valgrind does not know.
func TestValgrind(t *testing.T) {
	s := newScene(t)
	show := func(before string) string {
		cmd := s.command("sh", "-c", `echo "[$GODEBUG]"`, "sh", "/usr/bin/valgrind")
		cmd.Env = append(cmd.Env, "GODEBUG="+before)
		return strings.TrimSpace(s.succeeds(cmd))
	}
	if runtime.GOARCH != "amd64" {
		assert.Equal(t, "[]", show(""))
		return
	}
	assert.Equal(t, "[cpu.rdtscp=off]", show(""))
	assert.Equal(t, "[gctrace=0,cpu.rdtscp=off]", show("gctrace=0"))
	assert.Equal(t, "madvdontneed=1", goSettings("madvdontneed=1", []string{"valgrindlike", "a"}, elf.EM_X86_64))
	assert.Empty(t, goSettings("", []string{"valgrind", "a"}, elf.EM_AARCH64))
}

// install copies this test binary.
func install(t *testing.T, to string) {
	t.Helper()
	if os.Link(os.Args[0], to) == nil {
		return
	}
	from, err := os.Open(os.Args[0])
	require.NoError(t, err)
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(f, from)
	require.NoError(t, errors.Join(err, f.Close()))
}

func TestWrongLibraries(t *testing.T) {
	s := newScene(t)
	s.refuses(s.bare("-lib", s.path("nowhere"), s.program), exitFailed, "libverbena.so is not in "+s.path("nowhere"), "make build", "-lib")

	device := s.path("lib/" + deviceFile)
	require.NoError(t, os.Remove(device))
	s.refuses(s.command(s.program), exitFailed, device, "belong together")

	for _, name := range []string{deviceFile, preloadedFile} {
		path := s.path("lib/" + name)
		require.NoError(t, os.WriteFile(path, []byte("not a library"), 0o644))
		s.refuses(s.command(s.program), exitFailed, path, "not a shared library")
		require.NoError(t, os.WriteFile(path, nil, 0o644))
		s.refuses(s.command(s.program), exitFailed, path, "not a shared library")
		shared(t, "libverbena.c", path)
		s.refuses(s.command(s.program), exitFailed, path, "not a library of Verbena", "no symbol verbena_version")
		shared(t, "libverbena.c", path, versionFlag("0.0.1-other"))
		s.refuses(s.command(s.program), exitFailed, path, "0.0.1-other", version.Number)
		shared(t, "libverbena.c", path, versionFlag(strings.Repeat("long", 1000)))
		s.refuses(s.command(s.program), exitFailed, path, "not a string")
		shared(t, "libverbena.c", path, versionFlag(version.Number))
		if name == deviceFile {
			relabel(t, path)
			s.refuses(s.command(s.program), exitFailed, path, "build both again")
			shared(t, "libverbena.c", path, versionFlag(version.Number))
		}
	}
	relabel(t, s.path("lib/"+preloadedFile))
	relabel(t, device)
	s.refuses(s.command(s.program), exitRefused, s.program, "is a program for")

	for _, name := range []string{"with space", "with:colon", "with;semicolon", "with$ORIGIN"} {
		s.build(s.path(name))
		s.refuses(s.bare("-lib", s.path(name), s.program), exitFailed, name, "another folder")
	}
}

// relabel makes an ELF file one of another processor.
func relabel(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(binary.LittleEndian.AppendUint16(nil, uint16(elf.EM_RISCV)), 18) // e_machine
	require.NoError(t, errors.Join(err, f.Close()))
}

// TestNewerC: the library needs a version of glibc's symbols that this machine does not have.
func TestNewerC(t *testing.T) {
	s := newScene(t)
	script, source := s.path("versions"), s.path("libc.c")
	require.NoError(t, os.WriteFile(script, []byte("GLIBC_9.99 { needed; };\n"), 0o644))
	require.NoError(t, os.WriteFile(source, []byte("int needed(void) { return 1; }\n"), 0o644))
	gcc := compile(t, "other.c", s.path("libc/libc.so.6"), source, "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libc.so.6", "-Wl,--version-script="+script)
	for _, name := range []string{preloadedFile, deviceFile} {
		path := shared(t, "libverbena.c", s.path("lib/"+name), versionFlag(version.Number), "-DNEEDED", "-nostdlib", gcc)
		s.refuses(s.command(s.program), exitRefused, path, "GLIBC_9.99", "newer glibc")
		shared(t, "libverbena.c", path, versionFlag(version.Number))
	}
	assert.Contains(t, s.succeeds(s.command(s.program)), "libverbena 42")
}

func TestRefusedPrograms(t *testing.T) {
	s := newScene(t)
	static := compile(t, "program.c", s.path("static"), "-static", "-Wl,--unresolved-symbols=ignore-all")
	s.refuses(s.command(static), exitRefused, static, "linked statically")
	musl := compile(t, "program.c", s.path("musl"), "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
	s.refuses(s.command(musl), exitRefused, musl, "linked with musl")
	nowhere := compile(t, "program.c", s.path("nowhere"), "-Wl,--dynamic-linker=/nowhere/ld-linux.so.9")
	s.refuses(s.command(nowhere), exitRefused, nowhere, "/nowhere/ld-linux.so.9")
	s.refuses(s.command(os.Args[0]), exitRefused, os.Args[0], "Go program")
	foreign := compile(t, "program.c", s.path("foreign"))
	relabel(t, foreign)
	s.refuses(s.command(foreign), exitRefused, foreign, "64-bit RISCV")

	s.refuses(s.command("no-such-command-anywhere"), exitNotFound, "no-such-command-anywhere", "not found")
	s.refuses(s.command(s.path("nothing")), exitNotFound, s.path("nothing"), "no such file")
	s.refuses(s.command(s.folder), exitRefused, s.folder)
	data := s.path("data")
	require.NoError(t, os.WriteFile(data, []byte("text"), 0o644))
	s.refuses(s.command(data), exitRefused, data, "cannot be executed")
	require.NoError(t, os.Chmod(data, 0o755))
	s.refuses(s.command(data), exitRefused, data, "neither an ELF program nor a script")
	require.NoError(t, os.WriteFile(data, nil, 0o755))
	s.refuses(s.command(data), exitRefused, data, "neither an ELF program nor a script")
	require.NoError(t, os.WriteFile(data, []byte("\x7fELF\x02\x01\x01"), 0o755))
	s.refuses(s.command(data), exitRefused, data, "neither an ELF program nor a script")
	pipe := s.path("pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o755))
	s.refuses(s.command(pipe), exitRefused, pipe, "not a regular file")

	cmd := s.command("program")
	cmd.Dir, cmd.Env = s.folder, append(cmd.Env, "PATH=.")
	s.refuses(cmd, exitNotFound, "./program")
}

func TestScripts(t *testing.T) {
	s := newScene(t)
	script := func(name, text string) string {
		path := s.path(name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
		return path
	}
	static := compile(t, "program.c", s.path("static"), "-static", "-Wl,--unresolved-symbols=ignore-all")
	for i, line := range []string{"#!" + s.program, "#! " + s.program + " option", "#!/usr/bin/env " + s.program, "#!/usr/bin/env -S A=b " + s.program + " option", "#!/bin/sh\nexec " + s.program} {
		path := script(fmt.Sprintf("good%d", i), line+"\n")
		code, out, err := s.result(s.command("-v", path))
		assert.Zero(t, code, err)
		assert.Contains(t, out, "libverbena 42", line)
		assert.Contains(t, err, "program "+path+", interpreted by ")
	}
	outer := script("outer", "#!"+script("inner", "#!"+s.program+"\n")+"\n")
	assert.Contains(t, s.succeeds(s.command(outer)), "argument ["+outer+"]")
	for line, says := range map[string]string{
		"#!" + static:                   "linked statically",
		"#!/usr/bin/env " + static:      "linked statically",
		"#!" + os.Args[0]:               "Go program",
		"#!":                            "names no interpreter",
		"#!/nowhere/python3\n":          "/nowhere/python3",
		"#!/bin/sh\r\n":                 `/bin/sh\r`,
		"#!/usr/bin/env no-such-python": "no-such-python",
		"#!" + s.path("bad"):            "5 times",
	} {
		s.refuses(s.command(script("bad", line+"\n")), exitRefused, says, s.path("bad"))
	}
}

func TestPrivilegedPrograms(t *testing.T) {
	s := newScene(t)
	var mounted unix.Statfs_t
	require.NoError(t, unix.Statfs(s.folder, &mounted))
	switch {
	case mounted.Flags&unix.MS_NOSUID != 0: // no program here has privileges
		require.NoError(t, os.Chmod(s.program, 0o755|fs.ModeSetuid|fs.ModeSetgid))
		assert.Contains(t, s.succeeds(s.command(s.program)), "libverbena 42")
	case os.Getuid() == 0:
		require.NoError(t, os.Chown(s.program, 1, 1))
		require.NoError(t, os.Chmod(s.program, 0o755|fs.ModeSetuid))
		s.refuses(s.command(s.program), exitRefused, s.program, "set-user-ID", "LD_PRELOAD")
		require.NoError(t, os.Chmod(s.program, 0o755|fs.ModeSetgid))
		s.refuses(s.command(s.program), exitRefused, s.program, "set-group-ID")
		require.NoError(t, os.Chown(s.program, 0, 0)) // it gains nothing
		require.NoError(t, os.Chmod(s.program, 0o755|fs.ModeSetuid|fs.ModeSetgid))
		assert.Contains(t, s.succeeds(s.command(s.program)), "libverbena 42")
	default:
		for _, name := range []string{"/bin/su", "/bin/mount", "/usr/bin/passwd"} {
			if info, err := os.Stat(name); err == nil && info.Mode()&fs.ModeSetuid != 0 {
				s.refuses(s.command(name), exitRefused, name, "set-user-ID", "LD_PRELOAD")
			}
		}
		require.NoError(t, os.Chmod(s.program, 0o755|fs.ModeSetuid)) // of the same user: it gains nothing
		assert.Contains(t, s.succeeds(s.command(s.program)), "libverbena 42")
	}
}

func TestPrivileges(t *testing.T) {
	user := privileges{user: 1000, usersGroup: 1000, owner: 0, group: 0, mode: 0o755}
	for want, change := range map[string][]func(*privileges){
		"": {
			func(*privileges) {},
			func(p *privileges) { p.mode |= unix.S_ISUID; p.owner = 1000 },
			func(p *privileges) { p.mode |= unix.S_ISUID; p.nosuid = true },
			func(p *privileges) { p.mode |= unix.S_ISUID; p.noNewPrivileges = true },
			func(p *privileges) { p.mode |= unix.S_ISGID; p.mode &^= unix.S_IXGRP }, // mandatory locks
			func(p *privileges) { p.mode |= unix.S_ISGID; p.group = 1000 },
			func(p *privileges) { p.capabilities, p.user = true, 0 },
			func(p *privileges) { p.capabilities, p.nosuid = true, true },
		},
		"is set-user-ID":        {func(p *privileges) { p.mode |= unix.S_ISUID }},
		"is set-group-ID":       {func(p *privileges) { p.mode |= unix.S_ISGID }},
		"has file capabilities": {func(p *privileges) { p.capabilities = true }},
	} {
		for i, f := range change {
			p := user
			f(&p)
			assert.Equal(t, want, p.why(), "%q %d", want, i)
		}
	}
}

// TestCapabilities: only some users may give a file capabilities; TestPrivileges has the rule.
func TestCapabilities(t *testing.T) {
	s := newScene(t)
	value := make([]byte, 20) // struct vfs_cap_data
	binary.LittleEndian.PutUint32(value, 0x02000001)
	binary.LittleEndian.PutUint32(value[4:], 1<<unix.CAP_NET_RAW)
	err := unix.Setxattr(s.program, "security.capability", value, 0)
	why, failed := privileged(s.program)
	require.NoError(t, failed)
	assert.Equal(t, err == nil && os.Getuid() != 0, why != "", "%v: %s; root gains nothing", err, why)
}

// TestReplacement: the dynamic linker finds libverbena.so under the names of libibverbs and librdmacm,
// unless the program's own have symbols, or versions of them, that it lacks; then under those that are
// missing.
func TestReplacement(t *testing.T) {
	s := newScene(t)
	const first, second = "libverbena-test-one.so.1", "libverbena-test-two.so.1"
	folder := func(name string) string {
		stem, _, _ := strings.Cut(name, ".")
		return s.path("lib/verbena-lib/" + stem)
	}
	// build makes a library whose symbols have some versions.
	build := func(path string, flags []string, versions ...string) string {
		script := s.path("versions.map")
		var text strings.Builder
		for _, v := range versions {
			fmt.Fprintf(&text, "%s { };\n", v)
		}
		require.NoError(t, os.WriteFile(script, []byte(text.String()+"PRIVATE { libverbena*; verbena_version; };\n"), 0o644))
		_ = os.Remove(path) // it may be loaded
		out, err := exec.Command("gcc", append([]string{"-shared", "-fPIC", "-o", path, "testdata/libverbena.c", versionFlag(version.Number), "-Wl,--version-script=" + script}, flags...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return path
	}
	build(s.path("lib/"+preloadedFile), nil, "TEST_1.0", "TEST_1.1")
	require.NoError(t, os.MkdirAll(s.path("system"), 0o755))
	named := func(name string) []string { return []string{"-Wl,-soname," + name} }
	one := build(s.path("system/"+first), named(first), "TEST_1.0")
	two := build(s.path("system/"+second), named(second), "TEST_1.1")
	linked := compile(t, "program.c", s.path("linked"), "-Wl,--no-as-needed", one, two)
	lib, err := openLibrary(s.lib)
	require.NoError(t, err)
	replacements := func(path string) (folders []string, incompatible string, err error) {
		p, err := examine(path, lib)
		require.NoError(t, err)
		return lib.replacements(p, []string{first, second})
	}
	_, _, err = replacements(linked)
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "install it")
	assert.ErrorContains(t, err, folder(first))
	for _, name := range []string{first, second} {
		require.NoError(t, os.MkdirAll(folder(name), 0o755))
		require.NoError(t, os.Symlink("../../libverbena.so", filepath.Join(folder(name), name)))
	}
	both := []string{folder(first), folder(second)}
	check := func(want []string, wantIncompatible, path string) {
		t.Helper()
		folders, incompatible, err := replacements(path)
		require.NoError(t, err)
		assert.Equal(t, want, folders)
		assert.Equal(t, wantIncompatible, incompatible)
		start := exec.Command(path)
		start.Env = []string{searchVariable + "=" + searched(os.Getenv(searchVariable), folders...), preloadVariable + "=" + lib.path}
		assert.Contains(t, s.succeeds(start), "libverbena 42")
	}
	check(both, "", linked) // the system has neither
	t.Setenv(searchVariable, s.path("system"))
	check(both, "", linked)
	own := compile(t, "program.c", s.path("own"), "-Wl,--no-as-needed", one, two, "-Wl,-rpath,$ORIGIN/system")
	t.Setenv(searchVariable, "")
	check(both, "", own)
	for _, flag := range []string{"-Wl,-rpath,$ORIGIN/system", "-Wl,--disable-new-dtags,-rpath,${ORIGIN}/system"} {
		build(one, named(first), "TEST_1.0", "TEST_1.2")
		check(nil, one, compile(t, "program.c", s.path("newer"), "-Wl,--no-as-needed", one, two, flag))
	}
	build(one, append(named(first), "-DNEWER"), "TEST_1.0")
	check(nil, one, own)
	t.Setenv(searchVariable, s.path("system"))
	check(nil, one, linked)
	require.NoError(t, os.Remove(two)) // the incompatible one keeps its name, and what is missing is replaced
	check([]string{folder(second)}, one, linked)
	relabel(t, one) // for another processor
	check(both, "", linked)
}

// TestLinkedProgram: a program that is linked with libibverbs and librdmacm starts, whether or not
// this machine has them.
func TestLinkedProgram(t *testing.T) {
	s := newScene(t)
	var stubs []string
	for _, name := range replaced {
		stubs = append(stubs, shared(t, "other.c", s.path("stubs/"+name), "-Wl,-soname,"+name))
	}
	linked := compile(t, "program.c", s.path("linked"), append([]string{"-Wl,--no-as-needed"}, stubs...)...)
	cmd := s.command(linked)
	cmd.Env = append(cmd.Env, searchVariable+"=/nowhere")
	out := s.succeeds(cmd)
	assert.Contains(t, out, "libverbena 42")
	assert.Contains(t, out, "LD_LIBRARY_PATH=[/nowhere")
}

func TestSearched(t *testing.T) {
	assert.Equal(t, "/a", searched("", "/a"))
	assert.Equal(t, "/a:/b:/x:/y", searched("/x:/y", "/a", "/b"))
}

// TestCache: libraries are found by the cache of the dynamic linker, whose paths may be stale.
func TestCache(t *testing.T) {
	s := newScene(t)
	f, err := elf.Open(s.program)
	require.NoError(t, err)
	defer f.Close()
	l := newLinker(s.program, f)
	l.cache = s.path("cache")
	const name = "libverbena-test-cached.so.1"
	require.NoError(t, os.WriteFile(l.cache, []byte("glibc-ld.so.cache1.1\x00"+name+"\x00/nowhere/"+name+"\x00"+s.path("cached/"+name)+"\x00"), 0o644))
	assert.Empty(t, l.find(name))
	path := shared(t, "other.c", s.path("cached/"+name))
	assert.Equal(t, path, l.find(name))
	assert.NotEmpty(t, l.find("libc.so.6"))
}

// FuzzExamine: no content of a program, a script or a library makes the checks panic.
func FuzzExamine(f *testing.F) {
	own, err := os.ReadFile("/bin/sh")
	require.NoError(f, err)
	// The beginning of a program, without its table of sections.
	short := bytes.Clone(own[:min(len(own), 4096)])
	clear(short[40:48]) // e_shoff
	clear(short[58:64]) // e_shentsize, e_shnum, e_shstrndx
	for _, seed := range [][]byte{
		nil, []byte("#!"), []byte("#!/bin/sh -e\n"), []byte("#! \t/usr/bin/env -S A=b sh\n"), []byte("#!\x00"), []byte("#!./self\n"),
		own[:64], short,
	} {
		f.Add(seed)
	}
	lib := &library{class: elf.ELFCLASS64, machine: elf.EM_X86_64, glibc: map[string]string{"GLIBC_2.2.5": preloadedFile}}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "self")
		require.NoError(t, os.WriteFile(path, content, 0o755))
		p, err := examine(path, lib)
		if err == nil {
			assert.NotNil(t, p.linker)
		}
		_ = (&library{path: path, glibc: map[string]string{}}).check(path)
	})
}
