//go:build linux && cgo && verbs

package rsocket_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
)

// Libraries for the C programs.
const (
	preload  = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so.1"
	newCalls = "/lib/newcalls.so" // testdata/newcalls.c
)

// patience ends a cell of the table that hangs, unless the row has its own.
const patience = 4 * time.Minute

// command starts a C program. ADDR and PORT stand for the server's.
type command struct {
	words         string
	env           []string
	stdin, stdout string // files of the trial's folder; empty: none
	stays         bool   // the server does not end
}

// under is the environment of a program of sockets.
func under(libraries ...string) []string {
	return []string{"LD_PRELOAD=" + strings.Join(libraries, ":")}
}

// foreignRow is a row of the table: a pair of C programs, and what Go does in place of either.
type foreignRow struct {
	name           string
	short          bool // it is also run in the short form
	ipv6           bool
	patience       time.Duration // zero: patience
	server, client *command
	runs           int // of the client, one after the other; zero: 1
	connections    int // of each run; zero: 1
	serve          func(*trial, *rsocket.Conn) error
	dial           func(*trial, *rsocket.Conn) error
	// alone replaces dial where that is about several connections at a time.
	alone func(*trial, *rsocket.Stack) error
	files [][2]string              // that are equal at the end
	check func(trial *trial) error // the output of C's server
}

// trial is one cell of the table.
type trial struct {
	t    *testing.T
	ctx  context.Context
	row  *foreignRow
	dir  string
	addr netip.AddrPort // where the server listens
	end  time.Time
}

// The files of a trial.
const (
	clientFile = "client.data"
	serverFile = "server.data"
	atServer   = "server.got"
	atClient   = "client.got"
	report     = "server.report"
	requests   = "memcached.requests"
	fileSize   = 3_000_000
)

func (tr *trial) file(name string) string { return filepath.Join(tr.dir, name) }

// process is a running C program.
type process struct {
	words string
	cmd   *exec.Cmd
	out   bytes.Buffer
	err   error
	ended chan struct{}
}

func (tr *trial) start(c *command) (*process, error) {
	words := strings.NewReplacer("ADDR", tr.addr.Addr().String(), "PORT", strconv.Itoa(int(tr.addr.Port()))).Replace(c.words)
	args := strings.Fields(words)
	p := &process{words: words, cmd: exec.CommandContext(tr.ctx, args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Dir = tr.dir
	p.cmd.Env = append(os.Environ(), c.env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	for _, f := range []struct {
		name string
		open func(string) (*os.File, error)
		use  func(*os.File)
	}{
		{c.stdin, os.Open, func(f *os.File) { p.cmd.Stdin = f }},
		{c.stdout, os.Create, func(f *os.File) { p.cmd.Stdout = f }},
	} {
		if f.name == "" {
			continue
		}
		file, err := f.open(tr.file(f.name))
		if err != nil {
			return nil, err
		}
		defer file.Close()
		f.use(file)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// wait waits until the program has ended, which it has to with success.
func (p *process) wait(ctx context.Context) error {
	<-p.ended
	switch {
	case p.err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not end in time%s", p.name(), p.lastWords())
	}
	return fmt.Errorf("%s: %w%s", p.name(), p.err, p.lastWords())
}

func (p *process) name() string { return filepath.Base(p.cmd.Path) }

// lastWords is what the program has written in the end.
func (p *process) lastWords() string {
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if last == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", last)
}

// stop ends the program, unless it has ended.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// startServer starts C's server, and waits until it listens.
func (tr *trial) startServer() (*process, error) {
	p, err := tr.start(tr.row.server)
	if err != nil {
		return nil, err
	}
	port := fmt.Sprintf(":%d ", tr.addr.Port())
	for {
		out, err := exec.CommandContext(tr.ctx, "rdma", "resource", "show", "cm_id").CombinedOutput()
		if err != nil {
			p.stop()
			return nil, fmt.Errorf("rdma resource show cm_id: %w: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "state LISTEN") && strings.Contains(line, port) {
				return p, nil
			}
		}
		select {
		case <-p.ended:
			if err := p.wait(tr.ctx); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("%s ended before it listened%s", p.name(), p.lastWords())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// endServer is called when the client is done.
func (tr *trial) endServer(p *process) error {
	if tr.row.server.stays {
		p.stop()
	} else if err := p.wait(tr.ctx); err != nil {
		return err
	}
	if tr.row.check != nil {
		return tr.row.check(tr)
	}
	return nil
}

// runClient runs C's client.
func (tr *trial) runClient() error {
	for range max(tr.row.runs, 1) {
		p, err := tr.start(tr.row.client)
		if err != nil {
			return err
		}
		if err := p.wait(tr.ctx); err != nil {
			return err
		}
	}
	return nil
}

// errNotApplicable: there is no such pair of programs.
var errNotApplicable = errors.New("not applicable")

// foreignColumn is a column of the table.
type foreignColumn struct {
	name  string
	onRxe bool // the server
	run   func(*trial, *rsocket.Stack) error
}

var foreignColumns = []foreignColumn{
	{"C with C, on rxe", true, control},
	{"Go on soft serves", false, goServes},
	{"Go on soft dials", true, goDials},
	{"Go on rxe serves", true, goServes},
	{"Go on rxe dials", true, goDials},
}

// control runs C with C. A program of sockets may have used TCP: then the device sent nothing.
func control(tr *trial, _ *rsocket.Stack) error {
	before, err := packets()
	if err != nil {
		return err
	}
	server, err := tr.startServer()
	if err != nil {
		return err
	}
	defer server.stop()
	if err := tr.runClient(); err != nil {
		return errors.Join(err, said(server))
	}
	if err := tr.endServer(server); err != nil {
		return err
	}
	after, err := packets()
	if err == nil && after == before {
		err = errors.New("rxe sent no packets")
	}
	return err
}

// said is the last words of a program that had not ended, as an error.
func said(p *process) error {
	p.stop()
	if words := p.lastWords(); words != "" {
		return fmt.Errorf("%s said%s", p.name(), words)
	}
	return nil
}

// packets is how many packets rxe has sent.
func packets() (int, error) {
	b, err := os.ReadFile("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// goServes runs Go's server with C's client.
func goServes(tr *trial, s *rsocket.Stack) error {
	if tr.row.serve == nil || tr.row.client == nil {
		return errNotApplicable
	}
	l, err := s.Listen(tr.addr.String())
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(tr.ctx, func() { _ = l.Close() })()
	results := make(chan error)
	total := max(tr.row.runs, 1) * max(tr.row.connections, 1)
	go func() {
		for range total {
			c, err := l.AcceptConn()
			go func() {
				if err == nil {
					err = tr.on(c, tr.row.serve)
				}
				results <- err
			}()
		}
	}()
	clientErr := tr.runClient()
	if clientErr != nil {
		_ = l.Close() // for connections that did not come
	}
	var serverErr error
	for range total {
		serverErr = errors.Join(serverErr, <-results)
	}
	if serverErr != nil {
		serverErr = fmt.Errorf("Go: %w", serverErr)
	}
	return errors.Join(clientErr, serverErr)
}

// on runs one end of a connection, which it closes.
func (tr *trial) on(c *rsocket.Conn, do func(*trial, *rsocket.Conn) error) error {
	if err := c.SetDeadline(tr.end); err != nil {
		return err
	}
	err := do(tr, c)
	if closeErr := c.Close(); !errors.Is(closeErr, net.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return err
}

// goDials runs C's server with Go's client.
func goDials(tr *trial, s *rsocket.Stack) error {
	if tr.row.dial == nil && tr.row.alone == nil || tr.row.server == nil {
		return errNotApplicable
	}
	server, err := tr.startServer()
	if err != nil {
		return err
	}
	defer server.stop()
	client := func() error {
		if tr.row.alone != nil {
			return tr.row.alone(tr, s)
		}
		for range max(tr.row.runs, 1) {
			c, err := s.Dial(tr.ctx, tr.addr.String())
			if err != nil {
				return err
			}
			if err := tr.on(c, tr.row.dial); err != nil {
				return err
			}
		}
		return nil
	}
	if err := client(); err != nil {
		return errors.Join(fmt.Errorf("Go: %w", err), said(server))
	}
	return tr.endServer(server)
}

// cell runs one cell.
func (c *foreignColumn) cell(t *testing.T, row *foreignRow, s *rsocket.Stack, port uint16) error {
	end := time.Now().Add(cmp.Or(row.patience, patience))
	ctx, cancel := context.WithDeadline(t.Context(), end)
	defer cancel()
	tr := &trial{
		t: t, ctx: ctx, row: row, dir: t.TempDir(), end: end,
		addr: netip.AddrPortFrom(netip.MustParseAddr(hosts[index(c.onRxe)][index(row.ipv6)]), port),
	}
	for i, name := range []string{clientFile, serverFile} {
		data := &sequence{at: i * 100, period: primes}
		require.NoError(t, os.WriteFile(tr.file(name), data.next(fileSize), 0o600))
	}
	require.NoError(t, os.WriteFile(tr.file(requests), []byte("set a 0 0 3\r\nabc\r\nget a\r\nquit\r\n"), 0o600))
	if err := c.run(tr, s); err != nil {
		return err
	}
	for _, pair := range row.files {
		want, err := os.ReadFile(tr.file(pair[0]))
		require.NoError(t, err)
		got, err := os.ReadFile(tr.file(pair[1]))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s, of %d bytes, differs from %s, of %d bytes", pair[1], len(got), pair[0], len(want))
		}
	}
	return nil
}

// hosts are the addresses of soft and rxe, by IPv4 and IPv6.
var hosts = [2][2]string{{softHost, "fd00::2"}, {rxeHost, "fd00::1"}}

func index(second bool) int {
	if second {
		return 1
	}
	return 0
}

// knownFaults are failures of cells that are not this package's, with their reasons. The key is the
// row and the column.
var knownFaults = map[[2]string]string{}

// TestGuestForeign runs C programs of rsockets, and programs of sockets under librspreload.so, with
// each other and with Go at either end. It prints a table. A failure with Go counts unless the same
// pair fails in C, too. Short: one row of each program.
func TestGuestForeign(t *testing.T) {
	requireGuest(t)
	stacks := [2]*rsocket.Stack{openGuest(t, false), openGuest(t, true)}
	head := []string{"program"}
	for _, c := range foreignColumns {
		head = append(head, c.name)
	}
	table := [][]string{head}
	var notes []string
	port := uint16(20000)
	for _, row := range foreignRows() {
		if testing.Short() && !row.short {
			continue
		}
		line := []string{row.name}
		var controlErr error
		for i, c := range foreignColumns {
			var err error
			t.Run(row.name+", "+c.name, func(t *testing.T) {
				port++
				if err = c.cell(t, &row, stacks[index(i >= 3)], port); err != nil && !errors.Is(err, errNotApplicable) {
					t.Log(err)
				}
				if i == 0 {
					controlErr = err
				}
				switch reason, known := knownFaults[[2]string{row.name, c.name}]; {
				case err == nil:
					assert.False(t, known, "a known fault is gone: %s", reason)
					line = append(line, "ok")
				case errors.Is(err, errNotApplicable):
					line = append(line, "n.a.")
				default:
					note := strings.ReplaceAll(err.Error(), "\n", "; ")
					switch {
					case known:
						note += ". Known: " + reason
					case i == 0:
						note += ". The row does not count"
					case controlErr != nil:
						note += ". Not counted: C fails with C, too"
					default:
						t.Error(err)
					}
					notes = append(notes, fmt.Sprintf("%s, %s: %s.", row.name, c.name, note))
					line = append(line, fmt.Sprintf("failed (%d)", len(notes)))
				}
			})
		}
		table = append(table, line)
	}
	printTable(table, notes)
	for _, s := range stacks {
		assert.Zero(t, s.Counters().ProtocolErrors, "%s: C programs that violate the protocol", s.Device().Name())
		t.Logf("%s: %+v", s.Device().Name(), s.Counters())
	}
}

// printTable prints the table in Markdown, and the notes below.
func printTable(table [][]string, notes []string) {
	rule := make([]string, len(table[0]))
	for i := range rule {
		rule[i] = "---"
	}
	fmt.Println()
	for _, line := range slices.Insert(table, 1, rule) {
		fmt.Printf("| %s |\n", strings.Join(line, " | "))
	}
	fmt.Println()
	for i, n := range notes {
		fmt.Printf("%d. %s\n", i+1, n)
	}
	fmt.Println()
}

// A C program that is killed resets its connection, and the stack goes on.
func TestGuestForeignKilled(t *testing.T) {
	requireGuest(t)
	port := uint16(22000)
	for i, c := range foreignColumns[1:] {
		t.Run(c.name, func(t *testing.T) {
			s := openGuest(t, i >= 2)
			for range 2 {
				port++
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				tr := &trial{
					t: t, ctx: ctx, dir: t.TempDir(), addr: netip.AddrPortFrom(netip.MustParseAddr(hosts[index(c.onRxe)][0]), port),
					row: &foreignRow{
						server: &command{words: "sockecho serve ADDR PORT 1", env: under(preload)},
						client: &command{words: "sockecho dial ADDR PORT 1000000000 10000", env: under(preload)},
					},
				}
				victim, conn := tr.meet(s, i%2 == 1)
				require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
				if i%2 == 1 {
					_, err := conn.Write(make([]byte, 1000))
					require.NoError(t, err)
				}
				_, err := io.ReadFull(conn, make([]byte, 1000))
				require.NoError(t, err)
				require.NoError(t, victim.cmd.Process.Kill())
				_, err = io.Copy(io.Discard, conn)
				require.ErrorIs(t, err, syscall.ECONNRESET)
				_, err = conn.Write([]byte{1})
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NoError(t, conn.Close())
				<-victim.ended
			}
		})
	}
}

// meet connects a Go end with C's server or client.
func (tr *trial) meet(s *rsocket.Stack, dial bool) (*process, *rsocket.Conn) {
	if dial {
		p, err := tr.startServer()
		require.NoError(tr.t, err)
		c, err := s.Dial(tr.ctx, tr.addr.String())
		require.NoError(tr.t, err)
		return p, c
	}
	l, err := s.Listen(tr.addr.String())
	require.NoError(tr.t, err)
	defer l.Close()
	p, err := tr.start(tr.row.client)
	require.NoError(tr.t, err)
	c, err := l.AcceptConn()
	require.NoError(tr.t, err)
	return p, c
}
