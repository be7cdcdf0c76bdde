package rig

import (
	"io/fs"
	"path/filepath"
	"strings"
)

// ReadSources is for tests that build programs with the go command. It reads the folders of
// the module, which go test records: if any file in them changes, go test runs such a test
// again instead of using the cached result.
func ReadSources() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return fs.SkipDir // not sources
		}
		return nil
	})
}
