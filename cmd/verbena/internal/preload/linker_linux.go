package preload

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
)

// linker finds shared libraries as the dynamic linker of glibc does for a program (ld.so(8)).
type linker struct {
	class   elf.Class
	machine elf.Machine
	first   []string // folders before the cache: those of the program and of LD_LIBRARY_PATH
	cache   string   // the file
	last    []string // folders after the cache
}

// newLinker returns the linker of a program.
func newLinker(path string, f *elf.File) *linker {
	l := &linker{class: f.Class, machine: f.Machine, cache: "/etc/ld.so.cache"}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	origin, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		origin = filepath.Dir(path)
	}
	own, _ := f.DynString(elf.DT_RUNPATH)
	if len(own) == 0 {
		own, _ = f.DynString(elf.DT_RPATH)
	}
	expand := strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin)
	for _, list := range own {
		l.first = append(l.first, strings.Split(expand.Replace(list), ":")...)
	}
	if list := os.Getenv(searchVariable); list != "" {
		l.first = append(l.first, strings.FieldsFunc(list, func(r rune) bool { return r == ':' || r == ';' })...)
	}
	triplet := map[elf.Machine]string{elf.EM_X86_64: "x86_64-linux-gnu", elf.EM_AARCH64: "aarch64-linux-gnu"}[f.Machine]
	if triplet != "" { // Debian
		l.last = append(l.last, "/lib/"+triplet, "/usr/lib/"+triplet)
	}
	l.last = append(l.last, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	return l
}

// find returns the path of a library for the program's processor, or an empty string.
func (l *linker) find(name string) string {
	for _, path := range l.candidates(name) {
		if f, err := elf.Open(path); err == nil {
			fits := f.Class == l.class && f.Machine == l.machine
			_ = f.Close()
			if fits {
				return path
			}
		}
	}
	return ""
}

func (l *linker) candidates(name string) (paths []string) {
	for _, folder := range l.first {
		if folder != "" {
			paths = append(paths, filepath.Join(folder, name))
		}
	}
	// Whatever the format of the cache, the paths of all libraries are in it, each with a zero byte
	// behind it.
	cache, _ := os.ReadFile(l.cache)
	for text := range bytes.SplitSeq(cache, []byte{0}) {
		if path := string(text); strings.HasPrefix(path, "/") && filepath.Base(path) == name {
			paths = append(paths, path)
		}
	}
	for _, folder := range l.last {
		paths = append(paths, filepath.Join(folder, name))
	}
	return paths
}
