package sharedport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/portowner"
	"github.com/verbena-rdma/verbena/internal/unixsocket"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/verbs"
)

// Times for which other processes, which may be stopped, are waited for.
const (
	lockTimeout = 10 * time.Second
	// JoinTimeout is for the groups of all addresses of a device.
	JoinTimeout = 2 * time.Second
	// A process that ends has a port without a name for a moment.
	endTries   = 4
	retryPause = 5 * time.Millisecond
	// One that locks or unlocks has a name to which nobody can connect for a moment.
	lockTries = 40
)

// Lock keeps other processes from joining groups and claiming slots, so that those that start at the same
// moment find each other. It does not wait for a process of another user.
func Lock() (unlock func(), err error) {
	names, err := prefix()
	if err != nil {
		return nil, fmt.Errorf("lock the shared ports: %w", err)
	}
	return lock(names + "lock")
}

// prefix is what names begin with. Processes that cannot share (unixsocket.CheckPeer) have others.
func prefix() (string, error) {
	var ids [2]uint64
	for i, kind := range []string{"pid", "user"} {
		var stat unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+kind, &stat); err != nil {
			return "", fmt.Errorf("look up the %s namespace: %w", kind, err)
		}
		ids[i] = stat.Ino
	}
	return fmt.Sprintf("@verbena/port/%d/%d/%d/", os.Geteuid(), ids[0], ids[1]), nil
}

func lock(name string) (unlock func(), err error) {
	deadline := time.Now().Add(lockTimeout)
	for try := 1; ; try++ {
		l, err := unixsocket.Listen("unix", name)
		if err == nil {
			return func() { closeName(l) }, nil
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			err = awaitUnlock(name, deadline)
		}
		switch {
		case err == nil:
			try = 0
		case errors.Is(err, syscall.ECONNREFUSED) && try < lockTries:
			time.Sleep(retryPause)
		default:
			return nil, fmt.Errorf("lock the shared ports: %w", err)
		}
	}
}

// awaitUnlock waits until a process of this user, which has the name, ends the connection.
func awaitUnlock(name string, deadline time.Time) error {
	conn, err := unixsocket.Dial(context.Background(), "unix", name)
	if err != nil {
		return err
	}
	defer unixsocket.Close(conn)
	if _, err := unixsocket.CheckPeer(conn); err != nil {
		return fmt.Errorf("a process has %s: %w", name, err)
	}
	_ = conn.SetDeadline(deadline)
	if _, err = conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("a process has %s for %v; it may be stopped: %w", name, lockTimeout, err)
	}
	return nil
}

// Group are the sockets of one address and port. Its methods may be called from any goroutine.
type Group struct {
	cfg    link.Config
	prefix string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	serving sync.WaitGroup
	answers chan struct{} // those under way

	mu      sync.Mutex // no other lock is taken under it
	sockets []int      // by slot
	table   *table
	memory  *os.File                  // that the table is mapped from; nil: no other process has it
	claims  map[int]*net.UnixListener // by slot
	closed  bool
}

// table is what the processes of a group know together. Each may write at any time.
type table struct {
	ports [link.Slots]atomic.Uint32 // by which each slot's device is, or was, reached alone
	inUse atomic.Uint32             // a bit for each slot whose device receives
	rest  atomic.Uint32             // the slot of what is for none, plus 1; 0: none
	// services are those that have listeners, each once: the service ID, and in the lowest byte the slot
	// plus 1, and closed. 0: none.
	services [maxListeners]atomic.Uint64
}

const (
	// maxListeners bounds the program that steers: the system refuses one that is larger than
	// net.core.optmem_max, at least 20 KiB.
	maxListeners = 480
	// closed marks the service of a former listener. Its process may listen again, and keeps early requests
	// until then (cm.Listener).
	closed    = 1 << 7
	tableSize = int(unsafe.Sizeof(table{}))
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
	names, err := prefix()
	if err != nil {
		return nil, fmt.Errorf("share UDP %v: %w", cfg.Addr, err)
	}
	g := &Group{cfg: cfg, prefix: names, table: new(table), claims: make(map[int]*net.UnixListener), answers: make(chan struct{}, maxAnswers)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
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
		if try < endTries && ctx.Err() == nil {
			time.Sleep(retryPause)
			continue
		}
		holder, fault := "a process", "does not share it"
		if owner := portowner.Find(cfg.Addr); owner != nil {
			holder = owner.String()
		}
		if ctx.Err() != nil {
			fault = "does not answer; it may be stopped"
		}
		return nil, fmt.Errorf("share UDP %v: %s has it, and %s: %w", cfg.Addr, holder, fault, err)
	}
}

// name is the name of the socket that claims a slot.
func (g *Group) name(slot int) string {
	return fmt.Sprintf("%s%v/%d", g.prefix, g.cfg.Addr, slot)
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
		files := <-answers
		if files != nil && !found && g.mapTable(files[link.Slots]) == nil {
			found = true
			cancel()
			g.sockets = files[:link.Slots:link.Slots]
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
	if _, err := unixsocket.CheckPeer(conn); err != nil {
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
		err = checkTable(files[link.Slots])
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

// checkTable returns an error if a file has not the size of a table for ever: access to what is missing would
// end the process.
func checkTable(file int) error {
	var stat unix.Stat_t
	got, err := unix.FcntlInt(uintptr(file), unix.F_GET_SEALS, 0)
	if err == nil {
		err = unix.Fstat(file, &stat)
	}
	if err == nil && (got&seals != seals || stat.Size != int64(tableSize)) {
		err = fmt.Errorf("the table has %d bytes and the seals %#x", stat.Size, got)
	}
	return err
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
		closeName(l)
		return false
	}
	g.table.inUse.And(^(1 << slot)) // a process that was killed leaves it so
	g.forget(slot)
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

// free frees the name of a slot.
func (g *Group) free(slot int) {
	g.table.inUse.And(^(1 << slot))
	g.forget(slot)
	closeName(g.claims[slot])
}

// closeName closes the socket of a name. Children that were forked keep the name, but nobody connects to it.
func closeName(l *net.UnixListener) {
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	_ = l.Close()
}

// forget removes the services of a slot.
func (g *Group) forget(slot int) {
	for i := range g.table.services {
		s := &g.table.services[i]
		if v := s.Load(); slotOf(v) == slot {
			s.CompareAndSwap(v, 0)
		}
	}
}

func slotOf(service uint64) int { return int(service&(closed-1)) - 1 }

// maxAnswers bounds the connections of other processes.
const maxAnswers = 16

// accept answers a process of the same user.
func (g *Group) accept(conn *net.UnixConn) {
	if _, err := unixsocket.CheckPeer(conn); err == nil {
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
	_, _, _ = conn.WriteMsgUnix([]byte{reply}, unix.UnixRights(append(append([]int(nil), g.sockets...), int(g.memory.Fd()))...), nil) // it does not wait: nothing was sent before
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
	if n == link.Slots {
		for slot := range g.sockets {
			g.stopCoalescing(slot)
		}
	}
	return nil
}

// stopCoalescing is for several processes: all packets that an adapter has joined would come to that of the
// first one. The loopback interface joins none.
func (g *Group) stopCoalescing(slot int) {
	if !g.cfg.Addr.Addr().IsLoopback() {
		link.StopCoalescing(g.sockets[slot])
	}
}

// steer steers packets. Other processes may do so at the same time: the last one knows what all have written.
func (g *Group) steer() error {
	rest := g.rest()
	if len(g.sockets) == 1 || len(g.sockets) <= rest {
		return nil // not yet
	}
	if len(g.sockets) < link.Slots { // of one device
		return g.explain(link.SteerBound(g.sockets[0], g.slots(), rest, nil))
	}
	for range steerTries {
		slots, services := g.slots(), g.services()
		living := g.living(rest)
		if err := link.SteerBound(g.sockets[0], slots, living, steering(living, services)); err != nil {
			return g.explain(err)
		}
		former := rest
		if rest = g.rest(); rest == former && slices.Equal(slots, g.slots()) && slices.Equal(services, g.services()) {
			return nil
		}
	}
	return g.explain(errors.New("other processes change the table all the time"))
}

const steerTries = 100

func (g *Group) explain(err error) error {
	if err != nil {
		err = fmt.Errorf("share UDP %v: steer packets among %d sockets: %w", g.cfg.Addr, len(g.sockets), err)
	}
	return err
}

func (g *Group) rest() int { return int(g.table.rest.Load()) - 1 }

// slots returns those whose devices receive.
func (g *Group) slots() (list []int) {
	inUse := g.table.inUse.Load()
	for slot := range link.Slots {
		if inUse&(1<<slot) != 0 {
			list = append(list, slot)
		}
	}
	return list
}

// services returns those that have listeners.
func (g *Group) services() (list []service) {
	for i := range g.table.services {
		if v := g.table.services[i].Load(); v>>8 != 0 && slotOf(v) >= 0 && slotOf(v) < link.Slots {
			list = append(list, service{uint32(v >> 8), slotOf(v)})
		}
	}
	return list
}

// living returns that slot if a device of this user has it, otherwise the lowest that one has.
func (g *Group) living(slot int) int {
	if g.lives(slot) {
		return slot
	}
	for other := range link.Slots {
		if g.lives(other) {
			return other
		}
	}
	return max(slot, 0)
}

// lives reports whether a device of this user has a slot.
func (g *Group) lives(slot int) bool {
	if slot < 0 {
		return false
	}
	if g.claims[slot] != nil {
		return true
	}
	conn, err := unixsocket.Dial(context.Background(), "unix", g.name(slot))
	if err != nil {
		return !errors.Is(err, syscall.ECONNREFUSED) // otherwise too many connect to it
	}
	defer unixsocket.Close(conn)
	_, err = unixsocket.CheckPeer(conn)
	return err == nil
}

// TakeRest makes a claimed slot get what is for none, such as management datagrams, once it is in use, unless
// another device's does. [Lock] is held.
func (g *Group) TakeRest(slot int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.lives(g.rest()) {
		g.table.rest.Store(uint32(slot + 1))
	}
}

// Listen has the requests for a service come to a claimed slot. Other devices' listeners for it have ended.
func (g *Group) Listen(service uint32, slot int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return net.ErrClosed
	}
	if !g.table.listen(service, slot) {
		return fmt.Errorf("share UDP %v: the processes that share it have %d listeners there, the limit; close some: %w", g.cfg.Addr, maxListeners, verbs.ErrLimit)
	}
	return g.steer()
}

func (t *table) listen(service uint32, slot int) bool {
	for {
		var place *atomic.Uint64
		var former uint64
		for i := range t.services {
			s := &t.services[i]
			v := s.Load()
			if v>>8 == uint64(service) {
				place, former = s, v
				break
			}
			if v == 0 && (place == nil || former != 0) || v&closed != 0 && place == nil {
				place, former = s, v
			}
		}
		if place == nil {
			return false
		}
		if place.CompareAndSwap(former, entry(service, slot)) {
			return true
		}
	}
}

func entry(service uint32, slot int) uint64 { return uint64(service)<<8 | uint64(slot+1) }

// Unlisten lets another service have the place of a listener's in the table.
func (g *Group) Unlisten(service uint32, slot int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.table.services {
		g.table.services[i].CompareAndSwap(entry(service, slot), entry(service, slot)|closed)
	}
}

// HasRest reports whether a slot is the one of TakeRest.
func (g *Group) HasRest(slot int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rest() == slot
}

// makeTable makes the table one for several processes.
func (g *Group) makeTable() error {
	if g.memory != nil {
		return nil
	}
	fd, err := unix.MemfdCreate("verbena ports", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	own := g.table
	if err = unix.Ftruncate(fd, int64(tableSize)); err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err == nil {
			err = g.mapTable(fd)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("make a table of ports: %w", err)
	}
	g.table.rest.Store(own.rest.Load())
	g.table.inUse.Store(own.inUse.Load())
	for i := range own.ports {
		g.table.ports[i].Store(own.ports[i].Load())
	}
	for i := range own.services {
		g.table.services[i].Store(own.services[i].Load())
	}
	return nil
}

// mapTable uses the table in a file, which it takes.
func (g *Group) mapTable(fd int) error {
	mem, err := unix.MmapPtr(fd, 0, nil, uintptr(tableSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	g.table, g.memory = (*table)(mem), os.NewFile(uintptr(fd), "verbena ports")
	return nil
}

// Use has the packets to a claimed slot come to its socket, at which a device receives now, and tells the
// others the UDP port by which that device is reached alone.
func (g *Group) Use(slot int, port uint16) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table.ports[slot].Store(uint32(port))
	g.table.inUse.Or(1 << slot)
	if g.memory != nil {
		g.stopCoalescing(slot)
	}
	return g.steer()
}

// Port returns the UDP port by which the device of a slot is, or was, reached alone; 0: unknown.
func (g *Group) Port(slot int) uint16 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return uint16(g.table.ports[slot].Load())
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
		delete(g.claims, slot)
	}
	_ = g.steer() // what is for none goes to another device
	g.mu.Unlock()
	g.serving.Wait()
	closeAll(g.sockets)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.memory != nil {
		_ = unix.MunmapPtr(unsafe.Pointer(g.table), uintptr(tableSize))
		_ = g.memory.Close()
		g.table, g.memory = new(table), nil
	}
}
