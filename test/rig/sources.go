package rig

import (
	"io/fs"
	"path/filepath"
	"strings"
)

// ReadSources is for tests that build programs with the go command. It reads the
// folders of the module, of which go test takes notice: it runs such a test again when
// any file in them has changed, instead of showing the result of an earlier run.
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
