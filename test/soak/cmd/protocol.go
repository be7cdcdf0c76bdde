package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/verbena-rdma/verbena/soft"
)

// The controller and the other processes exchange lines of JSON: commands on standard input,
// events on standard output.

// The commands to a process.
const (
	doFaults    = "faults"    // for the device of a service, or for the client's own
	doLeave     = "leave"     // end the current session, then the program
	doDisturbed = "disturbed" // end the current session, which may have suffered; the answer has the token
	doQuiet     = "quiet"     // stop the work, then report what is held
	doResume    = "resume"    // resume the work
	doGone      = "gone"      // server: forget a client's endpoint
	doDescribe  = "describe"  // print on standard error what is waited for
)

type command struct {
	Do      string      `json:"do"`
	Service string      `json:"service,omitempty"`
	Faults  soft.Faults `json:"faults,omitzero"`
	Client  string      `json:"client,omitempty"`
	Token   int         `json:"token,omitempty"`
	Hasty   bool        `json:"hasty,omitempty"` // close connections that are not Ready, instead of waiting for them
	Steady  int         `json:"steady,omitempty"`
	Base    *resources  `json:"base,omitempty"`
}

// The events to the controller.
const (
	isReady   = "ready"   // server: the addresses of its services
	isBeat    = "beat"    // what has been done so far
	isSettled = "settled" // client: sessions from this one on were not disturbed
	isLost    = "lost"    // a session has failed, and the controller judges that
	isWrong   = "wrong"   // an error that must never happen
	isQuiet   = "quiet"   // what is held
)

type event struct {
	Is      string           `json:"is"`
	Client  string           `json:"client,omitempty"`
	Session int              `json:"session,omitempty"`
	Token   int              `json:"token,omitempty"`
	Text    string           `json:"text,omitempty"`
	Service string           `json:"service,omitempty"`
	Stats   *stats           `json:"stats,omitempty"`
	Held    *resources       `json:"held,omitempty"`
	Places  map[string]place `json:"places,omitempty"`
}

// place is the address of a service.
type place struct {
	TCP string `json:"tcp,omitempty"`
	CM  string `json:"cm,omitempty"` // empty with SRD
}

// clientConfig is the configuration of a client.
type clientConfig struct {
	Name     string
	Service  string
	Place    place
	Seed     uint64
	Steady   bool // the client stays, with one session
	ByCM     bool
	Sessions int // 0: until doLeave
	Each     int // sessions per context
	Faults   soft.Faults
}

// session is one of a client's: what the server knows of it by its name.
type session struct {
	client         string
	number, index  int // of the session; of the connection in it
	steady, abrupt bool
}

// String is the name, which is short, since the connection manager has little room for it.
func (s session) String() string {
	how := 0
	if s.steady {
		how |= 1
	}
	if s.abrupt {
		how |= 2
	}
	return fmt.Sprintf("%s.%d.%d.%d", s.client, s.number, s.index, how)
}

// parseSession parses a name.
func parseSession(name string) (s session, err error) {
	client, rest, _ := strings.Cut(name, ".")
	how := 0
	if n, _ := fmt.Sscanf(rest, "%d.%d.%d", &s.number, &s.index, &how); n != 3 || how > 3 {
		return s, fmt.Errorf("%q is not the name of a session", name)
	}
	s.client, s.steady, s.abrupt = client, how&1 != 0, how&2 != 0
	return s, nil
}

// eventWriter is a child's connection to the controller.
type eventWriter struct {
	mu  sync.Mutex
	out *json.Encoder
}

func newEventWriter(out io.Writer) *eventWriter { return &eventWriter{out: json.NewEncoder(out)} }

// send sends an event. Without a controller the process exits.
func (w *eventWriter) send(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Encode(e); err != nil {
		fmt.Fprintln(os.Stderr, "soak: lost the controller:", err)
		os.Exit(exitOrphan)
	}
}

// listen executes the controller's commands until the controller has ended.
func listen(in io.Reader, handle func(command)) {
	for list := json.NewDecoder(in); ; {
		var c command
		if err := list.Decode(&c); err != nil {
			fmt.Fprintln(os.Stderr, "soak: lost the controller:", err)
			os.Exit(exitOrphan)
		}
		handle(c)
	}
}
