package sharedport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/unixsocket"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// Times for which other processes, which may be stopped, are waited for.
const (
	lockTimeout   = 2 * time.Second
	joinTimeout   = time.Second
	answerTimeout = 250 * time.Millisecond
	// endTime is how long a process that ends may have a port without a name, or a name without a port.
	endTime    = 100 * time.Millisecond
	retryPause = 5 * time.Millisecond
)

// Lock keeps other processes from joining groups and claiming slots, so that those that start at the same
// moment find each other.
func Lock() (unlock func(), err error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lock the shared ports: %w", os.NewSyscallError("socket", err))
	}
	for start := time.Now(); ; time.Sleep(retryPause) {
		err = unix.Bind(sock, &unix.SockaddrUnix{Name: fmt.Sprintf("@verbena/port/%d/lock", os.Geteuid())})
		if err == nil {
			return func() { _ = unix.Close(sock) }, nil
		}
		if err != unix.EADDRINUSE || time.Since(start) > lockTimeout {
			_ = unix.Close(sock)
			return nil, fmt.Errorf("lock the shared ports: %w", os.NewSyscallError("bind", err))
		}
	}
}

// Group are the sockets of one address and port. Its methods may be called from any goroutine.
type Group struct {
	cfg    link.Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	serving sync.WaitGroup
	answers chan struct{} // those under way

	mu      sync.Mutex // no other lock is taken under it
	sockets []int      // by slot
	table   int        // the file of the ports; 0: none yet
	ports   [link.Slots]uint16
	claims  map[int]*net.UnixListener // by slot
	closed  bool
}

// Join opens the group of an address and port, or joins that of other processes. [Lock] is held. The error
// matches EADDRINUSE if a process has the port that does not share it with this one.
func Join(cfg link.Config) (*Group, error) {
	g := &Group{cfg: cfg, claims: make(map[int]*net.UnixListener), answers: make(chan struct{}, maxAnswers)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	for start := time.Now(); ; time.Sleep(retryPause) {
		sock, err := link.Bind(cfg)
		if err == nil {
			g.sockets = []int{sock}
			return g, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("share UDP %v: %w", cfg.Addr, err)
		}
		asked, found := g.askAll()
		if found {
			return g, nil
		}
		if asked || time.Since(start) > endTime {
			return nil, fmt.Errorf("share UDP %v: no process of this user hands it over: %w", cfg.Addr, err)
		}
	}
}

// name is the name of the socket that claims a slot.
func (g *Group) name(slot int) string {
	return fmt.Sprintf("@verbena/port/%d/%v/%d", os.Geteuid(), g.cfg.Addr, slot)
}

// askAll asks the processes with a slot for the sockets. asked: one of them has not answered in time.
func (g *Group) askAll() (asked, found bool) {
	ctx, cancel := context.WithTimeout(g.ctx, joinTimeout)
	defer cancel()
	for slot := range link.Slots {
		err := g.ask(ctx, slot)
		if err == nil {
			return false, true
		}
		asked = asked || errors.Is(err, os.ErrDeadlineExceeded)
	}
	return asked, false
}

// A process that joins sends request. It gets the sockets of all slots and the table, with reply.
const (
	request = 'j'
	reply   = 's'
	handed  = link.Slots + 1 // files
)

func (g *Group) ask(ctx context.Context, slot int) error {
	conn, err := unixsocket.Dial(ctx, "unix", g.name(slot))
	if err != nil {
		return err
	}
	defer unixsocket.Close(conn)
	_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	if err := checkUser(conn); err != nil {
		return err
	}
	// The peer sends files once it has the request, and could not before they are allowed.
	if err := unixsocket.AllowFiles(conn); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{request}); err != nil {
		return err
	}
	control := make([]byte, unix.CmsgSpace(4*handed))
	n, size, _, _, err := conn.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return err
	}
	var files []int
	messages, err := unix.ParseSocketControlMessage(control[:size])
	for i := range messages {
		list, failed := unix.ParseUnixRights(&messages[i])
		files, err = append(files, list...), errors.Join(err, failed)
	}
	if err == nil && (n != 1 || len(files) != handed) {
		err = fmt.Errorf("it handed over %d files, not %d", len(files), handed)
	}
	for i := 0; err == nil && i < link.Slots; i++ {
		var at netip.AddrPort
		if at, err = link.BoundAddr(files[i]); err == nil && at != g.cfg.Addr {
			err = fmt.Errorf("it handed over a socket at %v", at)
		}
	}
	if err != nil {
		closeAll(files)
		return err
	}
	g.sockets, g.table = files[:link.Slots:link.Slots], files[link.Slots]
	return nil
}

func checkUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			err = unixsocket.CheckUser(cred.Uid)
		}
	})
	return errors.Join(err, failed)
}

func closeAll(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}

// Claim claims a slot, and reports whether it was free. [Lock] is held, if it is the first.
func (g *Group) Claim(slot int) bool {
	l, err := unixsocket.Listen("unix", g.name(slot))
	if err != nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		_ = l.Close()
		return false
	}
	g.claims[slot] = l
	g.serving.Go(func() { unixsocket.Serve(l, g.accept) })
	return true
}

// Release gives up a slot that was not used.
func (g *Group) Release(slot int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.claims[slot].Close()
	delete(g.claims, slot)
}

// maxAnswers bounds the connections of other processes.
const maxAnswers = 16

// accept answers a process of the same user.
func (g *Group) accept(conn *net.UnixConn) {
	if checkUser(conn) == nil {
		select {
		case g.answers <- struct{}{}:
			g.serving.Go(func() {
				g.answer(conn)
				<-g.answers
			})
			return
		default:
		}
	}
	unixsocket.Close(conn)
}

// answer hands the sockets to a process that joins.
func (g *Group) answer(conn *net.UnixConn) {
	defer unixsocket.Close(conn)
	_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	defer context.AfterFunc(g.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	var b [1]byte
	if n, err := conn.Read(b[:]); err != nil || n != 1 || b[0] != request {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.open(link.Slots) != nil || g.makeTable() != nil {
		return
	}
	_, _, _ = conn.WriteMsgUnix([]byte{reply}, unix.UnixRights(append(append([]int(nil), g.sockets...), g.table)...), nil) // it does not wait: nothing was sent before
}

// open opens the sockets of the first n slots, if this process is the only one of the group.
func (g *Group) open(n int) error {
	for len(g.sockets) < n {
		var slots []int
		for slot := range len(g.sockets) + 1 {
			slots = append(slots, slot)
		}
		sock, err := link.BindAnother(g.cfg, g.sockets[0], slots)
		if err != nil {
			return fmt.Errorf("share UDP %v: open another socket: %w", g.cfg.Addr, err)
		}
		g.sockets = append(g.sockets, sock)
	}
	return nil
}

// makeTable makes the table for several processes.
func (g *Group) makeTable() (err error) {
	if g.table != 0 {
		return nil
	}
	if g.table, err = unix.MemfdCreate("verbena ports", unix.MFD_CLOEXEC); err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	for slot, port := range g.ports {
		g.write(slot, port)
	}
	return nil
}

func (g *Group) write(slot int, port uint16) {
	_, _ = unix.Pwrite(g.table, binary.BigEndian.AppendUint16(nil, port), int64(2*slot))
}

// SetPort tells the others the UDP port by which the device of a claimed slot is reached alone.
func (g *Group) SetPort(slot int, port uint16) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ports[slot] = port
	if g.table != 0 {
		g.write(slot, port)
	}
}

// Port returns the UDP port by which the device of a slot is, or was, reached alone; 0: unknown.
func (g *Group) Port(slot int) uint16 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.table == 0 {
		return g.ports[slot]
	}
	var b [2]byte
	if n, err := unix.Pread(g.table, b[:], int64(2*slot)); err != nil || n != len(b) {
		return 0
	}
	return binary.BigEndian.Uint16(b[:])
}

// Socket returns a file descriptor of its own for a slot that was claimed (link.Config.Bound).
func (g *Group) Socket(slot int) (sock int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, net.ErrClosed
	}
	if err := g.open(slot + 1); err != nil {
		return 0, err
	}
	sock, err = unix.FcntlInt(uintptr(g.sockets[slot]), unix.F_DUPFD_CLOEXEC, 0)
	return sock, os.NewSyscallError("fcntl", err)
}

// Close leaves the group. Other processes do not delay it.
func (g *Group) Close() {
	g.cancel()
	g.mu.Lock()
	g.closed = true
	for slot, l := range g.claims { // first, so that nobody asks for sockets that are closed
		if slot < len(g.sockets) {
			_ = link.Refuse(g.sockets[slot]) // packets would wait for the slot's next device
		}
		_ = l.Close()
	}
	g.mu.Unlock()
	g.serving.Wait()
	closeAll(g.sockets)
	if g.table != 0 {
		_ = unix.Close(g.table)
	}
}
