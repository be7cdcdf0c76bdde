// Package example is what the examples in the verbs' style have in common and are not there
// to show: what the two programs tell each other over TCP before RDMA works between them,
// and the wait for completions.
package example

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Metadata is what one program must know of the other.
type Metadata struct {
	GID     verbs.GID // of its device
	UDPPort uint16    // that its device answers on; zero means 4791
	Source  uint16    // UDP port that its packets come from; zero: from any
	QPN     uint32    // its queue pair
	PSN     uint32    // of the first packet that it sends
	QKey    uint32    // that datagrams to it must carry
	Addr    uint64    // its memory
	RKey    uint32    // the key to that
	Length  uint64    // bytes
}

// Path is the way to the program, from the GID of that index.
func (m *Metadata) Path(gidIndex int) verbs.AddressAttr {
	return verbs.AddressAttr{DGID: m.GID, UDPPort: m.UDPPort, SourceUDPPort: m.Source, SGIDIndex: gidIndex, Port: 1}
}

// FirstGID is the entry of a device's GID table that was asked for, or the first one of
// RoCEv2, or the first at all.
func FirstGID(dev verbs.Device, index *int) (found verbs.GIDEntry, err error) {
	table, err := dev.GIDs(1)
	if err != nil {
		return found, err
	}
	for _, e := range table {
		if index != nil && e.Index == *index || index == nil && e.Type == verbs.GIDRoCEv2 {
			return e, nil
		}
	}
	if index != nil || len(table) == 0 {
		return found, fmt.Errorf("device %s has no such GID", dev.Name())
	}
	return table[0], nil
}

// Conn is the TCP connection to the other program.
type Conn struct {
	conn   net.Conn
	reader *json.Decoder
	stop   func() bool
}

// longest bounds what is read from the other program, in bytes.
const longest = 1 << 20

func newConn(ctx context.Context, conn net.Conn) *Conn {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &Conn{conn, json.NewDecoder(io.LimitReader(conn, longest)), stop}
}

// Accept waits for the other program on an address, and exchanges metadata with it. It says
// so.
func Accept(ctx context.Context, addr string, mine *Metadata, say func(format string, args ...any)) (c *Conn, theirs Metadata, err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, theirs, cause(ctx, err)
	}
	say("waiting for a client on %v (TCP)", l.Addr())
	defer l.Close()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	conn, err := l.Accept()
	if err != nil {
		return nil, theirs, cause(ctx, err)
	}
	return meet(ctx, conn, mine)
}

// Dial connects to the other program, tries again until that is there, and exchanges
// metadata with it. It says what it waits for, and why.
func Dial(ctx context.Context, addr string, mine *Metadata, say func(format string, args ...any)) (c *Conn, theirs Metadata, err error) {
	conn, err := dial(ctx, addr, say)
	if err != nil {
		return nil, theirs, err
	}
	return meet(ctx, conn, mine)
}

func meet(ctx context.Context, conn net.Conn, mine *Metadata) (c *Conn, theirs Metadata, err error) {
	c = newConn(ctx, conn)
	if err = c.Exchange(ctx, mine, &theirs); err != nil {
		return nil, theirs, errors.Join(err, c.Close())
	}
	return c, theirs, nil
}

// sayAfter is how long a dial may take before the program says that it waits.
const sayAfter = 500 * time.Millisecond

func dial(ctx context.Context, addr string, say func(format string, args ...any)) (net.Conn, error) {
	late := time.AfterFunc(sayAfter, func() { say("waiting for an answer of %s (TCP)", addr) })
	defer late.Stop()
	for said := false; ; said = true {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn, nil
		}
		var wrong *net.DNSError
		if errors.As(err, &wrong) && wrong.IsNotFound {
			return nil, err
		}
		if late.Stop(); ctx.Err() == nil && !said {
			say("waiting for the server: %v; trying again", err)
		}
		select {
		case <-ctx.Done():
			return nil, cause(ctx, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Exchange gives the other program what this one has to say, and takes what the other
// says.
func (c *Conn) Exchange(ctx context.Context, mine, theirs any) error {
	text, err := json.Marshal(mine)
	if err == nil {
		_, err = c.conn.Write(append(text, '\n')) // a decoder sees the end of a string only by what follows
	}
	if err == nil {
		err = c.reader.Decode(theirs)
	}
	if err != nil {
		return cause(ctx, fmt.Errorf("exchange with the program at %v: %w", c.conn.RemoteAddr(), err))
	}
	return nil
}

// Sync waits until the other program has come to the same step.
func (c *Conn) Sync(ctx context.Context, step string) error {
	var theirs string
	if err := c.Exchange(ctx, step, &theirs); err != nil {
		return err
	}
	if theirs != step {
		return fmt.Errorf("the program at %v is at the step %.40q, and this one at %q", c.conn.RemoteAddr(), theirs, step)
	}
	return nil
}

// Close ends the connection.
func (c *Conn) Close() error {
	c.stop()
	if err := c.conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// cause is why ctx has ended, if it has, and otherwise the error.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Wait polls until there is a completion, and returns it. One that is not successful is an
// error.
func Wait(ctx context.Context, cq verbs.CQ) (verbs.WC, error) {
	var wc [1]verbs.WC
	err := wait(ctx, &wc[0], func() (int, error) { return cq.Poll(wc[:]) })
	return wc[0], err
}

func wait(ctx context.Context, wc *verbs.WC, poll func() (int, error)) error {
	for {
		n, err := poll()
		switch {
		case err != nil:
			return err
		case n > 0 && wc.Status != verbs.StatusSuccess:
			return fmt.Errorf("request %d failed: %v", wc.ID, wc.Status)
		case n > 0:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}
