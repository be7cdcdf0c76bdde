package preload

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/sysfs"
	"github.com/verbena-rdma/verbena/internal/version"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	preloadVariable = "LD_PRELOAD"
	searchVariable  = "LD_LIBRARY_PATH"
	asanVariable    = "ASAN_OPTIONS"
	goVariable      = "GODEBUG"
)

// replaced are the libraries whose place libverbena.so takes. Its folder has one for each, under
// whose names the dynamic linker finds libverbena.so: for programs that are linked with the libraries
// on a machine without them, and for what programs load themselves.
var replaced = []string{"libibverbs.so.1", "librdmacm.so.1"}

// efa is replaced, too, where it can be: most programs do without it.
const efa = "libefa.so.1"

// start replaces this process by the program. It returns only if that failed.
func (o *options) start(stderr io.Writer) error {
	say := func(format string, args ...any) {
		if o.verbose {
			_, _ = fmt.Fprintf(stderr, "verbena run: "+format+"\n", args...)
		}
	}
	devices, err := o.deviceNames()
	if err != nil {
		return err
	}
	lib, err := findLibrary(o.folder)
	if err != nil {
		return err
	}
	path, err := lookUp(o.command[0])
	if err != nil {
		return err
	}
	program, err := examine(path, lib)
	if err != nil {
		return err
	}
	folders, incompatible, err := lib.replacements(program, replaced)
	if err != nil {
		return err
	}
	if folder, _, err := lib.replacements(program, []string{efa}); err == nil && incompatible == "" {
		folders = append(folders, folder...)
	}

	preload := preloaded(os.Getenv(preloadVariable), lib.path)
	if program.asan != "" { // it stops the program unless it is the first
		preload = program.asan + ":" + preload
	}
	env := setenv(os.Environ(), preloadVariable, preload)
	say("program %s", strings.Join(program.chain, ", interpreted by "))
	say("library %s, version %s", lib.path, version.Number)
	say("%s=%s", preloadVariable, preload)
	if program.sanitized {
		// AddressSanitizer would free the stacks for signals of the Go runtime's threads. The user's options come last.
		value := strings.TrimSuffix("use_sigaltstack=0:"+os.Getenv(asanVariable), ":")
		env = setenv(env, asanVariable, value)
		say("%s=%s", asanVariable, value)
	}
	if len(folders) > 0 {
		value := searched(os.Getenv(searchVariable), folders...)
		env = setenv(env, searchVariable, value)
		say("%s=%s", searchVariable, value)
	}
	if incompatible != "" {
		say("%s is of a release that libverbena.so cannot stand in for; %s is set only for what is missing", incompatible, searchVariable)
	}
	if value := goSettings(os.Getenv(goVariable), o.command, lib.machine); value != os.Getenv(goVariable) {
		env = setenv(env, goVariable, value)
		say("%s=%s, for valgrind", goVariable, value)
	}
	if len(devices) > 0 {
		value := strings.Join(devices, " ")
		env = setenv(env, devicesVariable, value)
		say("%s=%s", devicesVariable, value)
	} else {
		say("%s is not set: all software devices", devicesVariable)
	}
	tree, err := showDevices(devices)
	if err == nil {
		env = setenv(env, sysfs.Variable, tree.Path())
		say("%s=%s", sysfs.Variable, tree.Path())
	} else {
		say("the program does not see the devices in /sys before it uses one: %v", err)
	}

	// The program inherits signals that are ignored, and those that the tool handles as they were.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	err = refuse("run %s: %w", path, syscall.Exec(path, o.command, env))
	if tree != nil {
		err = errors.Join(err, tree.Remove())
	}
	return err
}

// showDevices writes what programs see of devices in /sys. Without specifications it shows all devices.
func showDevices(specifications []string) (*sysfs.Tree, error) {
	infos, err := soft.Driver{}.Devices()
	if err != nil {
		return nil, err
	}
	if len(specifications) > 0 {
		infos = nil
	}
	for _, specification := range specifications {
		infos = append(infos, verbs.DeviceInfo{Name: specification})
	}
	var list []sysfs.Device
	for i := range infos {
		d, err := soft.Driver{}.Describe(infos[i].Name)
		if err != nil {
			return nil, err
		}
		list = append(list, sysfs.Device{Number: i, Description: sysfs.Description(d)})
		infos[i].Name, _, _ = strings.Cut(infos[i].Name, "?")
	}
	sysfs.ShowNames(infos)
	for i, info := range infos {
		list[i].Name = info.Name
	}
	return sysfs.Make(list)
}

// replacements returns the folders that have libverbena.so under the names of these libraries. If an
// installed library has symbols, or versions of them, that libverbena.so lacks, the dynamic linker would not
// start a program that needs them: then incompatible is such a library, and only missing ones are replaced.
func (l *library) replacements(p *program, names []string) (folders []string, incompatible string, err error) {
	found := make(map[string]string)
	for _, name := range names {
		if found[name] = p.linker.find(name); found[name] != "" && !l.hasSymbolsOf(found[name]) {
			incompatible = found[name]
		}
	}
	for _, name := range names {
		stem, _, _ := strings.Cut(name, ".")
		folder := filepath.Join(filepath.Dir(l.path), "verbena-lib", stem)
		_, err := os.Stat(filepath.Join(folder, name))
		switch {
		case err != nil && found[name] == "":
			return nil, "", fmt.Errorf("this machine does not have %s, and %s does not have it in its place: install it (Debian: libibverbs1, librdmacm1, ibverbs-providers), or copy the whole output of make build, with the folder verbena-lib: %w", name, folder, err)
		case err == nil && (found[name] == "" || incompatible == ""):
			folders = append(folders, folder)
		}
	}
	return folders, incompatible, nil
}

// hasSymbolsOf reports whether libverbena.so has all symbols of another library that programs are linked
// with today, also those for providers, and all versions of symbols.
func (l *library) hasSymbolsOf(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	versions, err := f.DynamicVersions()
	if err != nil {
		return f.SectionByType(elf.SHT_GNU_VERDEF) == nil
	}
	symbols, err := f.DynamicSymbols()
	return err == nil && !slices.ContainsFunc(versions, func(v elf.DynamicVersion) bool {
		return v.Flags&elf.VER_FLG_BASE == 0 && !l.versions[v.Name]
	}) && !slices.ContainsFunc(symbols, func(s elf.Symbol) bool {
		return s.HasVersion && !s.VersionIndex.IsHidden() && s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS && !l.symbols[s.Name]
	})
}
