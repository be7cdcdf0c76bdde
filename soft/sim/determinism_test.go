package sim_test

import (
	"errors"
	"flag"
	"fmt"
	"hash"
	"hash/fnv"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/sim"
)

var (
	repetitions = flag.Int("sim.repetitions", 3, "how `often` TestDeterminism runs each program")
	digestFile  = flag.String("sim.digests", "", "TestDeterminism compares its digests with those in this `file`, or writes it if there is none")
)

// journal is a digest of what programs have seen. They need no lock for it, since one goroutine
// of a simulation goes on at a time.
type journal struct {
	s *sim.Sim
	hash.Hash64
	lines int
}

func (j *journal) note(h *sim.Host, format string, args ...any) {
	j.lines++
	_, _ = fmt.Fprintf(j, "%v %v %s\n", j.s.Now(), h, fmt.Sprintf(format, args...))
}

// program starts programs on hosts whose names begin with the prefix. done reports whether they
// have reached their aims.
type program func(s *sim.Sim, prefix string, j *journal) (hosts []*sim.Host, done func() bool)

// programs have lossy links, which also duplicate, reorder and corrupt packets.
var programs = []struct {
	name string
	run  func(s *sim.Sim, j *journal)
}{
	{"callbacks", alone(callbackPrograms)},
	{"goroutines", alone(goroutinePrograms)},
	{"datagrams", alone(datagramPrograms)},
	{"connection manager", alone(managerPrograms)},
	{"all of these", together(callbackPrograms, goroutinePrograms, datagramPrograms, managerPrograms)},
}

// bad is a link with all faults.
var bad = sim.LinkConfig{
	Latency: 5 * time.Microsecond, Jitter: 3 * time.Microsecond, Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.01,
}

func alone(p program) func(*sim.Sim, *journal) {
	return func(s *sim.Sim, j *journal) {
		s.SetDefaultLink(bad)
		_, done := p(s, "", j)
		s.RunUntil(done, 10*time.Minute)
	}
}

// together runs programs on one network, in which a switch with a short queue joins all hosts.
func together(list ...program) func(*sim.Sim, *journal) {
	return func(s *sim.Sim, j *journal) {
		link := bad
		link.Rate, link.Queue, link.Mark = 1e9, 256<<10, 64<<10
		w := s.Switch("switch")
		var done []func() bool
		for i, p := range list {
			hosts, reached := p(s, fmt.Sprintf("%c-", 'a'+i), j)
			done = append(done, reached)
			for _, h := range hosts {
				s.Connect(h, w, link)
			}
		}
		s.RunUntil(func() bool {
			for _, d := range done {
				if !d() {
					return false
				}
			}
			return true
		}, 10*time.Minute)
	}
}

// The digest of a seed is the same in every run, with any number of processors and with the
// race detector or without.
func TestDeterminism(t *testing.T) {
	known := readDigests(t)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			for i := range *repetitions {
				digest := digestOf(t, p.run)
				if i == 0 {
					t.Log(digest)
				}
				name := strings.ReplaceAll(p.name, " ", "_")
				if known[name] == "" {
					known[name] = digest
				}
				require.Equal(t, known[name], digest, "run %d", i+1)
			}
		})
	}
	writeDigests(t, known)
}

// digestOf returns the digest of a run with the end of the simulation.
func digestOf(t *testing.T, run func(*sim.Sim, *journal)) (digest string) {
	synctest.Test(t, func(t *testing.T) {
		var s *sim.Sim
		j := &journal{Hash64: fnv.New64a()}
		t.Cleanup(func() { // after the simulation has ended
			digest = fmt.Sprintf("%016x-%016x after %d events, %d packets, %d notes, %v",
				s.Digest(), j.Sum64(), s.Events(), s.Packets(), j.lines, s.Now())
		})
		s = sim.New(t, 1)
		j.s = s
		run(s, j)
	})
	return digest
}

// readDigests returns the digests of the file, by program.
func readDigests(t *testing.T) map[string]string {
	known := map[string]string{}
	if *digestFile == "" {
		return known
	}
	text, err := os.ReadFile(*digestFile)
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	for line := range strings.Lines(string(text)) {
		name, digest, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[name] = digest
	}
	return known
}

func writeDigests(t *testing.T, known map[string]string) {
	if *digestFile == "" || t.Failed() {
		return
	}
	var b strings.Builder
	for name, digest := range known {
		fmt.Fprintf(&b, "%s %s\n", name, digest)
	}
	require.NoError(t, os.WriteFile(*digestFile, []byte(b.String()), 0o644))
}

// Check names the first event in which two runs of these programs differ.
func TestDeterminismOfEvents(t *testing.T) {
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			sim.Check(t, 1, func(s *sim.Sim) { p.run(s, &journal{s: s, Hash64: fnv.New64a()}) })
		})
	}
}
