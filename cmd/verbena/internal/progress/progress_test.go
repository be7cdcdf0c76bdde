package progress

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.00 kB", 12_345: "12.3 kB", 999_400: "999 kB", 999_600: "1.00 MB",
		1_500_000: "1.50 MB", 2_000_000_000: "2.00 GB", 1<<63 - 1: "9.22 EB"} {
		assert.Equal(t, want, Bytes(n), n)
	}
	for text, want := range map[string]int64{"0": 0, "1500": 1500, "10M": 10_000_000, "1.5GB": 1_500_000_000, "64MiB": 64 << 20, "64mi": 64 << 20, " 2 k ": 2000, "7B": 7} {
		n, err := ParseBytes(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, n, text)
	}
	for _, text := range []string{"", "x", "-1", "1X", "10iB", "NaN", "1e30", "Inf", "9E9E"} {
		_, err := ParseBytes(text)
		assert.Error(t, err, "%q", text)
	}
}

// printed runs f with a printer, and returns what it prints.
func printed(style Style, verbose, quiet bool, f func(p *Printer)) (out, err string) {
	var o, e bytes.Buffer
	p := New("verbena test", &o, &e, style, verbose, quiet)
	f(p)
	p.End()
	return o.String(), e.String()
}

var (
	fine   = session.Entry{Path: "fine", Size: 5}
	had    = session.Entry{Path: "had", Had: true}
	failed = session.Entry{Path: "bad\x1b", Code: proto.Exists, Text: "it \x1b[31mexists"}
)

func entries(p *Printer) {
	for _, e := range []session.Entry{fine, had, failed} {
		p.Entry(e)
	}
	p.Note("note", map[string]any{"n": 1}, "a note")
	p.Warn("warning", map[string]any{}, "a warning")
	p.Text("hello\x1b[2J\tyou\n")
}

func TestLines(t *testing.T) {
	out, err := printed(Lines, false, false, entries)
	assert.Equal(t, "hello\ufffd[2J\tyou\n\n", out, "nothing that a terminal obeys")
	assert.Equal(t, "verbena test: \"bad\\x1b\": it \ufffd[31mexists (exists)\nverbena test: a note\nverbena test: a warning\n", err)
	_, err = printed(Lines, true, false, entries)
	assert.Contains(t, err, "test: fine\n")
	assert.Contains(t, err, "had exists already")
	_, err = printed(Lines, false, true, entries)
	assert.NotContains(t, err, "a note")
	assert.Contains(t, err, "a warning")
}

func TestJSON(t *testing.T) {
	out, err := printed(JSON, true, false, entries)
	assert.Empty(t, err)
	var events []string
	for line := range strings.Lines(out) {
		e := map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		events = append(events, e["event"].(string))
	}
	assert.Equal(t, []string{"entry", "entry", "entry", "note", "warning", "text"}, events)
	assert.NotContains(t, out, "\x1b")
	out, _ = printed(JSON, false, false, entries)
	assert.Equal(t, 1, strings.Count(out, `"entry"`), "of entries, those that have failed")
}

func TestProgressLines(t *testing.T) {
	_, err := printed(Lines, false, false, func(p *Printer) {
		p.Total(4000)
		p.Moved(0)
		p.started = time.Now().Add(-time.Minute)
		p.Moved(1000)
		p.Moved(1000) // too soon to be printed
	})
	assert.Regexp(t, `^verbena test: 1.00 kB of 4.00 kB, \d+ B/s, .* left\n$`, err)
	out, _ := printed(JSON, false, false, func(p *Printer) {
		p.started = time.Now().Add(-time.Minute)
		p.Moved(1000)
	})
	assert.Contains(t, out, `"bytes":1000`)
}

func TestBar(t *testing.T) {
	_, err := printed(Bar, false, false, func(p *Printer) {
		p.Moved(10)
		assert.WithinDuration(t, time.Now(), p.LastMoved(), time.Minute)
		p.Total(1000)
		p.Moved(500)
		p.Entry(failed)
		p.Moved(5000) // more than there was to be
		p.Restart()
	})
	assert.Contains(t, err, "verbena test: \"bad")
	assert.Contains(t, err, "\r", "a bar")
}
