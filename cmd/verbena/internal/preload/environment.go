package preload

import (
	"path/filepath"
	"slices"
	"strings"
)

// preloaded returns the value of LD_PRELOAD that loads a library before all others. Other copies
// of the library are left out: two in one process would each be half of it.
func preloaded(before, library string) string {
	list := strings.FieldsFunc(before, func(r rune) bool { return r == ' ' || r == ':' })
	list = slices.DeleteFunc(list, func(path string) bool { return filepath.Base(path) == filepath.Base(library) })
	return strings.Join(append([]string{library}, list...), ":")
}

// searched returns the value of LD_LIBRARY_PATH with more folders at its end. An empty element
// would be the working directory.
func searched(before string, folders ...string) string {
	if before != "" {
		folders = append([]string{before}, folders...)
	}
	return strings.Join(folders, ":")
}

// setenv sets a variable of an environment.
func setenv(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(s string) bool { return strings.HasPrefix(s, name+"=") })
	return append(env, name+"="+value)
}
