package oob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors of this package, matched with errors.Is. Errors of package descriptor (the peer sent
// invalid bytes), of the system and of package rdma are returned wrapped.
var (
	// ErrInvalid: an argument has a value that is never valid.
	ErrInvalid = errs.ErrInvalid
	// ErrClosed: the Peer has been closed.
	ErrClosed = errs.ErrClosed
	// ErrInUse: the Peer has already been used for an exchange, or another program of the same
	// name uses the same folder or port.
	ErrInUse = errs.ErrInUse
	// ErrFlushed: the context stopped before the wait ended.
	ErrFlushed = errs.ErrFlushed
	// ErrWrongPeer: a program other than the peer answered, or the peer does not offer what
	// this program expects.
	ErrWrongPeer = errors.New("the programs do not belong together")
	// ErrRejected: the server rejected this client; the text contains the reason.
	ErrRejected = errs.ErrRejected
	// ErrPeerFailed: the peer's program has failed.
	ErrPeerFailed = errors.New("the peer has failed; see its own output for the reason")
)

// Role is the part of a program in its pair.
type Role int

// The roles. A pair has one of each.
const (
	// Requester contacts the responder, and at its end reports whether it succeeded.
	Requester Role = iota
	// Responder waits for the requester; over TCP it listens. Peer.Done returns the
	// requester's report.
	Responder
)

// String names the role.
func (r Role) String() string {
	switch r {
	case Requester:
		return "requester"
	case Responder:
		return "responder"
	}
	return fmt.Sprintf("Role(%d)", int(r))
}

// Ends names the two programs, for a Carrier.
type Ends struct {
	Name string // of this program; letters, digits, and . _ - +
	Peer string // of the other one, likewise
	Role Role   // of this program
	// Note takes a line for the person who runs the program: what to do, or what is
	// wrong. It is never nil, and may be called from any goroutine.
	Note func(text string)
}

// maxChanges is how many texts noteChanges notes.
const maxChanges = 8

// noteChanges returns a function that notes a text, unless it is the same as before, or one too many.
func (e *Ends) noteChanges() func(text string) {
	last, noted := "", 0
	return func(text string) {
		if text != last && noted < maxChanges {
			noted++
			e.Note(text)
		}
		last = text
	}
}

// Way is how the programs of a pair meet. Either a Carrier carries what they offer each other, or
// the connection manager connects them (CM), and carries it with its messages. A Way is for one
// exchange. The zero value is not valid.
type Way struct {
	carrier Carrier
	cm      *cm    // nil: a Carrier
	address string // HOST:PORT, by TCP and by connection manager
}

// Carrier carries bytes between the programs of a pair. Before RDMA can begin, each sends the
// other a descriptor; at the end the requester reports whether it succeeded. Peer calls its
// methods in the order of their declarations.
//
// Input may be hostile: a Carrier limits how much it reads, and does not interpret it. Peer
// decodes it strictly, and checks that it is from the peer and for this program.
type Carrier interface {
	// Exchange sends ours to the peer, waits for the peer's bytes, and returns them.
	// It is called once, on a goroutine of its own. When ctx ends, it returns soon,
	// with an error that matches context.Cause(ctx). The bytes are a descriptor of
	// kind descriptor.Bundled, which need not be decoded.
	Exchange(ctx context.Context, ends Ends, ours []byte) (theirs []byte, err error)
	// Done waits for the report of the peer, a requester. It returns nil if the peer
	// succeeded, or an error that matches ErrPeerFailed. It is called after Exchange has
	// succeeded, by one goroutine at a time, and ends with ctx as Exchange does.
	Done(ctx context.Context) error
	// Close sends ok as the report of a requester whose exchange succeeded, and removes
	// what Exchange created. It is called once, when no other method runs. It may be
	// called without Exchange.
	Close(ok bool) error
	// String names the Carrier; the text follows "through", as in "the folder /tmp/x".
	String() string
}

// Carried is the Way of a Carrier.
func Carried(c Carrier) Way { return Way{carrier: c} }

// String names the Way; the text follows "through".
func (w Way) String() string {
	switch {
	case w.cm != nil:
		return w.cm.String()
	case w.carrier != nil:
		return w.carrier.String()
	}
	return "no way"
}

// check refuses a Way that this program cannot use.
func (w Way) check(ends Ends) error {
	host, port, _ := net.SplitHostPort(w.address)
	switch {
	case w.cm == nil && w.carrier == nil:
		return fmt.Errorf("%w: no way is given", ErrInvalid)
	case w.address == "":
		return nil
	case ends.Role == Requester && host == "":
		return fmt.Errorf("%v: %w: the host is missing; give the host that %s runs on", w, ErrInvalid, ends.Peer)
	case ends.Role == Requester && w.cm != nil && port == "0":
		return fmt.Errorf("%v: %w: the port is 0; give the port that %s listens on", w, ErrInvalid, ends.Peer)
	case ends.Role == Responder && w.cm != nil:
		return w.cm.resolve(host)
	}
	return nil
}

// Ways lists the texts that Parse accepts.
const Ways = "dir, dir:PATH, tcp:HOST:PORT, cm:HOST:PORT or stdio"

// Parse returns the Way that a text names, such as the value of a flag:
//
//	dir            the user's folder in the system's directory for temporary files
//	dir:PATH       the folder PATH, created if it is missing
//	tcp:HOST:PORT  over TCP: the responder listens there, the requester connects
//	cm:HOST:PORT   by connection manager: the responder listens there, the requester dials
//	stdio          printed on standard output, pasted on standard input
//
// Other texts give an error that matches ErrInvalid.
func Parse(text string) (Way, error) {
	kind, place, given := strings.Cut(text, ":")
	switch {
	case kind == "dir" && !given:
		return UserDir(), nil
	case kind == "dir" && place != "":
		return Dir(place), nil
	case kind == "tcp" && place != "":
		return TCP(place)
	case kind == "cm" && place != "":
		return CM(place)
	case text == "stdio":
		return Stdio(os.Stdin, os.Stdout), nil
	}
	return Way{}, fmt.Errorf("%w: way %q is none of %s", ErrInvalid, text, strings.Replace(Ways, " or ", " and ", 1))
}

// pollInterval is how often poll checks for files.
const pollInterval = 10 * time.Millisecond

// poll calls look repeatedly until look is done or fails, or ctx ends.
func poll(ctx context.Context, look func() (done bool, err error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// remove removes a file. It is no error if the file is already gone.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// checkName refuses invalid program names. They become part of file names.
func checkName(what, name string) error {
	ok := name != "" && len(name) <= 100 && name[0] != '.' && name[0] != '-'
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-+", c) >= 0)
	}
	if !ok {
		return fmt.Errorf("%w: the name of %s is %q; use letters, digits and . _ - +, at most 100, a letter or digit first", ErrInvalid, what, name)
	}
	return nil
}

// notFrom is the error for a frame or bundle from, or for, another program.
func notFrom(ends Ends, from, to string) error {
	if from != ends.Peer {
		return fmt.Errorf("%w: it is from %.100q, but this program waits for %s; start the two programs of a pair", ErrWrongPeer, from, ends.Peer)
	}
	return fmt.Errorf("%w: %s waits for %.100q, but this program is %s; start the two programs of a pair", ErrWrongPeer, ends.Peer, to, ends.Name)
}

func sameRole(ends Ends) error {
	return fmt.Errorf("%w: %s and %s are both the %v; give one of them the other role", ErrWrongPeer, ends.Name, ends.Peer, ends.Role)
}

func peerFailed(peer string) error { return fmt.Errorf("%s: %w", peer, ErrPeerFailed) }
