package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Directory is where agents find each other by name. Package oob/etcd, a module of its own, has one in
// an etcd cluster.
type Directory interface {
	// Publish enters an agent, in place of an earlier one of the name, until withdraw or the end of
	// the program.
	Publish(ctx context.Context, name string, e Entry) (withdraw func() error, err error)
	// Find returns the entry of a name. The error matches ErrNoAgent if there is none.
	Find(ctx context.Context, name string) (Entry, error)
}

// Entry says where an agent listens.
type Entry struct {
	Addrs []string // 1 to 8, each HOST:PORT, or with SRD IP:PORT/QPN
	Epoch uint64   // of the agent, which changes when it is opened again; zero: not known
}

var (
	// ErrNoAgent: the directory has no agent of that name.
	ErrNoAgent = errors.New("no such agent")
	// ErrOldEntry: another agent, or a later one, answers at the address of the entry.
	ErrOldEntry = errors.New("the entry of the directory is of another agent than the one that answers; look it up again")
)

// Publish enters the agent, by its addresses, into a directory. The name has 1 to 64 bytes of printable text
// without spaces. Call withdraw before Close.
func (a *Agent) Publish(ctx context.Context, d Directory, name string) (withdraw func() error, err error) {
	if len(a.addrs) == 0 {
		err = fmt.Errorf("%w: the agent does not listen; set Config.Listen", ErrInvalid)
	} else if err = checkName(name); err == nil {
		e := Entry{Epoch: a.epoch}
		for _, addr := range a.addrs {
			e.Addrs = append(e.Addrs, addr.String())
		}
		withdraw, err = d.Publish(ctx, name, e)
	}
	if err != nil {
		return nil, fmt.Errorf("publish the transfer agent %q: %w", name, err)
	}
	return withdraw, nil
}

// DialName dials the agent that has a name in a directory. If the one that answers has another epoch than
// the entry, DialName fails with ErrOldEntry. Its other errors are those of Directory.Find and Dial.
func (a *Agent) DialName(ctx context.Context, d Directory, name string) (*Peer, error) {
	e, err := d.Find(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("find the transfer agent %q: %w", name, err)
	}
	p, err := a.Dial(ctx, e.Addrs...)
	if err != nil {
		return nil, fmt.Errorf("dial the transfer agent %q: %w", name, err)
	}
	if e.Epoch != 0 && e.Epoch != p.Epoch() {
		p.Close()
		return nil, fmt.Errorf("dial the transfer agent %q at %v: %w", name, p, ErrOldEntry)
	}
	return p, nil
}

// MarshalText returns the entry as UnmarshalText reads it: the epoch in 16 hexadecimal digits, and the addresses, after
// a space each.
func (e Entry) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%016x %s", e.Epoch, strings.Join(e.Addrs, " ")), checkAddrs(e.Addrs)
}

// UnmarshalText reads what MarshalText has written, and nothing else.
func (e *Entry) UnmarshalText(text []byte) error {
	word, addrs, _ := strings.Cut(string(text), " ")
	epoch, err := strconv.ParseUint(word, 16, 64)
	if err != nil || fmt.Sprintf("%016x", epoch) != word {
		return fmt.Errorf("%w: the epoch %.40q is not 16 hexadecimal digits", ErrInvalid, word)
	}
	*e = Entry{strings.Split(addrs, " "), epoch}
	return checkAddrs(e.Addrs)
}

func checkName(name string) error {
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, unprintable) || name[0] == '#' {
		return fmt.Errorf("%w: the name %.100q is not 1 to 64 bytes of printable text without spaces, which does not begin with #", ErrInvalid, name)
	}
	return nil
}

// unprintable reports what a name and an address cannot have, a space too.
func unprintable(r rune) bool { return r == ' ' || r == utf8.RuneError || !unicode.IsPrint(r) }

func checkAddrs(addrs []string) error {
	if n := len(addrs); n < 1 || n > maxDevices {
		return fmt.Errorf("%w: an agent has 1 to %d addresses, not %d", ErrInvalid, maxDevices, n)
	}
	for _, addr := range addrs {
		at, _, srd := strings.Cut(addr, "/")
		host, port, err := net.SplitHostPort(at)
		if srd {
			_, err = parseAddr(addr)
		}
		n, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || portErr != nil || n == 0 || host == "" || len(addr) > 300 || strings.ContainsFunc(addr, unprintable) {
			return fmt.Errorf("%w: the address %.300q is not HOST:PORT, nor IP:PORT/QPN", ErrInvalid, addr)
		}
	}
	return nil
}

// StaticDirectory is a Directory that does not change: names and addresses. It knows no epochs, so
// whoever listens at an address is the agent.
type StaticDirectory map[string][]string

// ReadDirectory reads a StaticDirectory from a file: see ParseDirectory.
func ReadDirectory(file string) (StaticDirectory, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	d, err := ParseDirectory(text)
	if err != nil {
		return nil, fmt.Errorf("read the directory %s: %w", file, err)
	}
	return d, nil
}

// ParseDirectory reads lines of NAME HOST:PORT, with up to 8 addresses as in an Entry. Empty lines, and those that begin with #, say
// nothing. The error has the number of the line, and matches ErrInvalid, or ErrExists for a name that comes twice.
func ParseDirectory(text []byte) (StaticDirectory, error) {
	d, n := StaticDirectory{}, 0
	for line := range bytes.Lines(text) {
		n++
		words := strings.Fields(string(line))
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		err := errors.Join(checkName(words[0]), checkAddrs(words[1:]))
		if err == nil && d[words[0]] != nil {
			err = fmt.Errorf("the name %q: %w", words[0], ErrExists)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		d[words[0]] = words[1:]
	}
	return d, nil
}

// Publish only checks that the directory has the name.
func (d StaticDirectory) Publish(ctx context.Context, name string, _ Entry) (withdraw func() error, err error) {
	_, err = d.Find(ctx, name)
	return func() error { return nil }, err
}

// Find returns the addresses of a name.
func (d StaticDirectory) Find(_ context.Context, name string) (Entry, error) {
	if addrs, found := d[name]; found {
		return Entry{Addrs: addrs}, nil
	}
	return Entry{}, fmt.Errorf("%w: %q is not among the %d names of the static directory", ErrNoAgent, name, len(d))
}
