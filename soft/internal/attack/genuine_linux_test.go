package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// client is an attacker with an ordinary device. Its process ends with the attack.
type client struct {
	dev  *soft.Device
	rdma *rdma.Connections

	mu    sync.Mutex
	write wire.RETH // where the device last wrote 8 bytes: a ready word
}

func newClient(connections int) (*client, error) {
	c := &client{}
	var err error
	if c.dev, err = soft.Open(soft.Config{Capture: c}); err != nil {
		return nil, err
	}
	engine := pe.New(pe.Config{})
	if c.rdma, err = rdma.New(c.dev, rdma.Config{Engine: engine, MaxConnections: connections}); err != nil {
		return nil, err
	}
	go func() { _ = await.Run(context.Background(), engine) }()
	return c, await.Start(context.Background(), c.rdma)
}

// Write takes the packets of the device, as a capture does.
func (c *client) Write(b []byte) (int, error) {
	var p wire.Packet
	if len(b) > recordHeader+28 && b[packetTypeAt] == typeSent && p.Parse(b[recordHeader+28:]) == nil && p.Opcode == wire.RCWriteOnly && p.RETH.Length == 8 {
		c.mu.Lock()
		c.write = p.RETH
		c.mu.Unlock()
	}
	return len(b), nil
}

func (c *client) do(f func() error) error {
	return await.Func(context.Background(), c.rdma.Engine(), f)
}

// export makes connections, and lets the right victim connect to them.
func (c *client) export(a *attacker, n int) (conns []*rdma.Connection, theirs [][]byte, err error) {
	var mine [][]byte
	err = c.do(func() error {
		for range n {
			conn, desc, err := c.rdma.Export()
			if err != nil {
				return err
			}
			conns, mine = append(conns, conn), append(mine, desc)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	answer, err := a.ask(message{Kind: "peers", Data: mine})
	if err == nil && answer.Text != "" {
		err = errors.New(answer.Text)
	}
	return conns, answer.Data, err
}

// stayHalfOpen leaves thousands of connections half-open.
func stayHalfOpen(a *attacker) error {
	connections := 8000
	if a.short {
		connections = 200
	}
	c, err := newClient(connections)
	for done := 0; err == nil && done < connections && !a.stopped(); done += 100 {
		_, _, err = c.export(a, 100)
	}
	for err == nil && !a.stopped() {
		time.Sleep(time.Millisecond)
	}
	return a.unlessStopped(err)
}

// overwriteReadyWords writes to the words beside that of the attacker's own connection.
func overwriteReadyWords(a *attacker) error {
	c, err := newClient(1000)
	if err != nil {
		return err
	}
	m, err := mmap.Alloc(c.dev, 8, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	for try := uint64(0); !a.stopped(); try++ {
		word, conn, err := c.readyWord(a)
		if err != nil {
			return a.unlessStopped(err)
		}
		other, err := mmap.FromKey(c.dev, word.VA+8-16*(try%2), 8, word.RKey, mmap.RemoteWrite)
		if err != nil {
			return err
		}
		if await.Write(context.Background(), conn, bufinv.Source(m, 0, 8), bufinv.Target(other, 0, 8)) == nil {
			a.achieved(injected, "the ready word of another connection was written")
		}
	}
	return nil
}

// readyWord makes a connection with the client as the active end, and returns the place of the
// peer's ready word.
func (c *client) readyWord(a *attacker) (word wire.RETH, conn *rdma.Connection, err error) {
	for !a.stopped() {
		conns, theirs, err := c.export(a, 1)
		if err != nil {
			return word, nil, err
		}
		conn = conns[0]
		c.mu.Lock()
		c.write = wire.RETH{}
		c.mu.Unlock()
		if err := c.do(func() error { return conn.Connect(theirs[0]) }); err != nil {
			return word, nil, err
		}
		for state := rdma.Connecting; state == rdma.Connecting && !a.stopped(); time.Sleep(time.Millisecond) {
			if err := c.do(func() error { state = conn.State(); return nil }); err != nil {
				return word, nil, err
			}
		}
		c.mu.Lock()
		word = c.write
		c.mu.Unlock()
		if word.VA != 0 {
			return word, conn, nil
		}
		if err := c.do(conn.Close); err != nil {
			return word, nil, err
		}
	}
	return word, nil, errStopped
}

// offerDescriptors gives malformed descriptors to a victim.
func offerDescriptors(a *attacker) error {
	e := a.ends[2+idle]
	kind, payload, err := descriptor.Parse(e.Conn)
	if err != nil {
		return err
	}
	gid := verbs.GIDFromAddr(e.Addr.Addr())
	at, qpn := bytes.Index(payload, gid[:]), bytes.Index(payload, binary.BigEndian.AppendUint32(nil, e.QPN))
	if at < 0 || qpn < 0 {
		return fmt.Errorf("find %v and queue pair %#x in the payload % x", e.Addr, e.QPN, payload)
	}
	var taken []string
	offer := func(desc []byte, what string) error {
		a.others++
		answer, err := a.ask(message{Kind: "descriptor", Data: [][]byte{desc}})
		if err == nil && answer.Text == "" {
			taken = append(taken, what)
		}
		return err
	}
	for _, lie := range []struct {
		what string
		at   int
		b    []byte
	}{
		{"the broadcast address", at, gidOf("255.255.255.255")},
		{"the broadcast address of the network", at, gidOf("127.255.255.255")},
		{"no address", at, gidOf("0.0.0.0")},
		{"a multicast group", at, gidOf("239.1.2.3")},
		{"a multicast group of IPv6", at, gidOf("ff02::1")},
		{"UDP port 0", at + 16, []byte{0, 0}},
		{"queue pair 0", qpn, []byte{0, 0, 0, 0}},
		{"queue pair 1", qpn, []byte{0, 0, 0, 1}},
		{"the queue pair of multicast groups", qpn, []byte{0, 0xff, 0xff, 0xff}},
		{"a queue pair of 32 bits", qpn, []byte{1, 0, 0, 5}},
	} {
		b := bytes.Clone(payload)
		copy(b[lie.at:], lie.b)
		desc, err := descriptor.Encode(kind, b)
		if err == nil {
			err = offer(desc, lie.what)
		}
		if err != nil {
			return a.unlessStopped(err)
		}
	}
	for n := range e.Conn {
		if err := offer(e.Conn[:n], fmt.Sprintf("only %d of %d bytes", n, len(e.Conn))); err != nil {
			return a.unlessStopped(err)
		}
	}
	for n := range payload {
		desc, err := descriptor.Encode(kind, payload[:n])
		if err == nil {
			err = offer(desc, fmt.Sprintf("only %d of %d bytes of payload", n, len(payload)))
		}
		if err != nil {
			return a.unlessStopped(err)
		}
	}
	if err := offer(append(bytes.Clone(e.Conn), 0), "a byte too many"); err != nil {
		return a.unlessStopped(err)
	}
	if len(taken) > 0 {
		a.achieved(accepted, "descriptors with %s", strings.Join(taken, ", "))
	}
	return nil
}

func gidOf(addr string) []byte {
	gid := verbs.GIDFromAddr(netip.MustParseAddr(addr))
	return gid[:]
}
