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
	"strings"

	"github.com/verbena-rdma/verbena/internal/version"
)

const (
	preloadedFile = "libverbena.so"        // in C; it loads the other at the first call
	deviceFile    = "libverbena-device.so" // in Go
)

// versionSymbol is a string in both files.
const versionSymbol = "verbena_version"

// library is libverbena.so.
type library struct {
	path    string
	class   elf.Class
	machine elf.Machine
	glibc   map[string]string // versions of glibc's symbols, such as GLIBC_2.34, and the file that needs each
	// Those of libibverbs' and librdmacm's symbols that it has, such as IBVERBS_1.1.
	versions map[string]bool
	symbols  map[string]bool // names of the symbols that it defines
}

// findLibrary finds the library in a folder or, without one, where it is usually installed, and
// checks it.
func findLibrary(folder string) (*library, error) {
	folders := []string{folder}
	if folder == "" {
		folders = usualFolders()
	}
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, preloadedFile)); err == nil {
			return openLibrary(folder)
		}
	}
	return nil, fmt.Errorf("%s is not in %s; build it in a checkout of Verbena with make build, which puts it into bin/, and name its folder with -lib", preloadedFile, strings.Join(folders, ", "))
}

func usualFolders() []string {
	folders := []string{"/usr/local/lib/verbena", "/usr/lib/verbena"}
	own, err := os.Executable()
	if err != nil { // without /proc
		own, err = exec.LookPath(os.Args[0])
	}
	if err == nil {
		own = filepath.Dir(own)
		folders = append([]string{own, filepath.Join(own, "../lib/verbena")}, folders...)
	}
	return folders
}

func openLibrary(folder string) (*library, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(folder, " :;$") {
		return nil, fmt.Errorf("the folder %q has a space, \":\", \";\" or \"$\" in its name, which the dynamic linker would not read as part of it; copy the libraries to another folder", folder)
	}
	l := &library{path: filepath.Join(folder, preloadedFile), glibc: map[string]string{}, versions: map[string]bool{}, symbols: map[string]bool{}}
	for _, name := range []string{preloadedFile, deviceFile} {
		if err := l.check(filepath.Join(folder, name)); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// check checks one of the two files.
func (l *library) check(path string) error {
	f, err := elf.Open(path)
	var format *elf.FormatError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; %s and %s belong together, and make build makes both", err, preloadedFile, deviceFile)
	case errors.As(err, &format) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s is not a shared library: %w; build it again, with make build", path, err)
	case err != nil:
		return fmt.Errorf("open the library: %w", err)
	}
	defer f.Close()
	found, err := versionIn(f)
	if err != nil {
		return fmt.Errorf("%s is not a library of Verbena: %w; build it again, with make build", path, err)
	}
	if found != version.Number {
		return fmt.Errorf("%s has version %q, and this program has version %q; use a verbena and libraries of the same build, as make build makes them", path, found, version.Number)
	}
	if l.machine != elf.EM_NONE && (f.Machine != l.machine || f.Class != l.class) {
		return fmt.Errorf("%s is for %s, but %s for %s; build both again, with make build", path, platform(f.Class, f.Machine), l.path, platform(l.class, l.machine))
	}
	l.class, l.machine = f.Class, f.Machine
	if f.SectionByType(elf.SHT_GNU_VERDEF) != nil {
		has, err := f.DynamicVersions()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, v := range has {
			l.versions[v.Name] = true
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			l.symbols[s.Name] = true
		}
	}
	if f.SectionByType(elf.SHT_GNU_VERNEED) == nil {
		return nil
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, need := range needs {
		for _, v := range need.Needs {
			if need.Name == "libc.so.6" {
				l.glibc[v.Dep] = path
			}
		}
	}
	return nil
}

// longestVersion bounds the text of a version.
const longestVersion = 128

func versionIn(f *elf.File) (string, error) {
	symbols, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return "", err
	}
	for _, s := range symbols {
		if s.Name != versionSymbol || s.Section == elf.SHN_UNDEF {
			continue
		}
		for _, p := range f.Progs {
			if p.Type != elf.PT_LOAD || s.Value < p.Vaddr || s.Value-p.Vaddr >= p.Filesz {
				continue
			}
			text := make([]byte, min(longestVersion, p.Filesz-(s.Value-p.Vaddr)))
			if _, err := p.ReadAt(text, int64(s.Value-p.Vaddr)); err != nil {
				return "", err
			}
			if end := bytes.IndexByte(text, 0); end >= 0 {
				return string(text[:end]), nil
			}
		}
		return "", fmt.Errorf("its symbol %s is not a string", versionSymbol)
	}
	return "", fmt.Errorf("it has no symbol %s", versionSymbol)
}

// platform names what a program or a library was built for.
func platform(class elf.Class, machine elf.Machine) string {
	switch {
	case machine == elf.EM_X86_64 && class == elf.ELFCLASS64:
		return "x86-64"
	case machine == elf.EM_AARCH64:
		return "arm64"
	}
	bits := map[elf.Class]string{elf.ELFCLASS32: "32-bit ", elf.ELFCLASS64: "64-bit "}[class]
	return bits + strings.TrimPrefix(machine.String(), "EM_")
}
