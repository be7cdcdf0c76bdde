// Package lingertest makes files that take long to close, for tests.
package lingertest

import (
	"errors"
	"net"
	"os"
	"time"
)

// Open returns a TCP socket that takes an hour to close, since it has unsent data. The function
// release makes it close at once.
func Open() (file *os.File, release func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	reader, err := l.Accept()
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	release = func() {
		_ = reader.(*net.TCPConn).SetLinger(0)
		_ = reader.Close()
	}
	tcp := conn.(*net.TCPConn)
	err = errors.Join(tcp.SetLinger(3600), tcp.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	for err == nil {
		_, err = tcp.Write(make([]byte, 1<<20))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		file, err = tcp.File()
	}
	if err != nil {
		release()
	}
	return file, release, errors.Join(err, tcp.Close())
}
