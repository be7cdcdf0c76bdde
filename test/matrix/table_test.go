package matrix

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Summary returns a table in Markdown: a row for each operation, a column for each pair of
// devices, and in each cell how many cases passed of those that ran.
func Summary(results []Result) string {
	type cell struct {
		operation string
		ends      Ends
	}
	ran, passed := map[cell]int{}, map[cell]int{}
	var operations []string
	for _, r := range results {
		at := cell{r.Pair.Name, r.Ends}
		ran[at]++
		if r.OK {
			passed[at]++
		}
		if !slices.Contains(operations, r.Pair.Name) {
			operations = append(operations, r.Pair.Name)
		}
	}
	var s strings.Builder
	s.WriteString("| operation |")
	for _, e := range ends {
		fmt.Fprintf(&s, " %v |", e)
	}
	s.WriteString("\n|---|" + strings.Repeat("---|", len(ends)) + "\n")
	for _, operation := range operations {
		fmt.Fprintf(&s, "| %s |", operation)
		for _, e := range ends {
			if at := (cell{operation, e}); ran[at] > 0 {
				fmt.Fprintf(&s, " %d of %d |", passed[at], ran[at])
			} else {
				s.WriteString(" – |")
			}
		}
		s.WriteString("\n")
	}
	return s.String()
}

// Cases returns a table in Markdown with a cell for each case: a row for each operation, pair
// of devices and size, and a column for each address family and path MTU. A cell has the
// seconds that the case took, or says that it failed.
func Cases(results []Result) string {
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

// column names the column of a case. It leaves out the number of buffers, since each cell has
// only one case.
func (c Case) column() string {
	c.SGE = 0
	return c.String()
}

// cell returns the text of a result in the table of Cases.
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
