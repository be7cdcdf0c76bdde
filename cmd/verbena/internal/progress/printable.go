package progress

import (
	"strings"
	"unicode"
)

// printable takes out of a text that a peer has sent what a terminal would obey. Ends of
// lines and tabs stay.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
