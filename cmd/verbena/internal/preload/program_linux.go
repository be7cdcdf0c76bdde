package preload

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// lookUp finds a command as the shell does.
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrDot):
		return "", &exitError{exitNotFound, fmt.Errorf("%s is found in the working directory only; if it is that one, write ./%s", command, command)}
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		where := "in no folder of $PATH"
		if strings.Contains(command, "/") {
			where = "no such file"
		}
		return "", &exitError{exitNotFound, fmt.Errorf("%s: command not found: %s", command, where)}
	}
	return "", refuse("%s cannot be executed: %w", command, err)
}

// program is what the kernel executes for a command.
type program struct {
	chain  []string // of a script: the script, and its interpreter behind it
	linker *linker
	// Whether AddressSanitizer is in the program, and the path of its library, if that is shared.
	sanitized bool
	asan      string
}

// The kernel reads as many bytes of a script's first line, and follows as many interpreters that
// are scripts themselves.
const (
	firstLine       = 256
	mostInterpreted = 5
)

// examine finds out whether a program can run with the library, and returns an error that says why
// not. For a script that is asked of its interpreter.
func examine(path string, lib *library) (*program, error) {
	p := &program{}
	for range mostInterpreted + 1 {
		p.chain = append(p.chain, path)
		interpreter, err := interpreterOf(path)
		switch {
		case err != nil:
			return nil, p.inScript(err)
		case interpreter == "":
			return p, p.inScript(p.examine(path, lib))
		}
		if path, err = lookUp(interpreter); err != nil {
			return nil, refuse("%s: its interpreter %q: %w", strings.Join(p.chain, ": "), interpreter, err)
		}
	}
	return nil, refuse("%s is a script whose interpreter is a script, and so on %d times, which the kernel does not follow", p.chain[0], mostInterpreted)
}

// inScript adds to an error about an interpreter the script that it is of.
func (p *program) inScript(err error) error {
	if err == nil || len(p.chain) == 1 {
		return err
	}
	return refuse("%s: its interpreter: %w", p.chain[0], err)
}

// interpreterOf returns the command that interprets a script: for env(1), the command that env runs. If
// the file is no script, it returns an empty string.
func interpreterOf(path string) (string, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // opening a pipe would wait
		return "", refuse("%s is not a program: it is not a regular file", path)
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) { // the kernel may execute what this process cannot read
		return "", refuse("%s cannot be read, so it is not known whether it can run with the library: allow its user to read it", path)
	}
	if err != nil {
		return "", refuse("open the program: %w", err)
	}
	defer f.Close()
	line := make([]byte, firstLine)
	n, err := io.ReadFull(f, line)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", refuse("read the program: %w", err)
	}
	line, script := bytes.CutPrefix(line[:n], []byte("#!"))
	if !script {
		return "", nil
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.FieldsFunc(string(line), func(r rune) bool { return r == ' ' || r == '\t' })
	if len(words) == 0 {
		return "", refuse("%s is a script that names no interpreter after \"#!\"", path)
	}
	if filepath.Base(words[0]) == "env" {
		command := slices.DeleteFunc(words[1:], func(word string) bool { return word == "-S" || strings.Contains(word, "=") })
		if len(command) > 0 && !strings.HasPrefix(command[0], "-") {
			return command[0], nil
		}
	}
	return words[0], nil
}

// examine checks a program that is not a script.
func (p *program) examine(path string, lib *library) error {
	f, err := elf.Open(path)
	var format *elf.FormatError
	switch {
	case errors.As(err, &format) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return refuse("%s is neither an ELF program nor a script that begins with \"#!\": %w", path, err)
	case err != nil:
		return refuse("open the program: %w", err)
	}
	defer f.Close()
	why, err := privileged(path)
	if err != nil {
		return refuse("%s: %w", path, err)
	}
	if why != "" {
		return refuse("%s %s, so the dynamic linker ignores %s: run a copy of it that has no privileges", path, why, preloadVariable)
	}
	if f.Section(".go.buildinfo") != nil || f.Section(".note.go.buildid") != nil {
		return refuse("%s is a Go program: the library has a Go runtime in it, and two of them in one process do not work. Programs in Go use Verbena's packages, and open the device by its name, such as soft-lo", path)
	}
	if f.Class != lib.class || f.Machine != lib.machine {
		return refuse("%s is a program for %s, and the library for %s: build the library there, or use a program for %[3]s", path, platform(f.Class, f.Machine), platform(lib.class, lib.machine))
	}
	interpreter, err := dynamicLinkerOf(f)
	switch {
	case err != nil:
		return refuse("%s: %w", path, err)
	case interpreter == "":
		return refuse("%s is linked statically, so nothing can be preloaded: link it with the shared libraries", path)
	case strings.HasPrefix(filepath.Base(interpreter), "ld-musl"):
		return refuse("%s is linked with musl, and the library with glibc: use a program of a system with glibc, such as Debian", path)
	}
	if _, err := os.Stat(interpreter); err != nil {
		return refuse("%s cannot start: its dynamic linker is missing: %w", path, err)
	}
	p.linker = newLinker(path, f)
	libraries, _ := f.ImportedLibraries()
	for _, name := range libraries {
		if strings.HasPrefix(name, "libasan.so") || strings.HasPrefix(name, "libclang_rt.asan") {
			p.asan = p.linker.find(name)
		}
	}
	p.sanitized = hasSymbol(f, "__asan_init")
	return p.checkC(lib)
}

// hasSymbol reports whether a program has or needs a symbol. That of a static library is found only if
// the program is not stripped, or exports it.
func hasSymbol(f *elf.File, name string) bool {
	is := func(s elf.Symbol) bool { return s.Name == name }
	dynamic, _ := f.DynamicSymbols()
	if slices.ContainsFunc(dynamic, is) {
		return true
	}
	all, _ := f.Symbols()
	return slices.ContainsFunc(all, is)
}

// longestInterpreter bounds the path of a dynamic linker.
const longestInterpreter = 4096

// dynamicLinkerOf returns the program's interpreter, or an empty string for a static program.
func dynamicLinkerOf(f *elf.File) (string, error) {
	for _, segment := range f.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		text := make([]byte, min(segment.Filesz, longestInterpreter))
		if _, err := segment.ReadAt(text, 0); err != nil && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("read the name of its dynamic linker: %w", err)
		}
		text, _, _ = bytes.Cut(text, []byte{0})
		return string(text), nil
	}
	return "", nil
}

// checkC refuses a library that was built for a newer glibc than the program's: the dynamic linker
// would go on without the library.
func (p *program) checkC(lib *library) error {
	libc := p.linker.find("libc.so.6")
	if libc == "" {
		return nil
	}
	f, err := elf.Open(libc)
	if err != nil {
		return nil
	}
	defer f.Close()
	versions, err := f.DynamicVersions()
	if err != nil || len(versions) == 0 {
		return nil
	}
	for need, file := range lib.glibc {
		if !slices.ContainsFunc(versions, func(v elf.DynamicVersion) bool { return v.Name == need }) {
			return refuse("%s needs %s, which %s does not have: it was built on a system with a newer glibc. Build it on this one, or on an older one", file, need, libc)
		}
	}
	return nil
}
