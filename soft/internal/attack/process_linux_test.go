package attack

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// partVariable has the test binary be another process of a test.
const partVariable = "VERBENA_ATTACK_PART"

func TestMain(m *testing.M) {
	switch os.Getenv(partVariable) {
	case "":
		goleak.VerifyTestMain(m)
	case "victim":
		exit(runVictim(newPeerOf(os.Stdin, os.Stdout)))
	case "attacker":
		exit(runAttacker(newPeerOf(os.Stdin, os.Stdout)))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(partVariable)+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// message is what the processes tell each other, a line of JSON each.
type message struct {
	Kind string

	// To a victim, that it may begin, and to an attacker.
	Row       string           `json:",omitempty"`
	Side      int              `json:",omitempty"`
	Addresses []netip.AddrPort `json:",omitempty"`
	Ends      []endInfo        `json:",omitempty"`
	Own       []netip.Addr     `json:",omitempty"`
	Moment    bool             `json:",omitempty"`
	Elsewhere bool             `json:",omitempty"`

	Ops      [2]int64          `json:",omitzero"`
	Counters map[string]uint64 `json:",omitempty"`
	Target   target            `json:",omitzero"`
	Data     [][]byte          `json:",omitempty"`

	Harm    harm    `json:",omitempty"`
	Text    string  `json:",omitempty"`
	Sent    int64   `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
}

// endInfo is what is known of one end of a connection.
type endInfo struct {
	Addr      netip.AddrPort // of its device
	Nobody    netip.AddrPort // of a socket at the same address that nobody reads
	QPN       uint32
	Conn, Map []byte // descriptors
	Listener  uint16 // its port, of those that listen
	Guard     uint64 // the address of memory that nobody is to change
	RKey      uint32
	Secret    []byte // which messages have that are no forgeries
}

// peer is the process at the other end of two pipes.
type peer struct {
	in *json.Decoder
	mu sync.Mutex // of out
	w  *json.Encoder
}

func newPeerOf(in io.Reader, out io.Writer) *peer {
	return &peer{in: json.NewDecoder(bufio.NewReader(in)), w: json.NewEncoder(out)}
}

func (p *peer) say(m message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.w.Encode(m)
}

func (p *peer) hear() (m message, err error) {
	err = p.in.Decode(&m)
	return m, err
}

// process is a victim or an attacker, as the test has it.
type process struct {
	*peer
	t       *testing.T
	cmd     *exec.Cmd
	stdin   io.Closer
	answers chan message // closed when the process has ended

	mu    sync.Mutex
	harms map[harm]string
	done  bool // ending is expected
}

// patience ends what hangs.
const patience = 2 * time.Minute

// start starts the test binary as another process, with the page as its file 3.
func start(t *testing.T, part string, prefix []string, page *os.File) *process {
	t.Helper()
	args := append(slices.Clone(prefix), os.Args[0])
	p := &process{t: t, cmd: exec.Command(args[0], args[1:]...), answers: make(chan message, 16), harms: map[harm]string{}}
	p.cmd.Env = append(os.Environ(), partVariable+"="+part, "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	p.cmd.ExtraFiles = []*os.File{page}
	stdin, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	p.peer, p.stdin = newPeerOf(stdout, stdin), stdin
	go p.read(part)
	return p
}

// read notes the harms that the process reports, and passes on the rest.
func (p *process) read(part string) {
	defer close(p.answers)
	for {
		m, err := p.hear()
		switch {
		case err != nil:
			p.mu.Lock()
			if !p.done && part == "victim" {
				p.harms[died] = err.Error()
			}
			p.mu.Unlock()
			return
		case m.Kind == "harm":
			p.mu.Lock()
			if p.harms[m.Harm] == "" {
				p.harms[m.Harm] = m.Text
			}
			p.mu.Unlock()
		default:
			p.answers <- m
		}
	}
}

// answer is the next message of the process.
func (p *process) answer(kind string) message {
	p.t.Helper()
	select {
	case m, ok := <-p.answers:
		require.True(p.t, ok, "the process ended, and did not answer %q", kind)
		require.Equal(p.t, kind, m.Kind, "%s", m.Text)
		return m
	case <-time.After(2 * patience):
		require.FailNow(p.t, "no answer", "%s", kind)
		panic("not reached")
	}
}

func (p *process) ask(m message) message {
	p.t.Helper()
	require.NoError(p.t, p.say(m))
	return p.answer(m.Kind)
}

func (p *process) collect(into map[harm]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h, text := range p.harms {
		into[h] = text
	}
}

// end ends the process, which notices that its input does.
func (p *process) end() {
	p.mu.Lock()
	done := p.done
	p.done = true
	p.mu.Unlock()
	if done {
		return
	}
	_ = p.stdin.Close()
	kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	for range p.answers {
	}
	_ = p.cmd.Wait()
	kill.Stop()
}
