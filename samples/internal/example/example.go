// Package example has the common code of the examples for package verbs that is not worth
// showing in each: the exchange of metadata over TCP before RDMA works, and the wait for
// completions.
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

// Metadata is the data that one program needs of the other.
type Metadata struct {
	GID     verbs.GID // of the program's device
	UDPPort uint16    // that the device receives on; zero means 4791
	Source  uint16    // UDP port that the device sends from; zero: any
	QPN     uint32    // of the program's queue pair
	PSN     uint32    // of the first packet that the program sends
	QKey    uint32    // that datagrams to the program must carry
	Addr    uint64    // of the program's memory
	RKey    uint32    // of that memory
	Length  uint64    // of that memory, in bytes
}

// Path returns the route to the program, from the GID of that index.
func (m *Metadata) Path(gidIndex int) verbs.AddressAttr {
	return verbs.AddressAttr{DGID: m.GID, UDPPort: m.UDPPort, SourceUDPPort: m.Source, SGIDIndex: gidIndex, Port: 1}
}

// FirstGID returns the entry of a device's GID table with the given index. Without an index it
// returns the first entry of RoCEv2, or else the first entry.
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
		return found, fmt.Errorf("the GID table of device %s has no such entry", dev.Name())
	}
	return table[0], nil
}

// Conn is the TCP connection to the other program.
type Conn struct {
	conn   net.Conn
	reader *json.Decoder
	stop   func() bool
}

// maxValue bounds the size of what the other program may send, in bytes.
const maxValue = 1 << 20

// Accept waits for the other program on an address, and exchanges metadata with it. It reports
// through say that it waits.
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
	return exchangeFirst(ctx, conn, mine)
}

// Dial connects to the other program, retrying until that is up, and exchanges metadata with
// it. It reports through say what it waits for, and why.
func Dial(ctx context.Context, addr string, mine *Metadata, say func(format string, args ...any)) (c *Conn, theirs Metadata, err error) {
	say("connecting to %s (TCP)", addr)
	for said := false; ; said = true {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return exchangeFirst(ctx, conn, mine)
		}
		var wrong *net.DNSError
		if errors.As(err, &wrong) && wrong.IsNotFound {
			return nil, theirs, err
		}
		if ctx.Err() == nil && !said {
			say("waiting for the server: %v; trying again", err)
		}
		select {
		case <-ctx.Done():
			return nil, theirs, cause(ctx, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func exchangeFirst(ctx context.Context, conn net.Conn, mine *Metadata) (c *Conn, theirs Metadata, err error) {
	c = &Conn{conn, json.NewDecoder(io.LimitReader(conn, maxValue)), context.AfterFunc(ctx, func() { _ = conn.Close() })}
	if err = c.Exchange(ctx, mine, &theirs); err != nil {
		return nil, theirs, errors.Join(err, c.Close())
	}
	return c, theirs, nil
}

// Exchange sends mine to the other program, and receives its value into theirs.
func (c *Conn) Exchange(ctx context.Context, mine, theirs any) error {
	text, err := json.Marshal(mine)
	if err == nil {
		_, err = c.conn.Write(append(text, '\n')) // a JSON decoder needs the next byte to find the end of some values
	}
	if err == nil {
		err = c.reader.Decode(theirs)
	}
	if err != nil {
		return cause(ctx, fmt.Errorf("exchange with the program at %v: %w", c.conn.RemoteAddr(), err))
	}
	return nil
}

// Sync waits until the other program has reached the same step.
func (c *Conn) Sync(ctx context.Context, step string) error {
	var theirs string
	if err := c.Exchange(ctx, step, &theirs); err != nil {
		return err
	}
	if theirs != step {
		return fmt.Errorf("the program at %v is at step %.40q, this program at %q", c.conn.RemoteAddr(), theirs, step)
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

// cause returns why ctx has ended or, if it has not, err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Wait polls until there is a completion, and returns it. It fails if the completion is not
// successful.
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
