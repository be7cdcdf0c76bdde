// Package progress shows the progress of a transfer: as a bar on a terminal, as lines
// elsewhere, or as one JSON object per line.
package progress

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes formats a number of bytes for people, in powers of 1000.
func Bytes(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, unit := float64(n), 0
	for v >= 999.5 && unit < len(units)-1 {
		v /= 1000
		unit++
	}
	return fmt.Sprintf("%.*f %cB", max(0, 2-int(math.Log10(v))), v, units[unit])
}

const units = " kMGTPE"

// ParseBytes parses a number of bytes, such as 1500, 10M, 1.5GB or 64MiB. Units are powers of
// 1000, or of 1024 with an i.
func ParseBytes(s string) (int64, error) {
	text := strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(s)), "B")
	base := 1000.0
	if t, ok := strings.CutSuffix(text, "I"); ok {
		text, base = t, 1024
	}
	factor := 1.0
	if n := len(text); n > 0 {
		if i := strings.IndexByte(strings.ToUpper(units), text[n-1]); i > 0 {
			factor, text = math.Pow(base, float64(i)), text[:n-1]
		} else if base == 1024 {
			return 0, fmt.Errorf("%q is not a number of bytes; write it like 1500, 10M or 64MiB", s)
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(v >= 0) || v*factor >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a number of bytes; write it like 1500, 10M or 64MiB", s)
	}
	return int64(v * factor), nil
}
