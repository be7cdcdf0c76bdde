package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// residentMemory is what of the process is in memory, in bytes.
func residentMemory() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// openFiles are the open files of the process by kind; that of the list is among them.
func openFiles() map[string]int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	kinds := map[string]int{}
	for _, f := range list {
		name, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name()))
		if err != nil {
			continue // that of the list, which is closed
		}
		kind, _, _ := strings.Cut(name, ":[")
		if strings.HasPrefix(kind, "/memfd:") {
			kind = "memfd"
		} else if strings.HasPrefix(kind, "/") && !strings.HasPrefix(kind, "/dev/") {
			kind = "file"
		}
		kinds[kind]++
	}
	return kinds
}

// sharedMappings is how many pieces of memory of the process others can have too.
func sharedMappings() (n int) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasSuffix(fields[1], "s") {
			n++
		}
	}
	return n
}

// zombies are the processes that have ended, and whose parent, one of the given processes,
// has not asked how.
func zombies(parents map[int]bool) (found []string) {
	list, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range list {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has gone
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		var state string
		var parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil && state == "Z" && parents[parent] {
			found = append(found, strings.TrimSuffix(strings.TrimPrefix(file, "/proc/"), "/stat"))
		}
	}
	return found
}
