package transfer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/session"
	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/test/process"
	"github.com/verbena-rdma/verbena/test/soak"
)

// asProgram is set in the environment of this test binary where it is to be the program.
const asProgram = "VERBENA_TEST_AS_PROGRAM"

// asUser is set where that program runs as another user, with a umask of 0027.
const asUser = "VERBENA_TEST_AS_USER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		if user, err := strconv.Atoi(os.Getenv(asUser)); err == nil {
			becomeUser(user)
		}
		os.Exit(asVerbena(os.Args[1:]))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		tool.Remove()
		os.Exit(code)
	}))
}

// asVerbena is what the program does with a command line.
func asVerbena(args []string) int {
	ctx, stop := interrupt.Context(context.Background())
	defer stop()
	if args[0] == "send" {
		return Send(ctx, args[1:], os.Stdout, os.Stderr)
	}
	return Receive(ctx, args[1:], os.Stdout, os.Stderr)
}

// patience is for what has to happen, on a machine that stands still now and then.
const patience = 3 * time.Minute

// tool is verbena without the race detector, which programs of other users have, if the test has it.
var tool = process.Tool{Package: "../.."}

// program is a process of verbena.
type program struct {
	*process.Process
	t *testing.T
}

type event map[string]any

func (e event) name() string { s, _ := e["event"].(string); return s }

// start starts verbena with --json.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	return startBy(t, tool.Path(t), nil, args...)
}

// startAs is start, as another user.
func startAs(t *testing.T, user int, args ...string) *program {
	t.Helper()
	return startBy(t, os.Args[0], []string{asUser + "=" + strconv.Itoa(user)}, args...)
}

func startBy(t *testing.T, path string, env []string, args ...string) *program {
	t.Helper()
	args = append([]string{path, args[0], "-json"}, args[1:]...)
	return &program{process.Start(t, process.Program{Args: args, Env: append(env, asProgram+"=1")}), t}
}

// events are what --json has printed so far.
func (p *program) events() (list []event) {
	lines := strings.Split(p.Stdout.String(), "\n")
	for _, line := range lines[:len(lines)-1] {
		e := event{}
		if json.Unmarshal([]byte(line), &e) != nil {
			e = event{"event": "not JSON", "line": line}
		}
		list = append(list, e)
	}
	return list
}

// all are the events of that name so far.
func (p *program) all(name string) []event {
	return slices.DeleteFunc(p.events(), func(e event) bool { return e.name() != name })
}

// wait waits for an event.
func (p *program) wait(name string) event {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var list []event
	require.NoError(p.t, p.AwaitFunc(ctx, "report "+name, func() bool {
		list = p.all(name)
		return len(list) > 0
	}))
	return list[0]
}

// receiver starts verbena receive, and returns it with its address.
func receiver(t *testing.T, dir string, flags ...string) (*program, string) {
	t.Helper()
	p := start(t, append(append([]string{"receive", "-l", "127.0.0.1:0"}, flags...), dir)...)
	addr, _ := p.wait("listening")["address"].(string)
	return p, addr
}

// sends runs verbena send, and returns it when it has ended, with its exit code.
func sends(t *testing.T, args ...string) (*program, int) {
	t.Helper()
	p := start(t, append([]string{"send"}, args...)...)
	code := p.Code()
	return p, code
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, b, 0o644))
}

// noise is n bytes that no two of 8 are alike of.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

// same checks that two trees are alike, with modes and times.
func same(t *testing.T, from, to string) (files int) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		rel, err := filepath.Rel(from, path)
		require.NoError(t, err)
		a, err := os.Lstat(path)
		require.NoError(t, err)
		b, err := os.Lstat(filepath.Join(to, rel))
		require.NoError(t, err)
		files++
		if a.Mode() != b.Mode() || a.Mode()&fs.ModeSymlink == 0 && !a.ModTime().Equal(b.ModTime()) {
			assert.Fail(t, "modes or times differ", "%s: %v %v, %v %v", rel, a.Mode(), a.ModTime(), b.Mode(), b.ModTime())
		}
		if a.Mode().IsRegular() {
			x, err := os.ReadFile(path)
			require.NoError(t, err)
			y, err := os.ReadFile(filepath.Join(to, rel))
			require.NoError(t, err)
			assert.True(t, bytes.Equal(x, y), "%s differs", rel)
		}
		return nil
	}))
	return files
}

// TestSmallFiles: 10,000 of them, and a second time none; a message; then the receiver is
// interrupted.
func TestSmallFiles(t *testing.T) {
	from, into := filepath.Join(t.TempDir(), "many"), t.TempDir()
	content := noise(1, 4096)
	for i := range 10_000 {
		dir := filepath.Join(from, fmt.Sprintf("%02d", i%100))
		if i < 100 {
			require.NoError(t, os.MkdirAll(dir, 0o755))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), content[i%1000:i%1000+i%2000], 0o600))
	}
	r, addr := receiver(t, into, "-key", "a key")
	s, code := sends(t, "-id", "me", from, addr)
	require.Equal(t, exitOK, code, "%v", s.all("error"))
	done := s.wait("done")
	assert.EqualValues(t, 10_101, done["entries"])
	assert.EqualValues(t, 0, done["had"])
	assert.Equal(t, "a key", done["key"])
	assert.Equal(t, "me", r.wait("transfer")["id"])
	assert.Equal(t, 10_101, same(t, from, filepath.Join(into, "many")))

	s, code = sends(t, from, addr)
	require.Equal(t, exitOK, code)
	assert.EqualValues(t, 10_000, s.wait("done")["had"])
	assert.EqualValues(t, 0, s.wait("done")["bytes"])

	_, code = sends(t, "-m", "hello\x1b[2J", addr)
	require.Equal(t, exitOK, code)
	assert.Equal(t, "hello\x1b[2J", r.wait("text")["text"])

	r.Send(syscall.SIGINT)
	assert.Equal(t, exitSignal+int(syscall.SIGINT), r.Code())
	_, err := os.Lstat(filepath.Join(into, ".verbena"))
	require.ErrorIs(t, err, fs.ErrNotExist, "nothing is left")
}

// TestSoakKilled: either end is killed in the middle of a transfer, in turns, and started
// again. Every byte is right in the end, and what had arrived is not sent again.
func TestSoakKilled(t *testing.T) {
	t.Parallel() // it waits more than it works
	rounds := soak.Rounds(t, 3, 20)
	from, into := filepath.Join(t.TempDir(), "tree"), t.TempDir()
	const step = 6 << 20
	size := (rounds + 2) * step
	write(t, filepath.Join(from, "large"), noise(2, size))
	for i := range 200 {
		write(t, filepath.Join(from, "small", fmt.Sprint(i)), noise(uint64(i), 1+i*37))
	}
	r, addr := receiver(t, into)
	send := func() *program { return start(t, "send", "-limit", "48M", "-retry", "2m", from, addr) }
	s, killed := send(), false
	for round := range rounds {
		part := arrived(into)
		require.Eventually(t, func() bool { return arrived(into) >= part+step/2 || ended(s) }, patience, 5*time.Millisecond)
		if ended(s) {
			t.Logf("the transfer ended in round %d", round)
			break
		}
		killed = true
		if round%2 == 0 {
			r.Kill()
			r = start(t, "receive", "-l", addr, into)
			r.wait("listening")
		} else {
			s.Kill()
			s = send()
			s.wait("connected") // without -wait it fails if the receiver is killed before
		}
	}
	require.Equal(t, exitOK, s.Code(), "%v", s.all("error"))
	done := s.wait("done")
	assert.EqualValues(t, 203, done["entries"])
	if bytes, ok := done["bytes"].(float64); assert.True(t, ok) && killed {
		assert.Less(t, int(bytes), size, "it was not resumed")
	}
	assert.Equal(t, 203, same(t, from, filepath.Join(into, "tree")))
}

func ended(p *program) bool {
	select {
	case <-p.Ended():
		return true
	default:
		return false
	}
}

// arrived is the length of the largest incomplete file.
func arrived(into string) (n int64) {
	list, _ := filepath.Glob(filepath.Join(into, ".verbena", "*.part"))
	for _, name := range list {
		if info, err := os.Stat(name); err == nil {
			n = max(n, info.Size())
		}
	}
	return n
}

// TestExitCodes: and that the reason is told.
func TestExitCodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, []byte("content"))
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, []byte("a secret of enough length\nand more"))
	open, addr := receiver(t, t.TempDir(), "-v")
	_, closed := receiver(t, t.TempDir(), "-secret-file", secret)
	there := t.TempDir()
	write(t, filepath.Join(there, "file"), []byte("other"))
	_, exists := receiver(t, there)
	for name, c := range map[string]struct {
		code   int
		reason string
		args   []string
	}{
		"sent":              {exitOK, "", []string{file, addr}},
		"with secret":       {exitOK, "", []string{"-secret", "a secret of enough length", file, closed}},
		"no address":        {exitUsage, "give the files to send", []string{file}},
		"no file":           {exitUsage, "no such file", []string{file + "x", addr}},
		"bad address":       {exitUsage, "HOST:PORT", []string{file, "::1:2:x"}},
		"empty argument":    {exitUsage, "an argument is empty", []string{"", addr}},
		"empty among files": {exitUsage, "an argument is empty", []string{file, "", addr}},
		"empty address":     {exitUsage, "an argument is empty", []string{file, ""}},
		"empty secret":      {exitUsage, "-secret is empty", []string{"-secret", "", file, addr}},
		"empty secret file": {exitUsage, "-secret-file is empty", []string{"-secret-file=", file, addr}},
		"short secret":      {exitUsage, "at least 16", []string{"-secret", "short", file, addr}},
		"low limit":         {exitUsage, "-limit", []string{"-limit", "7", file, addr}},
		"text and file":     {exitUsage, "either", []string{"-m", "x", file, addr}},
		"nobody":            {exitConnection, "connect to 127.0.0.1:1", []string{file, "127.0.0.1:1"}},
		"no secret":         {exitSecret, "requires a secret", []string{file, closed}},
		"wrong secret":      {exitSecret, "does not know the secret", []string{"-secret", "another secret of a length", file, closed}},
		"secret for nobody": {exitSecret, "has no secret", []string{"-secret-file", secret, file, addr}},
		"exists":            {exitPartial, "", []string{file, exists}},
	} {
		t.Run(name, func(t *testing.T) {
			s, code := sends(t, c.args...)
			assert.Equal(t, c.code, code, "%v %s", s.events(), s.Stderr)
			if c.reason != "" {
				assert.Contains(t, s.wait("error")["reason"], c.reason)
			}
		})
	}
	entry := open.wait("entry")
	assert.Equal(t, "file", entry["path"])
	assert.Equal(t, "ok", entry["code"])

	for name, c := range map[string]struct {
		code   int
		reason string
		args   []string
	}{
		"no folder":   {exitUsage, "one folder", nil},
		"empty":       {exitUsage, "an argument is empty", []string{""}},
		"no device":   {exitUsage, "-d is empty", []string{"-d", "", there}},
		"no secret":   {exitUsage, "-secret-file is empty", []string{"-secret-file", "", there}},
		"not a way":   {exitUsage, "not refuse", []string{"-existing", "merge", there}},
		"two secrets": {exitUsage, "exclude each other", []string{"-new-secret", "-secret-file", secret, there}},
		"window":      {exitUsage, "-window", []string{"-window", "0", there}},
		"file":        {exitFailure, "not a directory", []string{"-l", "127.0.0.1:0", file}},
		"locked":      {exitFailure, "another verbena receive", []string{"-l", "127.0.0.1:0", there}},
		"address":     {exitUsage, "192.0.2.1", []string{"-new-secret", "-l", "192.0.2.1:0", filepath.Join(there, "sub")}},
	} {
		t.Run("receive "+name, func(t *testing.T) {
			p := start(t, append([]string{"receive"}, c.args...)...)
			assert.Equal(t, c.code, p.Code())
			assert.Contains(t, p.wait("error")["reason"], c.reason)
		})
	}
}

// TestOnce: a receiver for one transfer ends with its exit code, and prints the secret that
// it has made up.
func TestOnce(t *testing.T) {
	from, into := filepath.Join(t.TempDir(), "d"), t.TempDir()
	file := filepath.Join(from, "file")
	write(t, file, noise(4, 3*proto.BlockSize+1))
	r, addr := receiver(t, into, "-once", "-new-secret", "-sync")
	secret, _ := r.wait("secret")["secret"].(string)
	require.GreaterOrEqual(t, len(secret), 16)
	_, code := sends(t, "-secret", secret, from, addr)
	require.Equal(t, exitOK, code)
	require.Equal(t, exitOK, r.Code())
	same(t, from, filepath.Join(into, "d"))

	write(t, file, []byte("another"))
	r, addr = receiver(t, into, "-once")
	_, code = sends(t, from, addr)
	require.Equal(t, exitPartial, code)
	require.Equal(t, exitPartial, r.Code())
}

// TestLoopbackDevice: a device of the loopback interface needs no secret, whatever it is called.
func TestLoopbackDevice(t *testing.T) {
	for _, device := range []string{"soft-lo?local=off", "soft-127.93.7.1?shards=1&local=on"} {
		r := start(t, "receive", "-d", device, "-l", ":0", t.TempDir())
		addr, _ := r.wait("listening")["address"].(string)
		s, code := sends(t, "-m", "x", addr)
		assert.Equal(t, exitOK, code, "%s: %v", device, s.events())
		r.Kill()
	}
}

// TestZone: a transfer between addresses of a link, which are told with their zone.
func TestZone(t *testing.T) {
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, own := range addrs {
			p, err := netip.ParsePrefix(own.String())
			require.NoError(t, err)
			if !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() || i.Flags&net.FlagUp == 0 {
				continue
			}
			host := p.Addr().WithZone(i.Name)
			r := start(t, "receive", "-insecure", "-once", "-l", netip.AddrPortFrom(host, 0).String(), t.TempDir())
			at, err := netip.ParseAddrPort(fmt.Sprint(r.wait("listening")["address"]))
			require.NoError(t, err)
			assert.Equal(t, host, at.Addr())
			s, code := sends(t, "-m", "x", at.String())
			assert.Equal(t, exitOK, code, "%v", s.events())
			assert.Equal(t, exitOK, r.Code())
			return
		}
	}
	t.Log("no interface here has an address of its link")
}

// TestOnceKilled: a receiver of one transfer ends when its sender was killed, and says so;
// unless the sender comes again.
func TestOnceKilled(t *testing.T) {
	from := filepath.Join(t.TempDir(), "d")
	write(t, filepath.Join(from, "1"), []byte("small"))
	write(t, filepath.Join(from, "2"), noise(6, 4<<20))
	// begin begins a transfer that takes a minute, and returns when a file has arrived.
	begin := func(flags ...string) (s, r *program) {
		r, addr := receiver(t, t.TempDir(), append(flags, "-once", "-v")...)
		s = start(t, "send", "-limit", "64k", from, addr)
		r.wait("entry")
		return s, r
	}
	s, r := begin("-retry", "0s")
	s.Kill()
	assert.Equal(t, exitConnection, r.Code(), "%v", r.events())
	assert.Contains(t, r.wait("error")["reason"], "-retry")

	s, r = begin()
	s.Send(syscall.SIGINT)
	assert.Equal(t, exitSignal+int(syscall.SIGINT), s.Code())
	assert.Equal(t, exitConnection, r.Code(), "%v", r.events())
}

// TestOnceWaits: each lost connection gives its sender the same time to come again.
func TestOnceWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		single := onceResult{patience: time.Minute, receiver: session.NewReceiver(nil, session.ReceiverConfig{}), ended: make(chan error, 1), broken: map[[16]byte]int{}}
		sum := session.Summary{Transfer: [16]byte{1}}
		began := time.Now()
		single.end(t.Context(), session.Summary{}, link.ErrBroken) // nobody that got through the handshake
		go single.end(t.Context(), sum, link.ErrBroken)
		time.Sleep(40 * time.Second)
		go single.end(t.Context(), sum, link.ErrBroken)
		err := <-single.ended
		assert.Equal(t, 100*time.Second, time.Since(began))
		assert.Equal(t, exitConnection, codeOf(t.Context(), err))
		single.end(t.Context(), sum, &session.Fault{Code: proto.BadData})
		assert.Equal(t, exitIntegrity, codeOf(t.Context(), <-single.ended), "at once")
		sum.Complete, sum.Failed = true, 1
		single.end(t.Context(), sum, nil)
		assert.Equal(t, exitPartial, codeOf(t.Context(), <-single.ended))
	})
}

// A part ends its sessions, and keeps its device open until they no longer use it.
func TestPartWaitsForSessions(t *testing.T) {
	s, err := openEndpoint(t.Context(), "soft-lo", 1, false)
	require.NoError(t, err)
	used := make(chan error, 1)
	l := listener{ctx: t.Context(), places: &places{free: 1}, serve: func(ctx context.Context, _ *link.Link, served func()) {
		go func() {
			<-ctx.Done()
			err := context.Cause(ctx)
			for range 1000 { // the engine runs on
				assert.NoError(t, s.do(t.Context(), func() error { return nil }))
			}
			served()
			used <- err
		}()
	}}
	p := l.part(s, 1)
	port, _, err := p.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	require.NoError(t, err)
	sender, err := openEndpoint(t.Context(), "soft-lo", 1, true)
	require.NoError(t, err)
	_, err = sender.dial(t.Context(), hostPort("127.0.0.1", port), patience)
	require.NoError(t, err)
	require.False(t, l.places.take(), "the session has the place of all parts")
	require.NoError(t, p.Close())
	err = <-used
	require.ErrorIs(t, err, link.ErrBroken)
	require.ErrorIs(t, err, errPartClosed)
	require.True(t, l.places.take())
	require.NoError(t, sender.close())
}

// TestLastEntryFails: the last file cannot be stored to its end, for one reason or another.
// Both ends say so, and the receiver of one transfer ends.
func TestLastEntryFails(t *testing.T) {
	for name, c := range map[string]struct {
		code   int
		reason string
		into   func(t *testing.T) string
		limit  func(t *testing.T, pid int)
		files  []int
	}{
		"disk full":   {exitSpace, "no-space", func(t *testing.T) string { return smallDisk(t, 8<<20) }, func(*testing.T, int) {}, []int{24 << 20}},
		"size limit":  {exitPartial, "too-big", (*testing.T).TempDir, func(t *testing.T, pid int) { limitFiles(t, pid, 8<<20) }, []int{24 << 20}},
		"first block": {exitPartial, "too-big", (*testing.T).TempDir, func(t *testing.T, pid int) { limitFiles(t, pid, 1<<20) }, []int{3 << 20}},
	} {
		t.Run(name, func(t *testing.T) {
			from := filepath.Join(t.TempDir(), "d")
			for i, size := range c.files {
				write(t, filepath.Join(from, fmt.Sprint(i)), noise(uint64(i), size))
			}
			r, addr := receiver(t, c.into(t), "-once")
			c.limit(t, r.PID())
			s, code := sends(t, from, addr)
			assert.Equal(t, c.code, code, "%v", s.events())
			assert.Equal(t, c.code, r.Code(), "%v", r.events())
			for _, end := range []*program{s, r} {
				if list := end.all("entry"); assert.Len(t, list, 1) {
					assert.Equal(t, c.reason, list[0]["code"], "%v", list[0])
				}
			}
		})
	}
}

// TestBusy: a receiver takes as many transfers as it was told; others are told so, or wait.
func TestBusy(t *testing.T) {
	t.Parallel() // likewise
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, noise(6, 4<<20))
	_, addr := receiver(t, t.TempDir(), "-transfers", "1")
	first := start(t, "send", "-limit", "64k", file, addr) // a minute, unless it is killed
	first.wait("connected")
	second, code := sends(t, "-m", "x", addr)
	assert.Equal(t, exitConnection, code)
	assert.Contains(t, second.wait("error")["reason"], busyText)
	third := start(t, "send", "-wait", "3m", "-m", "x", addr)
	first.Kill()
	assert.Equal(t, exitOK, third.Code(), "%v", third.events())
}

// TestFullDisk: what does not fit is told, and the rest arrives.
func TestFullDisk(t *testing.T) {
	into := smallDisk(t, 8<<20)
	from := filepath.Join(t.TempDir(), "d")
	write(t, filepath.Join(from, "big"), noise(5, 20<<20))
	for i := range 12 {
		write(t, filepath.Join(from, fmt.Sprint(i)), noise(uint64(i), 1<<20))
	}
	r, addr := receiver(t, into)
	s, code := sends(t, "-v", from, addr)
	assert.Equal(t, exitSpace, code, "%v", s.events())
	codes := map[any]int{}
	for _, e := range s.all("entry") {
		codes[e["code"]]++
		if e["code"] != "ok" {
			assert.Equal(t, "no-space", e["code"], "%v", e)
		}
	}
	assert.GreaterOrEqual(t, codes["no-space"], 5)
	assert.Greater(t, codes["ok"], 4)
	// The disk has been full, and the receiver goes on.
	_, code = sends(t, "-m", "still there?", addr)
	assert.Equal(t, exitOK, code)
	r.wait("text")
}

// TestWords: what is printed for people, and that flags may stand behind.
func TestWords(t *testing.T) {
	run := func(f func(context.Context, []string, io.Writer, io.Writer) int, args ...string) (text string, code int) {
		var o, e bytes.Buffer
		code = f(context.Background(), args, &o, &e)
		assert.Empty(t, o.String())
		return e.String(), code
	}
	text, code := run(Send, "-nonsense")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, text, "-nonsense")
	text, code = run(Receive, t.TempDir(), "-l", ":0")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, text, "without a secret")
	text, code = run(Receive, "--", "-d", "x")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, text, "one folder")
}

func TestSplitAddress(t *testing.T) {
	for text, want := range map[string]struct {
		host string
		port uint16
	}{
		"h:1": {"h", 1}, "h": {"h", defaultPort}, "10.0.0.1": {"10.0.0.1", defaultPort}, "[::1]:7": {"::1", 7}, "[::1]": {"::1", defaultPort},
		"2001:db8::1": {"2001:db8::1", defaultPort}, ":5": {"", 5},
		"fe80::1%eth0": {"fe80::1%eth0", defaultPort}, "[fe80::1%eth0]:7": {"fe80::1%eth0", 7}, "[fe80::1%2]": {"fe80::1%2", defaultPort},
	} {
		host, port, err := splitAddress(text)
		require.NoError(t, err, text)
		assert.Equal(t, want.host, host, text)
		assert.Equal(t, want.port, port, text)
	}
	for _, text := range []string{"h:x", "h:70000", "a:b:c", "dir/file"} {
		_, _, err := splitAddress(text)
		assert.Error(t, err, text)
	}
}
