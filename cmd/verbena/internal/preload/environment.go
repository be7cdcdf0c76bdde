package preload

import (
	"debug/elf"
	"path/filepath"
	"slices"
	"strings"
)

// preloaded adds a library to the user's value of LD_PRELOAD, at its end. So functions that the user's
// libraries define come first, and find the library's by RTLD_NEXT, as they would find libibverbs's.
// preloaded leaves out other copies of the library, since two in one process would each have half of the
// state, and the libraries that it replaces.
func preloaded(before, library string) string {
	list := strings.FieldsFunc(before, func(r rune) bool { return r == ' ' || r == ':' })
	list = slices.DeleteFunc(list, func(path string) bool {
		name := filepath.Base(path)
		return name == filepath.Base(library) || strings.HasPrefix(name, "libibverbs.so") || strings.HasPrefix(name, "librdmacm.so") || strings.HasPrefix(name, "libefa.so")
	})
	return strings.Join(append(list, library), ":")
}

// searched returns the value of LD_LIBRARY_PATH with more folders at its beginning. An empty element
// would be the working directory.
func searched(before string, folders ...string) string {
	if before != "" {
		folders = append(slices.Clone(folders), before)
	}
	return strings.Join(folders, ":")
}

// goSettings returns the value of GODEBUG for a command. Valgrind (3.19) does not know the instruction
// RDTSCP, which the library's Go runtime uses otherwise.
func goSettings(before string, command []string, machine elf.Machine) string {
	underValgrind := slices.ContainsFunc(command, func(word string) bool { return filepath.Base(word) == "valgrind" })
	if machine != elf.EM_X86_64 || !underValgrind {
		return before
	}
	return strings.TrimPrefix(before+",cpu.rdtscp=off", ",")
}

// setenv sets a variable of an environment.
func setenv(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(s string) bool { return strings.HasPrefix(s, name+"=") })
	return append(env, name+"="+value)
}
