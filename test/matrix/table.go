package matrix

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Table makes one table of results, in Markdown: a row for each operation, devices and
// size, a column for each family and path MTU, and there the seconds that it
// took, or that it failed.
func Table(results []Result) string {
	cells := map[string]string{}
	var rows []Case
	for _, r := range results {
		row := r.Case
		cells[row.column()] = r.cell()
		row.Family, row.MTU, row.SGE = 0, 0, 0
		if !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
	}
	var s strings.Builder
	s.WriteString("| operation | devices | bytes |")
	for _, family := range families {
		for _, mtu := range mtus {
			fmt.Fprintf(&s, " IPv%d, %d |", family, mtu)
		}
	}
	s.WriteString("\n|---|---|---|" + strings.Repeat("---|", len(families)*len(mtus)) + "\n")
	for _, row := range rows {
		fmt.Fprintf(&s, "| %s | %v | %d |", row.Pair.Name, row.Ends, row.Size)
		for _, row.Family = range families {
			for _, row.MTU = range mtus {
				fmt.Fprintf(&s, " %s |", cmp.Or(cells[row.column()], "–"))
			}
		}
		s.WriteString("\n")
	}
	return s.String()
}

// column is the case without the length of its list: there is one for each.
func (c Case) column() string {
	c.SGE = 0
	return c.String()
}

// cell is what the table says of a result.
func (r Result) cell() string {
	if !r.OK {
		return "failed"
	}
	text := fmt.Sprintf("%.1f", r.Seconds)
	if r.SGE > 1 {
		text += " ⋮"
	}
	return text
}
