package measure

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/verbena-rdma/verbena/bench/internal/stats"
)

// table is lines of cells, the head first.
type table [][]string

// tables returns the tables of a scene: the values, and their ratios.
func (s *Scene) tables() []table {
	values, ratios := table{{""}}, table{{""}}
	for _, c := range s.Contenders {
		values[0] = append(values[0], c.Name)
	}
	for _, x := range s.Ratios {
		ratios[0] = append(ratios[0], x.Title)
	}
	for _, r := range s.rows {
		line := []string{r.Title + ", " + r.Unit}
		for i := range s.Contenders {
			line = append(line, spread(s.of(r, i)))
		}
		values = append(values, line)
		line, any := []string{r.Title}, false
		for _, x := range s.Ratios {
			list := s.ratios(r, x)
			line, any = append(line, spread(list)), any || len(list) > 0
		}
		if any {
			ratios = append(ratios, line)
		}
	}
	if len(ratios) == 1 {
		return []table{values}
	}
	return []table{values, ratios}
}

// spread is the median of some values, with the lowest and the highest.
func spread(values []float64) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return digits(values[0])
	}
	return fmt.Sprintf("%s (%s to %s)", digits(stats.Median(values)), digits(slices.Min(values)), digits(slices.Max(values)))
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

// notes returns what was not measured, what failed, and the other notes.
func (r *Result) notes() (list []string) {
	for _, s := range r.Scenes {
		if s.Skipped != "" {
			list = append(list, fmt.Sprintf("not measured: %s: %s", s.Title, s.Skipped))
		}
	}
	for _, s := range r.Scenes {
		for _, c := range s.Contenders {
			for _, m := range c.Measurements {
				if m.failed > 0 {
					list = append(list, fmt.Sprintf("failed: %s, %s by %s, %d times: %v", s.Title, m.Name, c.Name, m.failed, m.first))
				}
			}
		}
	}
	return append(list, r.Notes...)
}

// Write writes the tables: for a terminal, or in Markdown.
func (r *Result) Write(w io.Writer, markdown bool) error {
	about := append(slices.Clone(r.About), fmt.Sprintf("Medians of %d rounds, in turns, with the lowest and the highest in brackets. A ratio compares the values of one round.", r.Rounds))
	var b strings.Builder
	b.WriteString(strings.Join(about, map[bool]string{true: " ", false: "\n"}[markdown]) + "\n")
	for _, s := range r.Scenes {
		if s.Skipped != "" {
			continue
		}
		fmt.Fprintf(&b, map[bool]string{true: "\n**%s**\n", false: "\n%s\n"}[markdown], s.Title)
		for _, t := range s.tables() {
			b.WriteString("\n")
			t.write(&b, markdown)
		}
	}
	writeNotes(&b, r.notes(), markdown)
	_, err := io.WriteString(w, b.String())
	return err
}

func writeNotes(b *strings.Builder, notes []string, markdown bool) {
	if len(notes) > 0 {
		b.WriteString("\n")
	}
	for _, n := range notes {
		if markdown {
			n = "- " + strings.Join(strings.Fields(n), " ")
		}
		b.WriteString(n + "\n")
	}
}

// write writes the table with aligned columns, or in Markdown.
func (t table) write(b *strings.Builder, markdown bool) {
	width := make([]int, len(t[0]))
	for _, line := range t {
		for i, cell := range line {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for i, line := range t {
		var l strings.Builder
		for k, cell := range line {
			if markdown {
				l.WriteString("| " + strings.ReplaceAll(cell, "|", `\|`) + " ")
			} else {
				l.WriteString(cell + strings.Repeat(" ", width[k]-utf8.RuneCountInString(cell)+2))
			}
		}
		if markdown {
			l.WriteString("|")
			if i == 0 {
				l.WriteString("\n" + strings.Repeat("|---", len(line)) + "|")
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
}

// Verdict is what the values of two contenders show.
type Verdict int

// The verdicts.
const (
	NoDifference Verdict = iota
	Better
	Worse
	TooFew
)

// WriteComparison compares the second contender of a scene with the first, row by row: is it better,
// and how certain is that? The intervals hold the true ratios with the confidence, all together: the
// probability of error is divided among the rows (Bonferroni), because among many rows one would
// look different by chance. It reports whether any row is worse.
func (r *Result) WriteComparison(w io.Writer, confidence float64) (worse bool, err error) {
	s := r.Scenes[0]
	var rows []Row
	for _, x := range s.rows {
		// A value of zero, such as a number of allocations, is in no ratio.
		if len(s.of(x, 0)) > 0 && len(s.of(x, 1)) > 0 {
			rows = append(rows, x)
		}
	}
	alpha := (1 - confidence) / float64(max(len(rows), 1))
	t := table{{"", s.Contenders[0].Name + " (best)", s.Contenders[1].Name + " (best)", "ratio", "interval", "", "each round"}}
	for _, x := range rows {
		a, b := s.of(x, 0), s.of(x, 1)
		shift := stats.ShiftOf(a, b, alpha)
		v := verdict(x, shift)
		worse = worse || v == Worse
		interval, says := fmt.Sprintf("%.3f to %.3f", shift.Low, shift.High), [...]string{"no difference shown", "better", "worse", ""}[v]
		if v == TooFew {
			interval, says = "-", fmt.Sprintf("too few rounds: at least %d of each are needed", stats.Enough(alpha))
		}
		best := slices.Max[[]float64]
		if x.Less {
			best = slices.Min[[]float64]
		}
		var each []string
		for _, v := range s.ratios(x, Ratio{Of: 1, To: 0}) {
			each = append(each, fmt.Sprintf("%.2f", v))
		}
		slices.Sort(each)
		t = append(t, []string{
			x.Title + ", " + x.Unit, fmt.Sprintf("%s (%s)", digits(stats.Median(a)), digits(best(a))), fmt.Sprintf("%s (%s)", digits(stats.Median(b)), digits(best(b))),
			fmt.Sprintf("%.3f", shift.Ratio), interval, says, strings.Join(each, " "),
		})
	}
	var b strings.Builder
	t.write(&b, false)
	fmt.Fprintf(&b, "Medians of the rounds, and the best round in brackets. Confidence %.3g %% for all rows together, %.3g %% for each.\n", 100*confidence, 100*(1-alpha))
	for _, x := range s.rows {
		for i, c := range s.Contenders {
			if !slices.Contains(rows, x) && len(s.of(x, i)) > 0 {
				fmt.Fprintf(&b, "only in %s: %s: %s %s\n", c.Name, x.Title, spread(s.of(x, i)), x.Unit)
				worse = worse || i == 1 && x.Less && len(s.values[x][0]) > 0 // it was zero
			}
		}
	}
	writeNotes(&b, r.notes(), false)
	_, err = io.WriteString(w, b.String())
	return worse, err
}

// verdict returns what an interval shows.
func verdict(r Row, s stats.Shift) Verdict {
	switch {
	case math.IsInf(s.High, 1):
		return TooFew
	case s.Low <= 1 && s.High >= 1:
		return NoDifference
	case (s.Low < 1) == r.Less:
		return Better
	}
	return Worse
}
