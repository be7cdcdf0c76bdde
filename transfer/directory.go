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
	Addr  string // HOST:PORT
	Epoch uint64 // of the agent, which changes when it is opened again; zero: not known
}

var (
	// ErrNoAgent: the directory has no agent of that name.
	ErrNoAgent = errors.New("no such agent")
	// ErrOldEntry: another agent, or a later one, answers at the address of the entry.
	ErrOldEntry = errors.New("the entry of the directory is of another agent than the one that answers; look it up again")
)

// Publish enters the agent, by its first address, into a directory. The name has 1 to 64 bytes of
// printable text without spaces. Call withdraw before Close.
func (a *Agent) Publish(ctx context.Context, d Directory, name string) (withdraw func() error, err error) {
	if len(a.addrs) == 0 {
		err = fmt.Errorf("%w: the agent does not listen; set Config.Listen", ErrInvalid)
	} else if err = checkName(name); err == nil {
		withdraw, err = d.Publish(ctx, name, Entry{a.addrs[0].String(), a.epoch})
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
	p, err := a.Dial(ctx, e.Addr)
	if err != nil {
		return nil, fmt.Errorf("dial the transfer agent %q: %w", name, err)
	}
	a.mu.Lock()
	epoch := p.reached.Epoch
	a.mu.Unlock()
	if e.Epoch != 0 && e.Epoch != epoch {
		p.Close()
		return nil, fmt.Errorf("dial the transfer agent %q at %s: %w", name, e.Addr, ErrOldEntry)
	}
	return p, nil
}

// MarshalText returns the entry as UnmarshalText reads it: the epoch in 16 hexadecimal digits, a space, and the
// address.
func (e Entry) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%016x %s", e.Epoch, e.Addr), checkAddr(e.Addr)
}

// UnmarshalText reads what MarshalText has written, and nothing else.
func (e *Entry) UnmarshalText(text []byte) error {
	word, addr, _ := strings.Cut(string(text), " ")
	epoch, err := strconv.ParseUint(word, 16, 64)
	if err != nil || fmt.Sprintf("%016x", epoch) != word {
		return fmt.Errorf("%w: the epoch %.40q is not 16 hexadecimal digits", ErrInvalid, word)
	}
	*e = Entry{addr, epoch}
	return checkAddr(addr)
}

func checkName(name string) error {
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, unprintable) || name[0] == '#' {
		return fmt.Errorf("%w: the name %.100q is not 1 to 64 bytes of printable text without spaces, which does not begin with #", ErrInvalid, name)
	}
	return nil
}

// unprintable reports what a name and an address cannot have, a space too.
func unprintable(r rune) bool { return r == ' ' || r == utf8.RuneError || !unicode.IsPrint(r) }

func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || n == 0 || host == "" || len(addr) > 300 || strings.ContainsFunc(addr, unprintable) {
		return fmt.Errorf("%w: the address %.300q is not HOST:PORT", ErrInvalid, addr)
	}
	return nil
}

// StaticDirectory is a Directory that does not change: names and addresses. It knows no epochs, so
// whoever listens at an address is the agent.
type StaticDirectory map[string]string

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

// ParseDirectory reads lines of NAME HOST:PORT. Empty lines, and those that begin with #, say nothing. The
// error has the number of the line, and matches ErrInvalid, or ErrExists for a name that comes twice.
func ParseDirectory(text []byte) (StaticDirectory, error) {
	d, n := StaticDirectory{}, 0
	for line := range bytes.Lines(text) {
		n++
		words := strings.Fields(string(line))
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		var err error
		if len(words) != 2 {
			err = fmt.Errorf("%w: it has %d words, and not NAME HOST:PORT", ErrInvalid, len(words))
		} else if err = errors.Join(checkName(words[0]), checkAddr(words[1])); err == nil && d[words[0]] != "" {
			err = fmt.Errorf("the name %q: %w", words[0], ErrExists)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		d[words[0]] = words[1]
	}
	return d, nil
}

// Publish only checks that the directory has the name.
func (d StaticDirectory) Publish(ctx context.Context, name string, _ Entry) (withdraw func() error, err error) {
	_, err = d.Find(ctx, name)
	return func() error { return nil }, err
}

// Find returns the address of a name.
func (d StaticDirectory) Find(_ context.Context, name string) (Entry, error) {
	if addr, found := d[name]; found {
		return Entry{Addr: addr}, nil
	}
	return Entry{}, fmt.Errorf("%w: %q is not among the %d names of the static directory", ErrNoAgent, name, len(d))
}
