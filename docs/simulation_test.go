package docs

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// The log survives whatever happens to one host at a time.
func TestReplicatedLog(t *testing.T) { sim.Check(t, 20, replicate) }

func BenchmarkSeeds(b *testing.B) { sim.Benchmark(b, replicate) }

func replicate(s *sim.Sim) {
	s.SetDefaultLink(sim.LinkConfig{Latency: 20 * time.Millisecond, Loss: 0.01})
	a, b, c := &replica{host: s.Host("a")}, &replica{host: s.Host("b")}, &replica{host: s.Host("c")}
	a.host.Run(func(ctx context.Context, dev verbs.Device) error { return a.lead(ctx, dev, b, c) })
	b.host.Run(b.follow)
	c.host.Run(c.follow)
	chaos := s.Nemesis(sim.Chaos{Interval: 2 * time.Second, Longest: 6 * time.Second, Until: 10 * time.Second})
	isSafe := func() { // whichever host is lost, another one has all that is committed
		for _, left := range [][2]*replica{{a, b}, {a, c}, {b, c}} {
			if have := max(len(left[0].log), len(left[1].log)); have < a.committed {
				s.Fatalf("of %d committed entries, two hosts have %d", a.committed, have)
			}
		}
		s.Sometimes(a.host.Crashed() && len(a.log) > a.committed, "the leader crashes before all is committed")
		s.Sometimes(a.committed > len(b.log)+1, "a follower lags")
	}
	s.RunUntil(func() bool { isSafe(); return chaos.Done() }, time.Minute)
	goal := a.committed + 20
	s.RunUntil(func() bool { isSafe(); return len(b.log) >= goal && len(c.log) >= goal }, time.Minute)
	require.Equal(s, a.log[:goal], b.log[:goal])
	require.Equal(s, a.log[:goal], c.log[:goal])
}

// replica is a host with a log, which is on its disk, too.
type replica struct {
	host      *sim.Host
	log       []uint64
	committed int // entries that users may rely on
}

// record is an entry on the disk: with a checksum, since a crash may tear it.
func record(number int, entry uint64) []byte {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(number)), entry)
	return binary.BigEndian.AppendUint32(b[8:], crc32.ChecksumIEEE(b))
}

// append appends an entry to the log, and returns when no crash can take it back.
func (r *replica) append(entry uint64) error {
	f, err := r.host.Disk().Append("log")
	if err != nil {
		return err
	}
	_, err = f.Write(record(len(r.log), entry))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		r.log = append(r.log, entry)
	}
	return err
}

// load reads the log, and leaves out what is torn.
func (r *replica) load() error {
	disk := r.host.Disk()
	b, err := fs.ReadFile(disk, "log")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.log = nil
	n := len(record(0, 0))
	for ; len(b) >= n; b = b[n:] {
		entry := binary.BigEndian.Uint64(b)
		if !bytes.Equal(b[:n], record(len(r.log), entry)) && planted != "torn" { // planted: a torn entry is taken for a whole one
			break
		}
		r.log = append(r.log, entry)
	}
	f, err := disk.Create("log.new")
	if err != nil {
		return err
	}
	for i, entry := range r.log {
		_, _ = f.Write(record(i, entry)) // Sync fails if it has
	}
	return errors.Join(f.Sync(), f.Close(), disk.Rename("log.new", "log"), disk.Sync())
}

// follow takes entries: each comes to its place in memory, with its number as immediate. It
// replies with the number of entries that it has.
func (f *replica) follow(ctx context.Context, dev verbs.Device) error {
	if err := f.load(); err != nil {
		return err
	}
	return run(ctx, dev, func(p *program) error {
		p.received = func(m *rdma.Message) {
			if n, _ := m.Imm(); int(n) == len(f.log) {
				p.rdma.Fail(f.append(binary.BigEndian.Uint64(p.memory.Bytes()[8*n:])))
			}
			task, err := p.tasks.SendImm(m.Connection(), nil, uint32(len(f.log)))
			_ = pe.SubmitOrFree(task, err) // fails if the leader has gone
		}
		return p.listen()
	})
}

// leader is the program of the replica that leads.
type leader struct {
	*replica
	*program
	followers []*follower
}

// follower is a replica as the leader knows it.
type follower struct {
	addr   string
	conn   *rdma.Connection // nil: none is Ready
	memory *mmap.Map
	has    int // entries
	sent   int // entries, by this connection
}

// write sends a follower the next entry that it lacks.
func (l *leader) write(f *follower) {
	n := f.has
	if f.conn == nil || f.sent > n || n == len(l.log) {
		return
	}
	f.sent = n + 1
	binary.BigEndian.PutUint64(l.memory.Bytes()[8*n:], l.log[n])
	task, err := l.tasks.WriteImm(f.conn, bufinv.Source(l.memory, 8*n, 8), bufinv.Target(f.memory, 8*n, 8), uint32(n))
	_ = pe.SubmitOrFree(task, err) // fails if the connection has ended
}

// commit commits what a majority has, and then appends the next entry.
func (l *leader) commit() {
	have := []int{len(l.log)}
	for _, f := range l.followers {
		if planted != "majority" || f.conn != nil { // planted: a follower that has gone has no vote
			have = append(have, f.has)
		}
	}
	slices.Sort(have)
	l.committed = max(l.committed, have[(len(have)-1)/2])
	if l.committed == len(l.log) && len(l.log) < maxEntries {
		l.rdma.Fail(l.append(l.host.Rand().Uint64()))
	}
	for _, f := range l.followers {
		l.write(f)
	}
}

// planted is a fault: with "majority", the leader takes one of those that it reaches for one of all.
var planted = os.Getenv("VERBENA_PLANTED_FAULT")

func (r *replica) lead(ctx context.Context, dev verbs.Device, others ...*replica) error {
	if err := r.load(); err != nil {
		return err
	}
	return run(ctx, dev, func(p *program) error {
		l := &leader{replica: r, program: p}
		p.received = func(m *rdma.Message) {
			n, _ := m.Imm()
			m.Connection().UserData().(*follower).has = int(n)
			l.commit()
		}
		p.changed = l.commit
		var errs []error
		for _, other := range others {
			f := &follower{addr: other.host.Addr().String() + ":7471"}
			l.followers = append(l.followers, f)
			errs = append(errs, p.dial(f))
		}
		return errors.Join(errs...)
	})
}

const maxEntries = 1 << 16

// program is an engine, a context and memory.
type program struct {
	engine   *pe.Engine
	rdma     *rdma.Connections
	memory   *mmap.Map
	tasks    *rdma.Pool
	received func(m *rdma.Message)
	changed  func() // a follower's connection
	dev      verbs.Device
}

// run runs a program that begin sets up when its context is Starting.
func run(ctx context.Context, dev verbs.Device, begin func(p *program) error) (err error) {
	p := &program{dev: dev, engine: pe.New(pe.Config{})}
	defer func() { err = errors.Join(err, p.engine.Close()) }()
	if p.memory, err = mmap.Alloc(dev, 8*maxEntries, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.memory.Close()) }()
	if p.rdma, err = rdma.New(dev, rdma.Config{Engine: p.engine, MaxConnections: 4}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.rdma.Close()) }()
	p.tasks, err = p.rdma.Pool(16, func(t *rdma.Task) { _ = t.Free() }, func(t *rdma.Task, _ error) { _ = t.Free() })
	if err != nil {
		return err
	}
	p.rdma.OnConnection(p.connectionChanged)
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.rdma.Fail(begin(p))
		}
	})
	if err := errors.Join(p.rdma.Receive(16, 0, func(m *rdma.Message) { p.received(m) }), p.rdma.Start()); err != nil {
		return err
	}
	return p.engine.Run(ctx)
}

// listen gives the address and the key of the memory to those that connect.
func (p *program) listen() error {
	key, err := p.memory.ExportKey(p.rdma.PD())
	if err != nil {
		return err
	}
	where := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, p.memory.Addr()), key)
	_, err = p.rdma.Listen(":7471", rdma.ListenConfig{PrivateData: where})
	return err
}

// dial connects to a follower, and again whenever the connection has ended.
func (p *program) dial(f *follower) error {
	conn, err := p.rdma.Dial(f.addr, rdma.DialConfig{Timeout: rdma.Forever})
	if err == nil {
		conn.SetUserData(f)
	}
	return err
}

func (p *program) connectionChanged(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
	f, dialled := conn.UserData().(*follower)
	switch {
	case state == rdma.Failed:
		_ = conn.Close()
	case !dialled:
	case state == rdma.Ready:
		where := conn.AcceptData()
		memory, err := mmap.FromKey(p.dev, binary.BigEndian.Uint64(where), 8*maxEntries, binary.BigEndian.Uint32(where[8:]), mmap.RemoteWrite)
		if err != nil {
			p.rdma.Fail(err)
			return
		}
		f.conn, f.memory, f.sent = conn, memory, 0
		p.changed()
	case state == rdma.Closed:
		if f.conn != nil {
			p.rdma.Fail(f.memory.Close())
			f.conn = nil
			p.changed()
		}
		if p.rdma.State() != pe.Stopping {
			p.rdma.Fail(p.dial(f))
		}
	}
}

// Each planted fault is found, comes again when the seed is given, and is made small. The test that is printed fails, too.
func TestPlantedFaults(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for fault, message := range map[string]string{"majority": "committed entries, two hosts have", "torn": "Not equal"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			out := plant(t, fault, self, "-test.run=^TestReplicatedLog$", "-sim.seeds=999")
			seed := regexp.MustCompile(`-sim\.seed=\d+`).FindString(out)
			require.NotEmpty(t, seed)
			require.Contains(t, plant(t, fault, self, "-test.run=^TestReplicatedLog$", seed), seed)
			require.Regexp(t, `sim: seed \d+ fails with [123] of its \d+ faults`, out)
			require.Contains(t, out, "Without the last fault it passes. The first difference is at ")

			code := regexp.MustCompile(`(?s)func (TestReplicatedLogSeed\d+)\(.*?\n *}\n`).FindStringSubmatch(out)
			require.Len(t, code, 2, "%s", out)
			file := "package docs\n\nimport (\n\"testing\"\n\"time\"\n\n\"github.com/verbena-rdma/verbena/soft/sim\"\n)\n\n" + code[0]
			folder, err := filepath.Abs(".")
			require.NoError(t, err)
			source, overlay := filepath.Join(t.TempDir(), "printed.go"), filepath.Join(t.TempDir(), "overlay.json")
			require.NoError(t, os.WriteFile(source, []byte(file), 0o600))
			files, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(folder, "printed_test.go"): source}})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(overlay, files, 0o600))
			printed := plant(t, fault, "go", "test", "-vet=off", "-pgo=off", "-overlay="+overlay, "-run=^"+code[1]+"$", ".")
			require.Contains(t, printed, message)
			require.NotContains(t, printed, "build failed")
		})
	}
}

// plant runs a command that a planted fault makes fail.
func plant(t *testing.T, fault, command string, args ...string) string {
	child := exec.Command(command, args...)
	child.Env = append(os.Environ(), "VERBENA_PLANTED_FAULT="+fault)
	out, err := child.CombinedOutput()
	require.Error(t, err, "%s", out)
	return string(out)
}
