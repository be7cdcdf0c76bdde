package preload

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/version"
)

const (
	preloadVariable = "LD_PRELOAD"
	searchVariable  = "LD_LIBRARY_PATH"
)

// replaced are the libraries whose place libverbena.so takes. Its folder has one for each, under
// whose name the dynamic linker finds libverbena.so: programs do not start without the libraries
// that they are linked with.
var replaced = []string{"libibverbs.so.1", "librdmacm.so.1"}

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
	missing, folders, err := lib.replacements(program, replaced)
	if err != nil {
		return err
	}

	env := setenv(os.Environ(), preloadVariable, preloaded(os.Getenv(preloadVariable), lib.path))
	say("program %s", strings.Join(program.chain, ", interpreted by "))
	say("library %s, version %s", lib.path, version.Number)
	say("%s=%s", preloadVariable, preloaded(os.Getenv(preloadVariable), lib.path))
	if len(missing) > 0 {
		value := searched(os.Getenv(searchVariable), folders...)
		env = setenv(env, searchVariable, value)
		say("%s=%s, since this machine does not have %s", searchVariable, value, strings.Join(missing, " and "))
	}
	if len(devices) > 0 {
		value := strings.Join(devices, " ")
		env = setenv(env, devicesVariable, value)
		say("%s=%s", devicesVariable, value)
	} else {
		say("%s is not set: all software devices", devicesVariable)
	}

	// The program inherits signals that are ignored, and those that the tool handles as they were.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	return refuse("run %s: %w", path, syscall.Exec(path, o.command, env))
}

// replacements returns which of these libraries the program would not find, and the folders that
// have libverbena.so under their names.
func (l *library) replacements(p *program, names []string) (missing, folders []string, err error) {
	for _, name := range names {
		if p.linker.find(name) != "" {
			continue
		}
		stem, _, _ := strings.Cut(name, ".")
		folder := filepath.Join(filepath.Dir(l.path), "verbena-lib", stem)
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			return nil, nil, fmt.Errorf("this machine does not have %s, and %s does not have it in its place: install it (Debian: libibverbs1, librdmacm1), or copy the whole output of make build, with the folder verbena-lib: %w", name, folder, err)
		}
		missing, folders = append(missing, name), append(folders, folder)
	}
	return missing, folders, nil
}
