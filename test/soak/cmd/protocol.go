package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/verbena-rdma/verbena/soft"
)

// The controller and the other processes talk in lines of JSON: commands go to standard
// input, events come from standard output.

// What a command tells a process to do.
const (
	doFaults    = "faults"    // of the device of a service, or of the client's own
	doLeave     = "leave"     // end the present session, and the program
	doDisturbed = "disturbed" // end the present session, which may have suffered; answer with a token
	doQuiet     = "quiet"     // no more work, then say what is held
	doResume    = "resume"    // go on with the work
	doWelcome   = "welcome"   // client: the server's endpoint
	doMeet      = "meet"      // server: a client's endpoint
	doGone      = "gone"      // server: forget a client's endpoint
	doDescribe  = "describe"  // say on standard error what is waited for
)

type command struct {
	Do       string      `json:"do"`
	Service  string      `json:"service,omitempty"`
	Faults   soft.Faults `json:"faults,omitzero"`
	Client   string      `json:"client,omitempty"`
	Token    int         `json:"token,omitempty"`
	Endpoint []byte      `json:"endpoint,omitempty"`
	Memory   []byte      `json:"memory,omitempty"`
	Hasty    bool        `json:"hasty,omitempty"` // connections that are not Ready are closed, not waited for
	Steady   int         `json:"steady,omitempty"`
	Base     *held       `json:"base,omitempty"`
}

// What an event tells the controller.
const (
	isReady    = "ready"    // server: where its services are
	isBeat     = "beat"     // what has been done so far
	isEndpoint = "endpoint" // client: its endpoint; server: the one for that client
	isSettled  = "settled"  // client: sessions from this one on have not been disturbed
	isLost     = "lost"     // a session has failed, which is for the controller to judge
	isWrong    = "wrong"    // what may never happen
	isQuiet    = "quiet"    // what is held
	isCounters = "counters" // server, at its end: those of its devices
)

type event struct {
	Is       string             `json:"is"`
	Client   string             `json:"client,omitempty"`
	Session  int                `json:"session,omitempty"`
	Token    int                `json:"token,omitempty"`
	Text     string             `json:"text,omitempty"`
	Service  string             `json:"service,omitempty"`
	Stats    *stats             `json:"stats,omitempty"`
	Held     *held              `json:"held,omitempty"`
	Places   map[string]place   `json:"places,omitempty"`
	Endpoint []byte             `json:"endpoint,omitempty"`
	Memory   []byte             `json:"memory,omitempty"`
	Counters map[string]counted `json:"counters,omitempty"` // by service
}

// place is where a service is.
type place struct {
	TCP  string `json:"tcp,omitempty"`
	CM   string `json:"cm,omitempty"`
	Memo []byte `json:"memo,omitempty"` // the endpoint of UD
}

type counted map[string]uint64

// clientConfig is what a client is told at its start.
type clientConfig struct {
	Name     string
	Service  string
	Place    place
	Seed     uint64
	Steady   bool // it stays, with one session
	ByCM     bool
	Sessions int // 0: until it is told to leave
	Each     int // sessions of a context
	Faults   soft.Faults
}

// sessionName is the name under which a client comes to the server.
func sessionName(client string, session int) string { return fmt.Sprintf("%s.%d", client, session) }

// parseSession takes a session's name apart.
func parseSession(name string) (client string, session int, err error) {
	client, number, ok := strings.Cut(name, ".")
	if session, err = strconv.Atoi(number); !ok || err != nil {
		return "", 0, fmt.Errorf("%q is not the name of a session", name)
	}
	return client, session, nil
}

// wire is a child's way to the controller.
type wire struct {
	mu  sync.Mutex
	out *json.Encoder
}

func newWire(out io.Writer) *wire { return &wire{out: json.NewEncoder(out)} }

// tell tells the controller. Without a controller there is nothing left to do.
func (w *wire) tell(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Encode(e); err != nil {
		fmt.Fprintln(os.Stderr, "soak: the controller is gone:", err)
		os.Exit(exitOrphan)
	}
}

// listen has the controller's commands carried out, until there is no controller.
func listen(in io.Reader, handle func(command)) {
	for list := json.NewDecoder(in); ; {
		var c command
		if err := list.Decode(&c); err != nil {
			fmt.Fprintln(os.Stderr, "soak: the controller is gone:", err)
			os.Exit(exitOrphan)
		}
		handle(c)
	}
}
