package rig

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// libDir is where Debian's dynamic linker and libibverbs look first.
const libDir = "/usr/lib/x86_64-linux-gnu"

// libraries maps the name of a shared library to its path on this host.
type libraries map[string]string

// findLibraries reads the dynamic linker's cache, so that it need not run a program.
func findLibraries(ctx context.Context) (libraries, error) {
	ldconfig, err := program("ldconfig")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, ldconfig, "-p").Output()
	if err != nil {
		return nil, fmt.Errorf("list the shared libraries with ldconfig -p: %w", err)
	}
	// A line is "libc.so.6 (libc6,x86-64, ...) => /lib/x86_64-linux-gnu/libc.so.6"; the first
	// line for a name takes precedence.
	libs := libraries{}
	for line := range strings.Lines(string(out)) {
		left, file, ok := strings.Cut(strings.TrimSpace(line), " => ")
		name, kind, _ := strings.Cut(left, " ")
		if ok && strings.Contains(kind, "x86-64") && libs[name] == "" {
			libs[name] = file
		}
	}
	return libs, nil
}

// addNeeded adds the libraries that the tree's programs and libraries need, directly or
// indirectly, unless they are there.
func (l libraries) addNeeded(t *tree) error {
	queue := t.names()
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		e := t.entries[name]
		if e.source == "" {
			continue
		}
		needed, err := dynamic(e.source)
		if err != nil {
			return fmt.Errorf("find the libraries of %s: %w", e.source, err)
		}
		for _, lib := range needed {
			place := path.Join(libDir, lib)
			if strings.HasPrefix(lib, "ld-linux") {
				place = path.Join("/lib64", lib)
			}
			if t.has(place) {
				continue
			}
			file, err := l.find(lib, e.source)
			if err != nil {
				return err
			}
			if err := t.copy(place, file); err != nil {
				return err
			}
			queue = append(queue, place)
		}
	}
	return nil
}

// find returns the path of a library that a file needs.
func (l libraries) find(lib, source string) (string, error) {
	if file, ok := l[lib]; ok {
		return file, nil
	}
	f, err := elf.Open(source)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		paths, err := f.DynString(tag)
		if err != nil {
			return "", err
		}
		for _, folder := range strings.Split(strings.Join(paths, ":"), ":") {
			file := path.Join(strings.ReplaceAll(folder, "$ORIGIN", path.Dir(source)), lib)
			if folder != "" && exists(file) {
				return file, nil
			}
		}
	}
	return "", fmt.Errorf("%s needs %s, which neither ldconfig -p lists nor its own search path has", source, lib)
}

// dynamic returns the libraries that a file needs, with its dynamic linker; none for a file
// that is not dynamically linked.
func dynamic(file string) ([]string, error) {
	f, err := elf.Open(file)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return nil, nil
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, segment := range f.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		linker, err := io.ReadAll(segment.Open())
		if err != nil {
			return nil, err
		}
		libs = append(libs, path.Base(strings.TrimRight(string(linker), "\x00")))
	}
	return slices.Compact(libs), nil
}

// exists reports whether a file is there: not every release of Debian has it.
func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
