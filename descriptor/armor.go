package descriptor

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
)

const (
	dashes      = "-----"
	beginPrefix = dashes + "BEGIN VERBENA "
	endPrefix   = dashes + "END VERBENA "
	lineWidth   = 64
	// plainLabel is the label around bytes that are not a descriptor.
	plainLabel = "DESCRIPTOR"
)

func label(k Kind) string { return strings.ToUpper(k.String()) }

// Armor converts a binary descriptor to its form for copying and pasting: base64 in lines of
// 64, between a BEGIN and an END line that name the kind. It returns an armored descriptor in
// the standard layout. Bytes that are not a descriptor are armored too; Decode refuses them.
func Armor(b []byte) string {
	name := plainLabel
	if kind, _, err := Parse(b); err == nil {
		name = label(kind)
		if text := bytes.TrimSpace(b); bytes.HasPrefix(text, []byte(dashes)) {
			_, b, _ = unarmor(text)
		}
	}
	code := base64.StdEncoding.EncodeToString(b)
	var s strings.Builder
	s.WriteString(beginPrefix + name + dashes + "\n")
	for len(code) > 0 {
		n := min(len(code), lineWidth)
		s.WriteString(code[:n] + "\n")
		code = code[n:]
	}
	s.WriteString(endPrefix + name + dashes + "\n")
	return s.String()
}

// unarmor decodes one armored block that fills text.
func unarmor(text []byte) (Kind, []byte, error) {
	if len(text) > MaxFile {
		return 0, nil, fmt.Errorf("%w: the text has %d bytes; readers accept at most %d", ErrTooBig, len(text), MaxFile)
	}
	var name string
	var code strings.Builder
	inside, ended := false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		begin, isBegin := labelOf(line, beginPrefix)
		end, isEnd := labelOf(line, endPrefix)
		switch {
		case line == "":
		case ended:
			return 0, nil, fmt.Errorf("%w: text comes after its END line; give one descriptor at a time", ErrTrailing)
		case !inside && isBegin:
			name, inside = begin, true
		case !inside:
			return 0, nil, fmt.Errorf("%w: its first line is not a BEGIN line of Verbena; copy it from BEGIN to END", ErrFormat)
		case isEnd && end != name:
			return 0, nil, fmt.Errorf("%w: it begins as %q and ends as %q; copy it again, unedited", ErrFormat, name, end)
		case isEnd:
			ended = true
		case strings.HasPrefix(line, dashes):
			return 0, nil, fmt.Errorf("%w: another block begins before its END line; copy it from BEGIN to END", ErrTruncated)
		default:
			code.WriteString(line)
		}
	}
	if !ended {
		return 0, nil, fmt.Errorf("%w: its END line is missing; copy it from BEGIN to END", ErrTruncated)
	}
	kind, ok := kindOf(name)
	if !ok {
		return 0, nil, fmt.Errorf("%w: its BEGIN line says %.40q, which this release does not know; run the same release of Verbena on both ends",
			ErrKind, name)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(code.String())
	if err != nil {
		return 0, nil, fmt.Errorf("%w: the text between its BEGIN and END lines is not base64 (%v); copy it again, unedited",
			ErrFormat, err)
	}
	return kind, raw, nil
}

// labelOf returns the label in a BEGIN or END line.
func labelOf(line, prefix string) (string, bool) {
	name, ok := strings.CutPrefix(line, prefix)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, dashes)
}

func kindOf(name string) (Kind, bool) {
	for i := range kindNames {
		if k := Kind(i); k.known() && label(k) == name {
			return k, true
		}
	}
	return 0, false
}
