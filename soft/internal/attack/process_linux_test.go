package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	program "github.com/verbena-rdma/verbena/internal/process"
)

// roleVariable is the environment variable that makes the test binary a victim or an attacker.
const roleVariable = "VERBENA_ATTACK_PART"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		goleak.VerifyTestMain(m)
	case "victim":
		exit(runVictim(newPipePeer(os.Stdin, os.Stdout)))
	case "attacker":
		exit(runAttacker(newPipePeer(os.Stdin, os.Stdout)))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(roleVariable)+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// message is a message between the processes, a line of JSON.
type message struct {
	Kind string

	// In the first message to a victim or an attacker.
	Attack    string           `json:",omitempty"`
	Side      int              `json:",omitempty"`
	Addresses []netip.AddrPort `json:",omitempty"`
	Ends      []endInfo        `json:",omitempty"`
	Own       []netip.Addr     `json:",omitempty"`
	Short     bool             `json:",omitempty"`
	Decoys    bool             `json:",omitempty"`

	Ops      [2]int64          `json:",omitzero"`
	Counters map[string]uint64 `json:",omitempty"`
	Target   target            `json:",omitzero"`
	Data     [][]byte          `json:",omitempty"`

	Harm    harm    `json:",omitempty"`
	Text    string  `json:",omitempty"`
	Sent    int64   `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
}

// endInfo describes one end of a connection.
type endInfo struct {
	Addr      netip.AddrPort // of its device
	Decoy     netip.AddrPort // of a socket at the same address that nobody reads
	QPN       uint32
	Conn, Map []byte // descriptors
	Listener  uint16 // port of its listener, if any
	Guard     uint64 // address of memory that must not change
	RKey      uint32
	Secret    []byte // in all genuine messages
}

// pipePeer exchanges messages with the process at the other end of two pipes.
type pipePeer struct {
	in *json.Decoder
	mu sync.Mutex // of out
	w  *json.Encoder
}

func newPipePeer(in io.Reader, out io.Writer) *pipePeer {
	return &pipePeer{in: json.NewDecoder(bufio.NewReader(in)), w: json.NewEncoder(out)}
}

func (p *pipePeer) send(m message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.w.Encode(m)
}

func (p *pipePeer) receive() (m message, err error) {
	err = p.in.Decode(&m)
	return m, err
}

// process is a victim or an attacker, as seen by the test.
type process struct {
	*pipePeer
	t       *testing.T
	program *program.Process
	answers chan message // closed when the process has ended

	mu    sync.Mutex
	harms map[harm]string
	done  bool // ending is expected
}

// hangTimeout bounds the wait for a process that hangs.
const hangTimeout = 2 * time.Minute

// start starts the test binary as another process, with the page as its file 3.
func start(t *testing.T, role string, prefix []string, page *os.File) *process {
	t.Helper()
	p := &process{t: t, answers: make(chan message, 16), harms: map[harm]string{}}
	var err error
	p.program, err = program.Start(context.Background(), program.Program{ // it may outlive the test, for the next one
		Args: append(slices.Clone(prefix), os.Args[0]), Env: []string{roleVariable + "=" + role, "GORACE=atexit_sleep_ms=0"}, Stderr: os.Stderr,
		Files: []*os.File{page}, In: true, Out: true,
	})
	require.NoError(t, err)
	p.pipePeer = newPipePeer(p.program.Out, p.program.In)
	go p.read(role)
	return p
}

// read records the harms that the process reports, and passes on other messages.
func (p *process) read(role string) {
	defer close(p.answers)
	for {
		m, err := p.receive()
		switch {
		case err != nil:
			p.mu.Lock()
			if !p.done && role == "victim" {
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

// answer returns the next message of the process, which must be of that kind.
func (p *process) answer(kind string) message {
	p.t.Helper()
	select {
	case m, ok := <-p.answers:
		require.True(p.t, ok, "the process ended, and did not answer %q", kind)
		require.Equal(p.t, kind, m.Kind, "%s", m.Text)
		return m
	case <-time.After(2 * hangTimeout):
		require.FailNow(p.t, "no answer", "%s", kind)
		panic("not reached")
	}
}

func (p *process) ask(m message) message {
	p.t.Helper()
	require.NoError(p.t, p.send(m))
	return p.answer(m.Kind)
}

func (p *process) collect(into map[harm]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h, text := range p.harms {
		into[h] = text
	}
}

// end ends the process by closing its input.
func (p *process) end() {
	p.mu.Lock()
	done := p.done
	p.done = true
	p.mu.Unlock()
	if done {
		return
	}
	_ = p.program.In.Close()
	kill := time.AfterFunc(hangTimeout, func() { _ = p.program.SignalGroup(os.Kill) })
	for range p.answers {
	}
	_ = p.program.Wait()
	kill.Stop()
}
