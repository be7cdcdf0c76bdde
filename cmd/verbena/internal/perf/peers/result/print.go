package result

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
)

// table is lines of cells, the head first.
type table [][]string

// makeTable makes a table with a line for each row that has values.
func makeTable(columns []string, of func(row *figure.Row, column int) Spread, unit bool) table {
	t := table{append([]string{""}, columns...)}
	for _, row := range figure.Rows() {
		title := row.Title
		if unit {
			title += ", " + row.Unit
		}
		line, any := []string{title}, false
		for i := range columns {
			text := ""
			if sp := of(&row, i); sp.N > 0 {
				text, any = sp.String(), true
			}
			line = append(line, text)
		}
		if any {
			t = append(t, line)
		}
	}
	return t
}

// tables returns the tables of a scene: the figures, and their ratios.
func (s *Scene) tables() []table {
	var titles []string
	for i := range s.Ratios {
		titles = append(titles, s.Ratios[i].Title)
	}
	list := []table{makeTable(s.Contenders, func(row *figure.Row, i int) Spread { return s.Of(row, s.Contenders[i]) }, true)}
	if len(titles) > 0 {
		list = append(list, makeTable(titles, func(row *figure.Row, i int) Spread { return s.Between(row, &s.Ratios[i]) }, false))
	}
	return list
}

// String returns the median, followed by the lowest and the highest value.
func (s Spread) String() string {
	if s.N == 1 {
		return digits(s.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", digits(s.Median), digits(s.Low), digits(s.High))
}

// digits formats a value with three digits, or with more if that many are before the point.
func digits(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// about returns the lines that describe the machine, the programs and the measurements.
func (r *Result) about() (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	m := &r.Machine
	kernel, _, _ := strings.Cut(m.Kernel, "-") // the rest names the build
	add("%s, %d processors (%s), %s %s, %s.", r.Time.Format("2 January 2006"), m.CPUs, m.CPU, m.OS, kernel, m.Go)
	var programs []string
	for _, p := range r.Programs {
		programs = append(programs, strings.TrimSpace(p.Name+" "+p.Version))
	}
	add("Compared: %s.", strings.Join(programs, ", "))
	state := "Quiet machine"
	if r.Busy() {
		state = "BUSY MACHINE"
	}
	add("%s: meanwhile other programs took %.0f %% of the processors' time, and the hypervisor %.0f %%.", state, 100*r.Others, 100*r.Stolen)
	rounds := "Medians of %d rounds, in turns, with the lowest and the highest in brackets."
	if r.Rounds == 1 {
		rounds = "%d round."
	}
	add(rounds+" A ratio compares the figures of one round: above 1, Verbena moves more data, or takes longer.", r.Rounds)
	return list
}

// notes returns what was not measured, what failed, and why figures may not be trusted.
func (r *Result) notes() (list []string) {
	for _, s := range r.Scenes {
		if s.Skipped != "" {
			list = append(list, fmt.Sprintf("not measured: %s: %s", lowerFirst(s.Title), s.Skipped))
		}
	}
	for _, m := range r.Missing {
		list = append(list, fmt.Sprintf("not measured: %s: %s", m.What, m.Reason))
	}
	for _, s := range r.Scenes {
		for i := range s.Cells {
			c := &s.Cells[i]
			failed := 0
			for _, round := range c.Rounds {
				if round == nil {
					failed++
				}
			}
			if failed > 0 {
				list = append(list, fmt.Sprintf("failed: %s, %s by %s, %d of %d rounds: %s", lowerFirst(s.Title), c.Figure, c.Contender, failed, len(c.Rounds), c.Failure))
			}
		}
	}
	for _, w := range r.Warnings {
		list = append(list, "warning: "+w)
	}
	return list
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// WriteText writes the result for a terminal.
func (r *Result) WriteText(w io.Writer) error {
	var b bytes.Buffer
	for _, l := range r.about() {
		fmt.Fprintln(&b, l)
	}
	for i := range r.Scenes {
		s := &r.Scenes[i]
		if s.Skipped != "" {
			continue
		}
		fmt.Fprintf(&b, "\n%s\n", s.Title)
		for i, t := range s.tables() {
			if i > 0 {
				fmt.Fprintln(&b)
			}
			t.writeText(&b)
		}
	}
	if notes := r.notes(); len(notes) > 0 {
		fmt.Fprintln(&b)
		for _, n := range notes {
			fmt.Fprintln(&b, n)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// writeText writes the table with aligned columns.
func (t table) writeText(b *bytes.Buffer) {
	width := make([]int, len(t[0]))
	for _, line := range t {
		for i, cell := range line {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range t {
		var l strings.Builder
		for i, cell := range line {
			l.WriteString(cell + strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2))
		}
		fmt.Fprintln(b, strings.TrimRight(l.String(), " "))
	}
}

// Markdown returns the tables for a document.
func (r *Result) Markdown() string {
	var b strings.Builder
	b.WriteString(strings.Join(r.about(), " ") + "\n")
	for i := range r.Scenes {
		s := &r.Scenes[i]
		if s.Skipped != "" {
			continue
		}
		fmt.Fprintf(&b, "\n**%s**\n", s.Title)
		for _, t := range s.tables() {
			b.WriteString("\n")
			for j, line := range t {
				for _, cell := range line {
					b.WriteString("| " + strings.ReplaceAll(cell, "|", `\|`) + " ")
				}
				b.WriteString("|\n")
				if j == 0 {
					b.WriteString(strings.Repeat("|---", len(line)) + "|\n")
				}
			}
		}
	}
	if notes := r.notes(); len(notes) > 0 {
		b.WriteString("\n")
		for _, n := range notes {
			b.WriteString("- " + strings.Join(strings.Fields(n), " ") + "\n")
		}
	}
	return b.String()
}
