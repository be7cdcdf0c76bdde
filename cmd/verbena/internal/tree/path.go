// Package tree handles the files of a transfer: it walks the files to send, and writes into
// the receiving folder, which no received name can leave.
package tree

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
)

// WorkDir is the folder for incomplete files, inside the receiving folder.
const WorkDir = ".verbena"

// ErrPath: a name is not acceptable.
var ErrPath = errors.New("unsafe path")

// CheckPath refuses every path except a relative one, with slashes, that names something below
// the folder. It refuses ".." in any position.
func CheckPath(p string) error {
	if len(p) == 0 || len(p) > proto.MaxPath {
		return fmt.Errorf("%w: its length is %d bytes; it must be 1 to %d", ErrPath, len(p), proto.MaxPath)
	}
	for i, c := range strings.Split(p, "/") {
		switch {
		case c == "" || c == "." || c == "..":
			return fmt.Errorf("%w: %s has the component %q", ErrPath, Show(p), c)
		case len(c) > proto.MaxComponent:
			return fmt.Errorf("%w: a component of %d bytes; the limit is %d", ErrPath, len(c), proto.MaxComponent)
		case strings.IndexByte(c, 0) >= 0:
			return fmt.Errorf("%w: %s contains a zero byte", ErrPath, Show(p))
		case i == 0 && strings.EqualFold(c, WorkDir):
			return fmt.Errorf("%w: %s is where incomplete files are kept", ErrPath, WorkDir)
		}
	}
	// Names that are special on this system: drives, reserved names, other separators.
	if !filepath.IsLocal(filepath.FromSlash(p)) || filepath.Separator != '/' && strings.ContainsRune(p, filepath.Separator) {
		return fmt.Errorf("%w: %s is not a valid file name on this system", ErrPath, Show(p))
	}
	return nil
}

// CheckTarget refuses the target of a symbolic link at p if it is absolute or leads outside
// the folder. ".." is allowed only at the beginning of the target: after the name of another
// link, it would lead elsewhere than it appears to.
func CheckTarget(p, target string) error {
	if target == "" || len(target) > proto.MaxPath || strings.IndexByte(target, 0) >= 0 {
		return fmt.Errorf("%w: the target of the link is not valid", ErrPath)
	}
	rest := target
	for strings.HasPrefix(rest, "../") {
		rest = rest[len("../"):]
	}
	if rest != ".." && rest != "." && rest != "" {
		if err := CheckPath(strings.TrimSuffix(rest, "/")); err != nil {
			return fmt.Errorf("%w: the target %s of the link may be outside the folder", ErrPath, Show(target))
		}
	}
	if joined := path.Join(path.Dir(p), target); joined == ".." || strings.HasPrefix(joined, "../") {
		return fmt.Errorf("%w: the link leads out of the folder, to %s", ErrPath, Show(target))
	}
	if first, _, _ := strings.Cut(path.Join(path.Dir(p), target), "/"); strings.EqualFold(first, WorkDir) {
		return fmt.Errorf("%w: the link leads to %s", ErrPath, WorkDir)
	}
	return nil
}

// Show makes a received text safe for a terminal: it quotes the text unless every character is
// printable.
func Show(s string) string {
	if s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return fmt.Sprintf("%q", s)
}
