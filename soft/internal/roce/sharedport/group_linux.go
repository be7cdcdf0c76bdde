package sharedport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/portowner"
	"github.com/verbena-rdma/verbena/internal/unixsocket"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// Times for which other processes, which may be stopped, are waited for.
const (
	lockTimeout = 10 * time.Second
	// JoinTimeout is for the groups of all addresses of a device.
	JoinTimeout = 2 * time.Second
	// A process that ends has a port without a name for a moment.
	endTries   = 20
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
	table   *os.File   // has the ports; nil: none yet
	ports   [entries]uint16
	claims  map[int]*net.UnixListener // by slot
	closed  bool
}

// The table has the port of each slot, and which one is for the rest, plus 1; 0: none.
const (
	restEntry = link.Slots
	entries   = link.Slots + 1
)

// Join opens the group of an address and port, or joins that of other processes. [Lock] is held. The error
// matches EADDRINUSE, and names the owner, if a process has the port that does not share it with this one.
func Join(ctx context.Context, cfg link.Config) (*Group, error) {
	if a := cfg.Addr.Addr().WithZone(""); a.Is6() && a.IsLinkLocalUnicast() {
		ifi, err := net.InterfaceByName(cfg.Interface)
		if err != nil {
			return nil, fmt.Errorf("share UDP %v: interface %q: %w", cfg.Addr, cfg.Interface, err)
		}
		cfg.Addr = netip.AddrPortFrom(a.WithZone(strconv.Itoa(ifi.Index)), cfg.Addr.Port())
	}
	g := &Group{cfg: cfg, claims: make(map[int]*net.UnixListener), answers: make(chan struct{}, maxAnswers)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	var owner *portowner.Owner
	holder := "a process"
	for try := 1; ; try++ {
		sock, err := link.Bind(cfg)
		if err == nil {
			g.sockets = []int{sock}
			return g, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("share UDP %v: %w", cfg.Addr, err)
		}
		if g.askAll(ctx) {
			return g, nil
		}
		if owner == nil {
			if owner = portowner.Find(cfg.Addr); owner != nil {
				holder = owner.String()
			}
		}
		foreign := owner != nil && (owner.Kernel || unixsocket.CheckUser(owner.User) != nil)
		switch {
		case foreign || try == endTries:
			return nil, fmt.Errorf("share UDP %v: %s has it, and does not share it: %w", cfg.Addr, holder, err)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("share UDP %v: %s has it, and does not answer; it may be stopped: %w", cfg.Addr, holder, err)
		}
		time.Sleep(retryPause)
	}
}

// name is the name of the socket that claims a slot.
func (g *Group) name(slot int) string {
	return fmt.Sprintf("@verbena/port/%d/%v/%d", os.Geteuid(), g.cfg.Addr, slot)
}

// askAll asks all processes with a slot for the sockets, since some may be stopped. The first answer is taken.
func (g *Group) askAll(ctx context.Context) (found bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers, asked := make(chan []int), 0
	for slot := range link.Slots {
		conn, err := unixsocket.Dial(ctx, "unix", g.name(slot))
		if err != nil {
			continue
		}
		asked++
		go func() {
			files, _ := ask(ctx, conn, g.cfg.Addr)
			answers <- files
		}()
	}
	for range asked {
		if files := <-answers; files != nil && !found {
			found = true
			cancel()
			g.sockets, g.table = files[:link.Slots:link.Slots], os.NewFile(uintptr(files[link.Slots]), "verbena ports")
		} else {
			closeAll(files)
		}
	}
	return found
}

// A process that joins sends request. It gets the sockets of all slots and the table, with reply.
const (
	request = 'j'
	reply   = 's'
	handed  = link.Slots + 1                        // files
	seals   = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW // of the table
)

func ask(ctx context.Context, conn *net.UnixConn, addr netip.AddrPort) (files []int, err error) {
	defer unixsocket.Close(conn)
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := checkUser(conn); err != nil {
		return nil, err
	}
	// The peer sends files once it has the request, and could not before they are allowed.
	if err := unixsocket.AllowFiles(conn); err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte{request}); err != nil {
		return nil, err
	}
	control := make([]byte, unix.CmsgSpace(4*handed))
	n, size, _, _, err := conn.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	for i := range messages {
		list, failed := unix.ParseUnixRights(&messages[i])
		files, err = append(files, list...), errors.Join(err, failed)
	}
	if err == nil && (n != 1 || len(files) != handed) {
		err = fmt.Errorf("it handed over %d files, not %d", len(files), handed)
	}
	for i := 0; err == nil && i < link.Slots; i++ {
		err = link.CheckBound(files[i], addr)
	}
	if err == nil {
		var got int
		if got, err = unix.FcntlInt(uintptr(files[link.Slots]), unix.F_GET_SEALS, 0); err == nil && got&seals != seals {
			err = errors.New("the size of the table can change")
		}
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
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
	g.free(slot)
	delete(g.claims, slot)
}

// free frees the name of a slot. Packets would wait for its next device.
func (g *Group) free(slot int) {
	if slot < len(g.sockets) {
		_ = link.Refuse(g.sockets[slot])
	}
	_ = g.claims[slot].Close()
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
	_ = conn.SetDeadline(time.Now().Add(JoinTimeout))
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
	_, _, _ = conn.WriteMsgUnix([]byte{reply}, unix.UnixRights(append(append([]int(nil), g.sockets...), int(g.table.Fd()))...), nil) // it does not wait: nothing was sent before
}

// open opens the sockets of the first n slots, if this process is the only one of the group.
func (g *Group) open(n int) error {
	for len(g.sockets) < n {
		sock, err := link.BindAnother(g.cfg, g.sockets[0])
		if err != nil {
			return fmt.Errorf("share UDP %v: open another socket: %w", g.cfg.Addr, err)
		}
		g.sockets = append(g.sockets, sock)
		if err := g.steer(); err != nil {
			g.sockets = g.sockets[:len(g.sockets)-1]
			_ = unix.Close(sock)
			return err
		}
	}
	return nil
}

func (g *Group) steer() error {
	if len(g.sockets) == 1 || len(g.sockets) <= g.rest() {
		return nil // not yet
	}
	if err := link.SteerBound(g.sockets[0], len(g.sockets), g.rest()); err != nil {
		return fmt.Errorf("share UDP %v: steer packets among %d sockets: %w", g.cfg.Addr, len(g.sockets), err)
	}
	return nil
}

func (g *Group) rest() int { return int(g.get(restEntry)) - 1 }

// TakeRest makes a claimed slot get what is for none, such as management datagrams, unless another device's
// does. [Lock] is held.
func (g *Group) TakeRest(slot int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if former := g.rest(); former >= 0 {
		conn, err := unixsocket.Dial(g.ctx, "unix", g.name(former))
		if err == nil {
			err = checkUser(conn)
			unixsocket.Close(conn)
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			err = nil // too many connect to it
		}
		if err == nil {
			return nil
		}
	}
	g.set(restEntry, uint16(slot+1))
	return g.steer()
}

// HasRest reports whether a slot is the one of TakeRest.
func (g *Group) HasRest(slot int) bool { return g.Port(restEntry) == uint16(slot+1) }

// makeTable makes the table for several processes.
func (g *Group) makeTable() (err error) {
	if g.table != nil {
		return nil
	}
	fd, err := unix.MemfdCreate("verbena ports", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	table := os.NewFile(uintptr(fd), "verbena ports")
	if err = table.Truncate(2 * entries); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		_ = table.Close()
		return fmt.Errorf("make a table of ports: %w", err)
	}
	g.table = table
	for i, v := range g.ports {
		g.set(i, v)
	}
	return nil
}

func (g *Group) set(entry int, v uint16) {
	g.ports[entry] = v
	if g.table != nil {
		_, _ = g.table.WriteAt(binary.BigEndian.AppendUint16(nil, v), int64(2*entry))
	}
}

func (g *Group) get(entry int) uint16 {
	if g.closed || g.table == nil {
		return g.ports[entry]
	}
	var b [2]byte
	if _, err := g.table.ReadAt(b[:], int64(2*entry)); err != nil {
		return 0
	}
	return binary.BigEndian.Uint16(b[:])
}

// SetPort tells the others the UDP port by which the device of a claimed slot is reached alone.
func (g *Group) SetPort(slot int, port uint16) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set(slot, port)
}

// Port returns the UDP port by which the device of a slot is, or was, reached alone; 0: unknown.
func (g *Group) Port(slot int) uint16 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.get(slot)
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
	sock, err = unix.FcntlInt(uintptr(g.sockets[slot]), unix.F_DUPFD_CLOEXEC, 3) // 0 means none in link.Config
	return sock, os.NewSyscallError("fcntl", err)
}

// Close leaves the group. Other processes do not delay it.
func (g *Group) Close() {
	g.cancel()
	g.mu.Lock()
	g.closed = true
	for slot := range g.claims { // first, so that nobody asks for sockets that are closed
		g.free(slot)
	}
	g.mu.Unlock()
	g.serving.Wait()
	closeAll(g.sockets)
	if g.table != nil {
		_ = g.table.Close()
	}
}
