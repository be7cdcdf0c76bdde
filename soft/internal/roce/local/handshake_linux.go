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
)

// errPeerGone: the peer has closed its end, or died.
var errPeerGone = io.EOF

// The handshake: the dialler names its own device and the one that it wants, and passes the
// shared memory. The listener accepts or refuses.
const (
	requestPrefix = "verbena local 5"
	replyAccepted = "taken"
	replyRefused  = "refused"
	peerTimeout   = 2 * time.Second
	maxHandshakes = 16 // handshakes in progress, or connections that take long to close
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
	socket, err := net.ListenUnix("unixpacket", name(device))
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
	l.work.Go(func() {
		for {
			select {
			case l.handshakes <- struct{}{}:
			case <-l.ctx.Done():
				return
			}
			conn, err := l.socket.AcceptUnix()
			if err != nil {
				<-l.handshakes
				if errors.Is(err, net.ErrClosed) {
					return
				}
				time.Sleep(10 * time.Millisecond) // such as for lack of file descriptors
				continue
			}
			l.work.Go(func() {
				defer func() { <-l.handshakes }()
				l.handshake(conn, answer)
			})
		}
	})
}

// handshake performs the listener's part of the handshake, or closes the connection.
func (l *Listener) handshake(conn *net.UnixConn, answer func(peer Address) (done func(*Channel))) {
	stop := context.AfterFunc(l.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(peerTimeout))
	pid, err := checkPeer(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	in, err := newMessageReader(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	var peer Address
	b, err := in.next()
	defer in.closeFiles()
	if err == nil {
		peer, err = parseRequest(string(b), l.device)
	}
	if err == nil {
		err = l.checkOwner(pid, peer)
	}
	if err != nil || len(in.files) != 1 {
		_ = conn.Close()
		return
	}
	done := answer(peer)
	if done == nil {
		_, _ = conn.Write([]byte(replyRefused))
		_ = conn.Close()
		return
	}
	mem, err := mapShared(in.files[0])
	if err == nil {
		_, err = conn.Write([]byte(replyAccepted))
	}
	if err == nil && !stop() { // from here on the channel outlives the listener
		err = context.Cause(l.ctx)
	}
	var c *Channel
	if err == nil {
		c, err = connect(conn, pid, Ends{l.device, peer}, mem, false)
	}
	if err != nil {
		unmap(mem)
		_ = conn.Close()
	}
	done(c)
}

// checkOwner checks that the address that a dialler gives is one of this machine, and that the
// process listening there is the dialler.
func (l *Listener) checkOwner(pid int, device Address) error {
	if err := checkLocalAddress(device.Device.Addr()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, peerTimeout)
	defer cancel()
	var d net.Dialer
	owner, err := d.DialContext(ctx, "unixpacket", name(device).Name)
	if err != nil {
		return err
	}
	defer func() { _ = owner.Close() }()
	has, err := checkPeer(owner.(*net.UnixConn))
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

// Close ends Serve, and waits for the calls that it has made. Diallers can delay it without
// bound: see Channel.CloseConnection.
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
	var d net.Dialer
	opened, err := d.DialContext(ctx, "unixpacket", name(ends.Peer).Name)
	if err != nil {
		return nil, err
	}
	conn := opened.(*net.UnixConn)
	var mem []byte
	defer func() {
		if err != nil {
			unmap(mem)
			_ = conn.Close()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	pid, err := checkPeer(conn)
	if err != nil {
		return nil, err
	}
	var fd int
	if fd, mem, err = newFile("verbena rings", sharedLen, resizeSeals); err != nil {
		return nil, err
	}
	_, _, err = conn.WriteMsgUnix([]byte(formatRequest(ends)), unix.UnixRights(fd), nil)
	_ = unix.Close(fd)
	if err != nil {
		return nil, err
	}
	b := make([]byte, longestMessage)
	n, err := conn.Read(b)
	switch {
	case err != nil:
		return nil, err
	case string(b[:n]) != replyAccepted:
		return nil, ErrRefused
	case !stop():
		return nil, context.Cause(ctx)
	}
	return connect(conn, pid, ends, mem, true)
}

// connect makes a channel from a connection.
func connect(conn *net.UnixConn, peer int, ends Ends, mem []byte, dialler bool) (*Channel, error) {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	l, err := newLink(conn, peer, mem)
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
