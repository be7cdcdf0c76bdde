// Package terminal answers questions about the terminal that a program writes to.
package terminal

import (
	"io"
	"os"
	"strings"
	"unicode"

	"github.com/mattn/go-isatty"
)

// Is reports whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// Colours reports whether w shows colours and the user wants them (no-color.org).
func Colours(w io.Writer) bool {
	return Is(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Printable replaces the control characters in a text from elsewhere, such as a peer's.
// Newlines and tabs stay.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
