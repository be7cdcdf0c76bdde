package sim

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// trace keeps what has happened: as a digest, and on request as records, as a log and as
// packet captures.
type trace struct {
	s       *Sim
	digest  uint64
	records []record
	noted   int         // events, faults excepted
	keep    bool        // records
	expect  []record    // of an earlier run of the same seed
	differs *difference // the first one from that; nil: none yet
	log     *limitedWriter
	pcaps   string // the folder for captures
	watch   int    // before this event, the goroutines that work are added to ready
	ready   map[string]struct{}
}

// record is what two runs are compared by.
type record struct {
	at   time.Duration
	kind eventKind
	host int32
	size int32
	sum  uint32 // of a packet
}

// difference is the first event in which two runs differ.
type difference struct {
	number        int
	at            time.Duration
	first, second string // what happens in each run
}

func (d *difference) String() string {
	return fmt.Sprintf("event %d is %s in the first run, and %s in the second", d.number, d.first, d.second)
}

// maxRecords bounds the records, to some 400 MB.
const maxRecords = 1 << 24

func newTrace(s *Sim) *trace { return &trace{s: s, digest: s.seed} }

// event notes an event. The lock is held.
func (t *trace) event(now time.Duration, e *event) {
	r := record{at: now, kind: e.kind, host: -1}
	if e.host != nil {
		r.host = int32(e.host.index)
	}
	if x := e.packet; x != nil {
		r.size = int32(len(x.data))
		if len(x.data) >= wire.ICRCLen {
			r.sum = binary.LittleEndian.Uint32(x.data[len(x.data)-wire.ICRCLen:])
		}
	}
	d := t.digest ^ uint64(r.at)
	d = (d ^ d>>32) * 0xd6e8feb86659fd93
	d ^= uint64(r.kind)<<56 | uint64(uint32(r.host))<<32 | uint64(r.sum)
	d = (d ^ d>>32) * 0xd6e8feb86659fd93
	t.digest = d ^ d>>32 + uint64(r.size)
	if e.kind != eventFault { // which shows in what follows from it
		t.note(r)
	}
	if t.log != nil {
		fmt.Fprintf(t.log, "%v %s%s%s\n", now, t.describe(r), contents(e.packet), called(e.call))
	}
}

// note keeps a record, or compares it with that of an earlier run.
func (t *trace) note(r record) {
	n := t.noted
	t.noted++
	if n >= maxRecords {
		return
	}
	if t.keep {
		t.records = append(t.records, r)
	}
	if t.expect == nil || t.differs != nil || n < len(t.expect) && t.expect[n] == r {
		return
	}
	t.differs = &difference{n, r.at, "the end", t.describe(r)}
	if n < len(t.expect) {
		t.differs.at, t.differs.first = min(r.at, t.expect[n].at), t.describe(t.expect[n])
	}
}

// end compares how many events there were with an earlier run.
func (t *trace) end() {
	if n := t.noted; t.differs == nil && n < len(t.expect) {
		t.differs = &difference{n, t.expect[n].at, t.describe(t.expect[n]), "the end"}
	}
}

// look adds the goroutines that work since the last event to ready.
func (t *trace) look() {
	if t.watch == 0 || t.noted != t.watch || t.differs != nil {
		return
	}
	own := bubbleOf(stacks(false))
	for range 100 {
		for i, stack := range strings.Split(stacks(true), "\n\n") {
			header, frames, _ := strings.Cut(stack, "\n")
			if i > 0 && bubbleOf(stack) == own && (strings.Contains(header, "[runnable") || strings.Contains(header, "[running")) {
				t.ready[program(frames)] = struct{}{}
			}
		}
		runtime.Gosched()
	}
}

// starters start functions of programs on other goroutines.
var starters = regexp.MustCompile(`^sync\.|/soft/sim\.\(\*Host\)|/internal/host\.Go`)

// program names the function that a goroutine was started with.
func program(frames string) (name string) {
	for line := range strings.Lines(frames) {
		if strings.HasPrefix(line, "created by ") {
			break
		}
		if i := strings.LastIndexByte(line, '('); i > 0 && line[0] != '\t' && !starters.MatchString(line) {
			name = line[:i]
		}
	}
	return name
}

// describe names an event.
func (t *trace) describe(r record) string {
	at := fmt.Sprintf("%s at %v", eventNames[r.kind], r.at)
	if r.host > 0 && int(r.host) <= len(t.s.hosts) {
		at += " at host " + t.s.hosts[r.host-1].name
	}
	if r.size > 0 {
		at += fmt.Sprintf(" of %d bytes with ICRC %#08x", r.size, r.sum)
	}
	return at
}

// contents describes a packet.
func contents(x *packet) string {
	if x == nil {
		return ""
	}
	var p wire.Packet
	if err := p.Parse(x.data); err != nil {
		return fmt.Sprintf(": %v to %v: %v", x.src, x.dst, err)
	}
	return fmt.Sprintf(": %v to %v: %v to queue pair %#x, PSN %#x", x.src, x.dst, p.Opcode, p.DestQP, p.PSN)
}

// called names the function that an event calls.
func called(f func()) string {
	if f == nil {
		return ""
	}
	name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
	return " of " + name[strings.LastIndexByte(name, '/')+1:]
}

// maxFile bounds a log or a capture, in bytes.
const maxFile = 256 << 20

// limitedWriter writes to a file until it has maxFile bytes. CheckSerial has it write seldom: during a
// system call the runtime may let other goroutines go on.
type limitedWriter struct {
	s      *Sim
	file   *os.File
	buffer *bufio.Writer
	left   int
}

func (w *limitedWriter) Write(b []byte) (int, error) {
	if len(b) > w.left {
		w.left = 0
		return len(b), nil
	}
	w.left -= len(b)
	n, err := w.buffer.Write(b)
	if w.s.order == nil {
		err = w.buffer.Flush()
	}
	return n, err
}

func (w *limitedWriter) Close() error { return errors.Join(w.buffer.Flush(), w.file.Close()) }

func (t *trace) newLimitedWriter(path string) (*limitedWriter, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &limitedWriter{t.s, f, bufio.NewWriterSize(f, 1<<20), maxFile}, nil
}

// capture returns the file for the packets of a host, or nil if there is none.
func (t *trace) capture(h *Host) (io.WriteCloser, error) {
	if t.pcaps == "" {
		return nil, nil
	}
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune(`/\:*?"<>|`, r) {
			return '_'
		}
		return r
	}, h.name)
	if h.starts > 1 {
		name += fmt.Sprint(".", h.starts)
	}
	return t.newLimitedWriter(filepath.Join(t.pcaps, name+".pcap"))
}

func (t *trace) close() {
	if t.log != nil {
		_ = t.log.Close()
	}
}
