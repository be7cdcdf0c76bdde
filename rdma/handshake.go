package rdma

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// A reliable connection has no handshake of its own when descriptors travel out
// of band: a queue pair that is ready to send says nothing of its peer. So the
// ends say hello, in a way that needs nothing but verbs and takes no receive: one
// of them, the active one, writes 8 bytes that only holders of the descriptor
// know to a word of the other's memory. When the write is acknowledged, the
// passive end must be up; when the word has arrived, the active end is. A write of
// no bytes would not be seen, and a send would take a receive.
//
// The end with the larger nonce is the active one. It repeats the hello with the
// same sequence numbers until the peer answers, so that one which executed it, and
// whose acknowledgement was lost, takes it for the duplicate that it is.

type role int

const (
	passive role = iota
	active
	itself
)

type handshake struct {
	role    role
	began   time.Time
	attempt uint32
	posted  bool      // a hello is under way
	again   time.Time // when to give it up (if posted), or try the next
}

const (
	// helloDepth is the place of the hello in the send queue. A message of the
	// peer can make a connection Ready while the hello still has it.
	helloDepth = 1
	// helloPatience is how long one hello may stay unanswered where the device
	// itself would wait for ever.
	helloPatience = 250 * time.Millisecond
	helloPause    = time.Millisecond
	minTick       = time.Millisecond
	maxTick       = 20 * time.Millisecond
)

// openHello makes the memory that hellos arrive in.
func (c *Context) openHello() error {
	var err error
	if c.hello, err = mmap.New(c.dev, mmap.Config{
		Size: 8 * c.set.MaxConnections, Permissions: mmap.LocalReadWrite | mmap.RemoteWrite, PD: c.set.PD,
	}); err != nil {
		return err
	}
	desc, err := c.hello.ExportPD(c.set.PD)
	if err != nil {
		return err
	}
	seen, err := mmap.Import(c.dev, desc)
	if err != nil {
		return err
	}
	c.helloKey = seen.RKey()
	return seen.Close()
}

// word is the connection's word of the memory that hellos arrive in. The device
// writes it at any time.
func (conn *Connection) word() *uint64 {
	return (*uint64)(unsafe.Pointer(&conn.ctx.hello.Bytes()[8*conn.slot]))
}

func (conn *Connection) clearHello() { atomic.StoreUint64(conn.word(), 0) }

// helloArrived reports whether the peer has written this end's nonce.
func (conn *Connection) helloArrived() bool {
	var want [8]byte
	binary.BigEndian.PutUint64(want[:], conn.local.nonce)
	return atomic.LoadUint64(conn.word()) == binary.NativeEndian.Uint64(want[:])
}

func (conn *Connection) beginHandshake() error {
	c := conn.ctx
	conn.shake = handshake{role: passive, began: time.Now()}
	switch order := conn.local.compare(&conn.peer); {
	case order > 0:
		conn.shake.role = active
	case order == 0:
		conn.shake.role = itself
	}
	if err := conn.up(); err != nil {
		if again := conn.reset(); again != nil {
			conn.fail(fmt.Errorf("rdma: %v: %w: %w", conn, ErrDevice, again))
		}
		return err
	}
	conn.state = Connecting
	if conn.shake.role == itself {
		conn.ready()
		return nil
	}
	c.connecting = append(c.connecting, conn)
	if conn.shake.role == active {
		conn.postHello()
	}
	c.poke()
	return nil
}

// leaveHandshake takes the connection off the list of those under way.
func (c *Context) leaveHandshake(conn *Connection) {
	c.connecting = slices.DeleteFunc(c.connecting, func(o *Connection) bool { return o == conn })
}

// shakeHands takes all handshakes further and returns how many ended.
func (c *Context) shakeHands() int {
	n, now := 0, time.Now()
	// Backwards: those that end leave the list.
	for i := len(c.connecting) - 1; i >= 0; i-- {
		conn := c.connecting[i]
		conn.stepHandshake(now)
		if conn.state != Connecting {
			n++
		}
	}
	return n
}

func (conn *Connection) stepHandshake(now time.Time) {
	limit := conn.ctx.set.ConnectTimeout
	switch {
	case conn.shake.role == passive && conn.helloArrived():
		conn.ready()
	case limit > 0 && now.Sub(conn.shake.began) >= limit:
		conn.fail(fmt.Errorf("rdma: %v: %w: the peer did not answer for %v; check that it has this end's descriptor, that it runs, and that UDP packets get through",
			conn, ErrTimeout, limit))
	case conn.shake.role == active && !conn.shake.again.IsZero() && !now.Before(conn.shake.again):
		if err := conn.reset(); err != nil {
			conn.fail(fmt.Errorf("rdma: %v: %w: %w", conn, ErrDevice, err))
		} else if err := conn.up(); err != nil {
			conn.fail(fmt.Errorf("rdma: %v: %w: %w", conn, ErrDevice, err))
		} else {
			conn.postHello()
		}
	}
}

// postHello writes the peer's nonce to its word.
func (conn *Connection) postHello() {
	c := conn.ctx
	off := 8 * conn.slot
	binary.BigEndian.PutUint64(c.scratch.Bytes()[off:], conn.peer.nonce)
	sg := c.scratchSG
	sg.Addr += uint64(off)
	conn.shake.attempt++
	conn.shake.posted, conn.shake.again = true, time.Time{}
	if conn.ctx.set.timeout == 0 {
		conn.shake.again = time.Now().Add(helloPatience)
	}
	_, err := conn.qp.PostSend([]verbs.SendWR{{
		ID:    conn.helloID(),
		Op:    verbs.OpWrite,
		Flags: verbs.FlagSignaled,
		SGL:   []verbs.SGE{sg}, RemoteAddr: conn.peer.helloAddr, RKey: conn.peer.helloKey,
	}})
	if err != nil {
		conn.fail(fmt.Errorf("rdma: %v: %w: %w", conn, ErrDevice, err))
	}
}

// helloID tells attempts apart: a completion of one that was given up may still
// be on its way.
func (conn *Connection) helloID() uint64 {
	return idHello | uint64(conn.shake.attempt&0x3fffffff)<<32 | uint64(conn.slot)
}

func (c *Context) helloDone(wc *verbs.WC) {
	slot := int(uint32(wc.ID))
	if slot >= len(c.slots) {
		return
	}
	conn := c.slots[slot]
	if conn == nil || conn.qpn != wc.QPN || conn.state != Connecting || wc.ID != conn.helloID() {
		return
	}
	conn.shake.posted = false
	switch wc.Status {
	case verbs.StatusSuccess:
		conn.ready()
	case verbs.StatusRetryExceeded, verbs.StatusResponseTimeout:
		conn.shake.again = time.Now().Add(helloPause)
	default:
		conn.fail(fmt.Errorf("rdma: %v: %w: the peer did not take the hello: %w", conn, ErrMismatch,
			&TaskError{Op: OpWrite, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}))
	}
}

// ready ends the handshake well.
func (conn *Connection) ready() {
	c := conn.ctx
	c.leaveHandshake(conn)
	conn.state = Ready
	if conn.shake.role == passive && c.set.access&verbs.AccessRemoteWrite == 0 {
		// The hello needed the right to write; nothing else shall have it.
		if err := conn.qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend, Access: c.set.access}, verbs.QPAttrState|verbs.QPAttrAccess); err != nil {
			conn.fail(fmt.Errorf("rdma: %v: %w: taking back the right to write: %w", conn, ErrDevice, err))
			return
		}
	}
	c.report(conn, Ready, nil)
}

// nextTick is how soon Progress has to look at the time or at memory; zero means
// that nothing waits for it. Long waits are looked at less often.
func (c *Context) nextTick() time.Duration {
	if len(c.connecting) == 0 && len(c.ailing) == 0 {
		return 0
	}
	waited := time.Duration(0)
	if len(c.connecting) > 0 {
		// The last one in is the youngest.
		waited = time.Since(c.connecting[len(c.connecting)-1].shake.began)
	}
	return min(max(waited/64, minTick), maxTick)
}
