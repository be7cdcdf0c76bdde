package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/session"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/internal/terminal"
)

// Style is the form of the output.
type Style int

// The styles.
const (
	Lines Style = iota // for files and logs
	Bar                // for terminals: a line that changes
	JSON               // for programs
)

// Printer prints the progress and the results of a transfer. Its methods may be called from
// any goroutine.
type Printer struct {
	name    string
	out     io.Writer // received plain messages, and JSON
	err     io.Writer
	style   Style
	verbose bool
	quiet   bool

	mu      sync.Mutex
	moved   int64
	total   int64 // 0: not known yet
	started time.Time
	printed time.Time // when progress was last printed
	last    time.Time // when data last moved
	bar     bool      // the last line of the terminal shows the progress
}

// New makes a printer for a program. With verbose it prints every file, with quiet only
// failures.
func New(name string, out, err io.Writer, style Style, verbose, quiet bool) *Printer {
	now := time.Now()
	return &Printer{name: name, out: out, err: err, style: style, verbose: verbose, quiet: quiet, started: now, last: now}
}

// linesInterval is the time between two lines of progress when there is no bar.
const linesInterval = 5 * time.Second

// emit prints one JSON object. The caller holds mu. Callers may ignore the error: the output
// keeps it.
func (p *Printer) emit(event string, fields map[string]any) error {
	fields["event"] = event
	b, err := json.Marshal(fields)
	if err == nil {
		_, err = fmt.Fprintf(p.out, "%s\n", b)
	}
	return err
}

// clearLine returns to the beginning of the terminal's line, and clears it (ECMA-48: CR, EL).
const clearLine = "\r\x1b[K"

// line prints a line, above the bar if there is one. The caller holds mu.
func (p *Printer) line(format string, args ...any) {
	text := p.name + ": " + fmt.Sprintf(format, args...) + "\n"
	if p.bar {
		text = clearLine + text + p.state()
	}
	_, _ = io.WriteString(p.err, text)
}

// state says how far the transfer is. The caller holds mu.
func (p *Printer) state() string {
	rate := p.rate()
	if p.total == 0 || rate == 0 {
		return fmt.Sprintf("%s, %s/s", Bytes(p.moved), Bytes(rate))
	}
	moved := min(p.moved, p.total) // a file may have grown since it was counted
	left := time.Duration(float64(p.total-moved) / float64(rate) * float64(time.Second))
	text := fmt.Sprintf("%s of %s, %s/s, %v left", Bytes(moved), Bytes(p.total), Bytes(rate), left.Round(time.Second))
	if p.bar {
		done := int(barWidth * moved / p.total)
		text = "[" + strings.Repeat("=", done) + strings.Repeat(" ", barWidth-done) + "] " + text
	}
	return text
}

// barWidth leaves room for the text in 80 columns.
const barWidth = 25

// rate is bytes a second. The caller holds mu.
func (p *Printer) rate() int64 { return int64(float64(p.moved) / time.Since(p.started).Seconds()) }

// Note prints a line for the user; in JSON, the event and the fields. It prints no line when
// quiet.
func (p *Printer) Note(event string, fields map[string]any, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.style == JSON:
		_ = p.emit(event, fields)
	case !p.quiet:
		p.line(format, args...)
	}
}

// Warn is Note for lines that are printed even when quiet.
func (p *Printer) Warn(event string, fields map[string]any, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.style == JSON {
		_ = p.emit(event, fields)
		return
	}
	p.line(format, args...)
}

// Total sets the number of bytes in all, and starts the bar.
func (p *Printer) Total(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total = bytes
	if p.style == Bar && !p.quiet && bytes > 0 {
		p.bar = true
		p.draw(time.Now())
	}
}

// barInterval is the time between two changes of the bar.
const barInterval = 100 * time.Millisecond

// draw shows the bar. The caller holds mu.
func (p *Printer) draw(now time.Time) {
	p.printed = now
	_, _ = io.WriteString(p.err, clearLine+p.state())
}

// Restart restarts the count at zero, for another connection.
func (p *Printer) Restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = 0
}

// End removes the bar.
func (p *Printer) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar {
		_, _ = io.WriteString(p.err, clearLine)
		p.bar = false
	}
}

// LastMoved is when data last moved.
func (p *Printer) LastMoved() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Moved implements session.Events.
func (p *Printer) Moved(n int64) {
	if n <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.moved += n
	p.last = now
	interval := linesInterval
	switch {
	case p.bar:
		interval = barInterval
	case p.style == JSON:
		interval = time.Second
	}
	since := p.printed
	if since.IsZero() {
		since = p.started
	}
	if now.Sub(since) < interval || p.quiet {
		return
	}
	p.printed = now
	switch {
	case p.bar:
		p.draw(now)
	case p.style == JSON:
		_ = p.emit("progress", map[string]any{"bytes": p.moved, "total": p.total, "rate": p.rate()})
	default:
		p.line("%s", p.state())
	}
}

var entryTypes = map[proto.EntryType]string{proto.File: "file", proto.Directory: "directory", proto.Symlink: "link"}

// Entry implements session.Events.
func (p *Printer) Entry(e session.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Code == proto.OK && !p.verbose {
		return
	}
	if p.style == JSON {
		f := map[string]any{"path": e.Path, "type": entryTypes[e.Type], "code": e.Code.String()}
		if e.Type == proto.File {
			f["size"] = e.Size
		}
		if e.Had {
			f["had"] = true
		}
		if e.Code != proto.OK {
			f["reason"] = e.Text
		}
		_ = p.emit("entry", f)
		return
	}
	switch {
	case e.Code != proto.OK:
		p.line("%s: %s (%v)", tree.Show(e.Path), terminal.Printable(e.Text), e.Code)
	case e.Had:
		p.line("%s exists already", tree.Show(e.Path))
	default:
		p.line("%s", tree.Show(e.Path))
	}
}

// Text implements session.Events.
func (p *Printer) Text(s string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.style == JSON {
		return p.emit("text", map[string]any{"text": s})
	}
	_, err := fmt.Fprintln(p.out, terminal.Printable(s))
	return err
}
