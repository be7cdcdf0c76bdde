package rsocket

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"reflect"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/rsocket/internal/buffers"
)

// WriteTo writes what the peer sends to w, until the end of its data, as io.Copy does. To a socket of
// package net, and to a Conn, the bytes go from receive memory, without a copy on the way. (Other
// writers get a copy, since they may look at the bytes twice: the peer can change receive memory.)
// Errors are those of Read and of w.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) {
	if to, ok := w.(*Conn); ok {
		return to.readConn(c)
	}
	raw := socketOf(w, false)
	if raw == nil {
		return io.Copy(w, struct{ io.Reader }{c})
	}
	var m int
	var failed error
	write := func(fd uintptr) (done bool) {
		m, failed = c.lendData(func(p []byte) (int, error) { return writeFile(fd, p) })
		return failed != syscall.EAGAIN
	}
	for err == nil {
		if err := c.awaitData(); err != nil {
			return n, atEnd(err)
		}
		if err = raw.Write(write); err == nil {
			err = fileError("write", w, failed)
		}
		n += int64(m)
	}
	return n, err
}

// ReadFrom writes what it reads from r, until its end, as io.Copy does. Sockets of package net, files
// (others than regular ones only if they are in non-blocking mode) and a Conn are read into send memory,
// without a copy on the way, also through an io.LimitedReader.
// While r has nothing to read, no send memory is in use. Errors are those of Write and of r.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) {
	from, left := r, int64(math.MaxInt64)
	limited, _ := r.(*io.LimitedReader)
	if limited != nil {
		from, left = limited.R, limited.N
	}
	if from, ok := from.(*Conn); ok && limited == nil {
		return c.readConn(from)
	}
	raw := socketOf(from, true)
	if raw == nil {
		return io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{r})
	}
	if limited != nil {
		defer func() { limited.N -= n }()
	}
	size, m := buffers.SmallestChunk, 0
	var failed error
	read := func(fd uintptr) (done bool) {
		hasRoom := false
		m, failed = c.fillRoom(int(min(int64(size), left-n)), func(p []byte) (int, error) {
			hasRoom = true
			return readFile(fd, p)
		})
		if !hasRoom && failed != errNoRoom { // it cannot write, which matters when there is something to write
			failed = cmp.Or(waitsOrEnds(fd), failed)
		}
		return failed != syscall.EAGAIN
	}
	for err == nil && n < left {
		if err = raw.Read(read); err == nil {
			err = fileError("read", from, failed)
		}
		n += int64(m)
		if err == errNoRoom {
			err = c.awaitRoom()
		} else {
			size = nextSize(m)
		}
	}
	return n, atEnd(err)
}

// readConn is ReadFrom another connection.
func (c *Conn) readConn(from *Conn) (n int64, err error) {
	for size := buffers.SmallestChunk; ; {
		if err := from.awaitData(); err != nil {
			return n, atEnd(err)
		}
		m, err := c.fillRoom(size, func(room []byte) (int, error) {
			return from.lendData(func(p []byte) (int, error) { return copy(room, p), nil })
		})
		n += int64(m)
		if err == errNoRoom {
			err = c.awaitRoom()
		} else {
			size = nextSize(m)
		}
		if err != nil {
			return n, err
		}
	}
}

// nextSize is how much to read at a time after m bytes have come. So connections with little data take
// little send memory.
func nextSize(m int) int { return max(min(2*m, maxMessage), buffers.SmallestChunk) }

// atEnd turns the end of the data into no error.
func atEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// awaitData waits until there is something to read, or returns why there will be nothing.
func (c *Conn) awaitData() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		wait, err := c.readState(1)
		if err != nil || !wait {
			return err
		}
		c.waitReadable()
	}
}

// lendData calls use with what has arrived, if that is anything, in place of a call of Read. As many
// bytes as use returns count as read.
func (c *Conn) lendData(use func(p []byte) (int, error)) (n int, err error) {
	c.mu.Lock()
	if wait, err := c.readState(1); wait || err != nil { // another call has been quicker
		c.mu.Unlock()
		return 0, nil
	}
	c.reading = true
	p := c.in.Unread()
	c.mu.Unlock()
	n, err = use(p)
	c.mu.Lock()
	c.endRead(n > 0 && c.in.Consume(n))
	return n, err
}

// errNoRoom: all of the send buffer is in use, or another call writes. Call awaitRoom.
var errNoRoom = errors.New("no room")

// fillRoom calls read with send memory for up to size bytes, in place of a call of Write, and sends
// what that has read.
func (c *Conn) fillRoom(size int, read func(p []byte) (int, error)) (n int, err error) {
	c.mu.Lock()
	room, err := c.room(size)
	if err != nil {
		c.mu.Unlock()
		return 0, err
	}
	c.writing = true
	c.mu.Unlock()
	n, err = read(room)
	c.mu.Lock()
	if n > 0 && c.writeClosed { // the end of the data may have been sent meanwhile
		n, err = 0, c.writeError()
	}
	c.out.Commit(n)
	c.endWrite()
	c.mu.Unlock()
	if n > 0 {
		c.kick()
	}
	return n, err
}

// room returns send memory for up to size bytes, or why there is none. c.mu is held.
func (c *Conn) room(size int) ([]byte, error) {
	if err := c.writeError(); err != nil {
		return nil, err
	}
	if c.writing {
		return nil, errNoRoom
	}
	room, err := c.out.Room(size, c.stack.cfg.SendBuffer)
	switch {
	case err != nil:
		return nil, c.opError("write", err)
	case len(room) == 0:
		return nil, errNoRoom
	}
	return room, nil
}

// awaitRoom waits until there is send memory for a call, or returns why there will be none.
func (c *Conn) awaitRoom() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		_, err := c.room(1)
		if err != errNoRoom {
			c.out.Release(c.writing)
			return err
		}
		c.waitWritable()
	}
}

// socketOf returns the file descriptor of a stream socket of package net, or, with files, of an *os.File.
// It returns nil for others, and for types that embed these: their Read and Write may do more. It also
// returns nil if a system call may wait, as on a terminal or a pipe from another process: a call of
// fillRoom or lendData then would keep the connection's other calls waiting.
func socketOf(x any, files bool) syscall.RawConn {
	t := reflect.TypeOf(x)
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	conn, ok := x.(syscall.Conn)
	if t == nil || !ok || !hasFiles {
		return nil
	}
	socket, ok := x.(net.Conn)
	stream := ok && t.PkgPath() == "net" && socket.LocalAddr() != nil && slices.Contains([]string{"tcp", "unix"}, socket.LocalAddr().Network())
	if !stream && !(files && t.PkgPath() == "os") {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil // as Read and Write say
	}
	waits := true
	if err := raw.Control(func(fd uintptr) { waits = mayWait(fd) }); err != nil || waits {
		return nil
	}
	return raw
}

// fileError is the error of x, a socket or a file, for that of a system call. Other errors stay.
func fileError(op string, x any, err error) error {
	if _, ok := err.(syscall.Errno); !ok {
		return err
	}
	if c, ok := x.(net.Conn); ok {
		return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, err)}
	}
	return &fs.PathError{Op: op, Path: x.(interface{ Name() string }).Name(), Err: err}
}
