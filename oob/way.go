package oob

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors of this package, matched with errors.Is. Others come through wrapped: of
// package descriptor where what arrives makes no sense, of the system, of package rdma.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrClosed: the Peer has been closed.
	ErrClosed = errs.ErrClosed
	// ErrInUse: the Peer has exchanged already, or another program of the same name uses the
	// same folder or port.
	ErrInUse = errs.ErrInUse
	// ErrFlushed: the context stopped before what was waited for came.
	ErrFlushed = errs.ErrFlushed
	// ErrWrongPeer: another program than the peer answered, or the peer does not offer what
	// this program expects.
	ErrWrongPeer = errors.New("the programs do not belong together")
	// ErrRejected: the server has rejected this client; the text has its reason.
	ErrRejected = errs.ErrRejected
	// ErrPeerFailed: the peer's program has failed.
	ErrPeerFailed = errors.New("the peer has failed, its own output says why")
)

// Role is what a program is in its pair.
type Role int

// The roles. A pair has one of each.
const (
	// Requester: it looks for the other, and reports at its end how it has ended.
	Requester Role = iota
	// Responder: it waits for the other; over TCP it listens. Peer.Done tells it how the
	// other has ended.
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

// Ends names the two programs, for a Way.
type Ends struct {
	Name string // of this program; letters, digits, and . _ - +
	Peer string // of the other one, likewise
	Role Role   // of this program
	// Note takes a line for the person who runs the program: what to do, or what is
	// wrong meanwhile. It is never nil, and may be called from any goroutine.
	Note func(text string)
}

// Way carries bytes between the programs of a pair: before RDMA can begin, both give
// each other theirs, and at the end the requester reports how it has ended. A Way is for
// one exchange; Peer calls its methods in the order in which they stand here.
//
// What arrives may be hostile: a Way bounds what it reads, and does not interpret it. Peer
// decodes it strictly, and checks that it is from the peer and for this program.
type Way interface {
	// Exchange gives ours to the peer, waits for what the peer gives, and returns it.
	// It is called once, on a goroutine of its own. When ctx ends, it returns soon,
	// with an error that matches context.Cause(ctx). The bytes are a descriptor of
	// kind descriptor.Bundled, which a way that only carries them need not know.
	Exchange(ctx context.Context, ends Ends, ours []byte) (theirs []byte, err error)
	// Done waits until the peer, a requester, has reported how it ended: nil, or an
	// error that matches ErrPeerFailed. It is called after Exchange has succeeded,
	// once at a time, and ends with ctx as Exchange does.
	Done(ctx context.Context) error
	// Close reports, of a requester whose exchange has succeeded, whether it
	// succeeded, and removes what Exchange has made. It is called once, when no other
	// method runs; it may come without Exchange.
	Close(ok bool) error
	// String says which way it is, as in "through the folder /tmp/x".
	String() string
}

// connector is a Way that makes the connections of an exchange itself.
type connector interface {
	Way
	// meet begins the exchange, on the engine's goroutine, and ends it later as
	// Peer.Exchange says. With an error it has not begun.
	meet(ctx context.Context, x *exchange, offer Offer) error
}

// checker is a Way that New asks whether it can be used.
type checker interface{ check(ends Ends) error }

// Ways are the forms that Parse understands.
const Ways = "dir, dir:PATH, tcp:HOST:PORT, cm:HOST:PORT or stdio"

// Parse makes the Way that a text names, such as the value of a flag:
//
//	dir            a folder of the user's own, in the system's for temporary files
//	dir:PATH       the folder PATH, which is made if it is missing
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
	return nil, fmt.Errorf("%w: way %q is none of %s", ErrInvalid, text, strings.Replace(Ways, " or ", " and ", 1))
}

// pollInterval is how often files are looked for.
const pollInterval = 10 * time.Millisecond

// poll calls look until it is done or fails, or ctx ends.
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

// remove removes a file that may be gone already.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// checkName refuses what cannot be the name of a program: it is part of file names.
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

// notFrom is the error of a frame or bundle of other programs.
func notFrom(ends Ends, from, to string) error {
	if from != ends.Peer {
		return fmt.Errorf("%w: it is from %.100q, expected was %s; start the two programs of a pair", ErrWrongPeer, from, ends.Peer)
	}
	return fmt.Errorf("%w: %s waits for %.100q, and this is %s; start the two programs of a pair", ErrWrongPeer, ends.Peer, to, ends.Name)
}

func sameRole(ends Ends) error {
	return fmt.Errorf("%w: %s and %s are both the %v; make one of them the other", ErrWrongPeer, ends.Name, ends.Peer, ends.Role)
}

func peerFailed(peer string) error { return fmt.Errorf("%s: %w", peer, ErrPeerFailed) }
