package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Only Linux has files in which a program can read these. Elsewhere nothing is counted.

// openFiles counts the open files of the process by kind.
func openFiles() map[string]int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	kinds := map[string]int{}
	for _, f := range list {
		name, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name()))
		if err != nil {
			continue // the descriptor that read the list, already closed
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

// sharedMappings counts the mappings of files and of shared memory.
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

// zombies returns the children of the given processes that have ended without being waited
// for.
func zombies(parents map[int]bool) (found []string) {
	list, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range list {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
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
