package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/internal/unixsocket"
)

// errPeerGone: the peer has closed its end, or died.
var errPeerGone = io.EOF

// The handshake: the dialler names its own device and the one that it wants. The listener accepts,
// and passes the shared memory, or refuses. Each end takes files only after it has checked the
// other.
const (
	requestPrefix = "verbena local 7"
	replyAccepted = "taken"
	replyRefused  = "refused"
	peerTimeout   = 2 * time.Second
	maxHandshakes = 16 // in progress
)

// ErrRefused: the other device refuses a channel; it may be about to dial one itself.
var ErrRefused = errors.New("the device refused the channel")

// Listener accepts channels from other devices.
type Listener struct {
	socket     *net.UnixListener
	device     Address
	handshakes chan struct{}
	ctx        context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup
}

// Listen makes the device at that address and UDP port visible to other devices. It fails if
// the name is in use.
func Listen(device Address) (*Listener, error) {
	socket, err := unixsocket.Listen("unixpacket", name(device))
	if err != nil {
		return nil, err
	}
	l := &Listener{socket: socket, device: device, handshakes: make(chan struct{}, maxHandshakes)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// Serve accepts channels until Close. It calls answer for each device that dials. If answer
// returns a function, Serve calls it with the channel, or with nil if the handshake failed.
// These calls come from goroutines of the listener, several at a time.
func (l *Listener) Serve(answer func(peer Address) (done func(*Channel))) {
	l.work.Go(func() { unixsocket.Serve(l.socket, func(conn *net.UnixConn) { l.accept(conn, answer) }) })
}

// accept starts the handshake with a process that may make channels. Others take no place.
func (l *Listener) accept(conn *net.UnixConn, answer func(peer Address) (done func(*Channel))) {
	pid, err := unixsocket.CheckPeer(conn)
	if err != nil {
		unixsocket.Close(conn)
		return
	}
	select {
	case l.handshakes <- struct{}{}:
	case <-l.ctx.Done():
		unixsocket.Close(conn)
		return
	}
	l.work.Go(func() {
		joined := l.handshake(conn, pid, answer)
		<-l.handshakes
		if !joined {
			unixsocket.Close(conn)
		}
	})
}

// handshake performs the listener's part of the handshake. It reports false if the caller has to
// close the connection.
func (l *Listener) handshake(conn *net.UnixConn, pid int, answer func(peer Address) (done func(*Channel))) (joined bool) {
	stop := context.AfterFunc(l.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(peerTimeout))
	peer, err := l.receiveRequest(conn, pid)
	if err != nil {
		return false
	}
	done := answer(peer)
	if done == nil {
		_, _ = conn.Write([]byte(replyRefused))
		return false
	}
	mem, err := sendMemory(conn)
	if err == nil && !stop() { // from here on the channel outlives the listener
		err = context.Cause(l.ctx)
	}
	var c *Channel
	if err == nil {
		c, err = connect(conn, pid, Ends{l.device, peer}, mem, false)
	}
	if err != nil {
		unmap(mem)
	}
	done(c)
	return err == nil
}

// receiveRequest receives and checks a request. It returns the dialler's address.
func (l *Listener) receiveRequest(conn *net.UnixConn, pid int) (peer Address, err error) {
	in, err := newMessageReader(conn)
	if err != nil {
		return peer, err
	}
	b, err := in.next()
	if err != nil {
		return peer, err
	}
	defer in.closeFiles()
	if len(in.files) > 0 {
		return peer, fmt.Errorf("handshake request with %d files: %w", len(in.files), ErrCorrupt)
	}
	if peer, err = parseRequest(string(b), l.device); err != nil {
		return peer, err
	}
	return peer, l.checkOwner(pid, peer)
}

// sendMemory makes the shared memory, and sends it with the acceptance.
func sendMemory(conn *net.UnixConn) (mem []byte, err error) {
	fd, mem, err := newFile("verbena rings", sharedLen, resizeSeals)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err = unixsocket.AllowFiles(conn); err == nil {
		_, _, err = conn.WriteMsgUnix([]byte(replyAccepted), unix.UnixRights(fd), nil)
	}
	return mem, err
}

// checkOwner verifies the address that a dialler claims: it must belong to this machine, and the
// dialling process must be the one that listens there.
func (l *Listener) checkOwner(pid int, device Address) error {
	if err := checkLocalAddress(device.Device.Addr()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, peerTimeout)
	defer cancel()
	owner, err := unixsocket.Dial(ctx, "unixpacket", name(device))
	if err != nil {
		return err
	}
	defer unixsocket.Close(owner)
	has, err := unixsocket.CheckPeer(owner)
	if err == nil && has != pid {
		err = fmt.Errorf("process %d claims the device at %v, which belongs to process %d: %w", pid, device, has, ErrCorrupt)
	}
	return err
}

// checkLocalAddress checks that an address is one of this machine: any process can listen under the
// name of a device on another machine.
func checkLocalAddress(addr netip.Addr) error {
	if addr.IsLoopback() || routes.Source(addr) == addr.WithZone("") {
		return nil
	}
	return fmt.Errorf("%v is not an address of this machine: %w", addr, errors.ErrUnsupported)
}

// Close ends Serve, and waits for the calls that it has made. Before Linux 6.16, processes that
// have not been accepted can delay it without bound, by files that take long to close.
func (l *Listener) Close() {
	l.cancel()
	_ = l.socket.Close()
	l.work.Wait()
}

// Dial makes a channel with the device at ends.Peer. It fails at once if this network
// namespace has no such device. If the device's process does not respond, it waits for two
// seconds.
func Dial(ctx context.Context, ends Ends) (*Channel, error) {
	c, err := dial(ctx, ends)
	if err != nil {
		return nil, fmt.Errorf("open shared memory with the device at %v: %w", ends.Peer, err)
	}
	return c, nil
}

func dial(ctx context.Context, ends Ends) (_ *Channel, err error) {
	if err := checkLocalAddress(ends.Peer.Device.Addr()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	conn, err := unixsocket.Dial(ctx, "unixpacket", name(ends.Peer))
	if err != nil {
		return nil, err
	}
	var mem []byte
	defer func() {
		if err != nil {
			unmap(mem)
			unixsocket.Close(conn)
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	pid, err := unixsocket.CheckPeer(conn)
	if err != nil {
		return nil, err
	}
	if err = unixsocket.AllowFiles(conn); err != nil {
		return nil, err
	}
	if _, err = conn.Write([]byte(formatRequest(ends))); err != nil {
		return nil, err
	}
	if mem, err = receiveMemory(conn); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	return connect(conn, pid, ends, mem, true)
}

// receiveMemory receives the listener's reply, and maps the shared memory.
func receiveMemory(conn *net.UnixConn) ([]byte, error) {
	in, err := newMessageReader(conn)
	if err != nil {
		return nil, err
	}
	b, err := in.next()
	if err != nil {
		return nil, err
	}
	defer in.closeFiles()
	if string(b) != replyAccepted || len(in.files) != 1 {
		return nil, ErrRefused
	}
	return mapShared(in.files[0])
}

// connect makes a channel from a connection.
func connect(conn *net.UnixConn, peer int, ends Ends, mem []byte, dialler bool) (*Channel, error) {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	l, err := newConnection(conn, peer, mem)
	if err != nil {
		return nil, err
	}
	c := newChannel(ends, mem, dialler)
	c.link = l
	return c, nil
}

func formatRequest(ends Ends) string {
	return fmt.Sprintf("%s %v %v", requestPrefix, ends.Local, ends.Peer)
}

// parseRequest returns the dialler's address.
func parseRequest(text string, device Address) (peer Address, err error) {
	rest, ok := strings.CutPrefix(text, requestPrefix+" ")
	from, to, both := strings.Cut(rest, " ")
	if peer, err = parseAddress(from); err != nil || !ok || !both || to != device.String() || peer == device || peer.Device.Port() == 0 {
		return peer, fmt.Errorf("malformed handshake request %.100q: %w", text, ErrCorrupt)
	}
	return peer, nil
}
