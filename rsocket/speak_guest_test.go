//go:build linux && cgo && verbs

package rsocket_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// The protocols of the programs that the Go end talks to.

// sequence is bytes that count up and begin again: byte i is i modulo the period, at both ends.
type sequence struct {
	at     int
	period int
}

const (
	counting = 256 // rstream -T v
	primes   = 251 // testdata/echo.c, and files: no buffer has a multiple of it
)

// next returns the next n bytes.
func (s *sequence) next(n int) []byte {
	b := make([]byte, n)
	for i := range min(n, s.period) {
		b[i] = byte((s.at + i) % s.period)
	}
	for k := s.period; k < n; k *= 2 {
		copy(b[k:], b[:k])
	}
	s.at += n
	return b
}

// expect reads the next n bytes, in pieces of any size, and compares them.
func (s *sequence) expect(r io.Reader, n int) error {
	b := make([]byte, n)
	if k, err := io.ReadFull(r, b); err != nil {
		return fmt.Errorf("after %d bytes: %w", s.at+k, err)
	}
	return s.compare(b)
}

func (s *sequence) compare(b []byte) error {
	if want := s.next(len(b)); !bytes.Equal(b, want) {
		for i := range b {
			if b[i] != want[i] {
				return fmt.Errorf("byte %d is %#x, not %#x", s.at-len(b)+i, b[i], want[i])
			}
		}
	}
	return nil
}

// expectEnd expects the end of the peer's data.
func expectEnd(r io.Reader) error {
	switch n, err := r.Read(make([]byte, 1)); {
	case n > 0:
		return errors.New("more data than expected")
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("instead of the end of the data: %w", err)
	}
	return nil
}

// rstream is a run of rstream. The client sends 16 bytes, and the server returns 16. In each
// iteration the client sends a number of transfers, then the server does. With -T v, all bytes of a
// direction count up.
type rstream struct {
	size, transfers, iterations int
	verify                      bool
}

func (r *rstream) server(conn net.Conn) error {
	out, in := &sequence{period: counting}, &sequence{period: counting}
	for _, n := range r.turns() {
		if err := r.receive(conn, in, n); err != nil {
			return err
		}
		if err := r.send(conn, out, n); err != nil {
			return err
		}
	}
	return expectEnd(conn)
}

func (r *rstream) client(conn net.Conn) error {
	out, in := &sequence{period: counting}, &sequence{period: counting}
	for _, n := range r.turns() {
		if err := r.send(conn, out, n); err != nil {
			return err
		}
		if err := r.receive(conn, in, n); err != nil {
			return err
		}
	}
	return nil
}

// turns is how many bytes go one way before as many go the other way.
func (r *rstream) turns() []int {
	turns := []int{16}
	for range r.iterations {
		turns = append(turns, r.size*r.transfers)
	}
	return turns
}

func (r *rstream) send(w io.Writer, out *sequence, n int) error {
	for piece := range pieces(n, r.size) {
		if _, err := w.Write(out.next(piece)); err != nil {
			return err
		}
	}
	return nil
}

func (r *rstream) receive(conn io.Reader, in *sequence, n int) error {
	if r.verify {
		return in.expect(conn, n)
	}
	if k, err := io.CopyN(io.Discard, conn, int64(n)); err != nil {
		return fmt.Errorf("%d of %d bytes: %w", k, n, err)
	}
	return nil
}

// pieces divides n into sizes of at most size.
func pieces(n, size int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for n > 0 && yield(min(n, size)) {
			n -= min(n, size)
		}
	}
}

// echoServer returns all bytes until the end of the data.
func echoServer(conn net.Conn) error {
	if _, err := io.Copy(conn, conn); err != nil {
		return err
	}
	return conn.Close()
}

// echoClient sends n bytes in pieces, and receives them at the same time.
func echoClient(conn halfCloser, n, piece int) error {
	return together(conn, func() error {
		out := &sequence{period: primes}
		for size := range pieces(n, piece) {
			if _, err := conn.Write(out.next(size)); err != nil {
				return err
			}
		}
		return conn.CloseWrite()
	}, func() error {
		if err := (&sequence{period: primes}).expect(conn, n); err != nil {
			return err
		}
		return expectEnd(conn)
	})
}

// together runs both on a connection, which fails if one of them does.
func together(conn net.Conn, send, receive func() error) error {
	result := make(chan error, 1)
	run := func(do func() error) error {
		err := do()
		if err != nil {
			_ = conn.SetDeadline(time.Now())
		}
		return err
	}
	go func() { result <- run(send) }()
	return errors.Join(run(receive), <-result)
}

// halfCloser is a connection whose directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// transfer sends a file and receives another until its end, at the same time.
func transfer(conn halfCloser, file, into string) error {
	return together(conn, func() error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := io.Copy(conn, f); err != nil {
			return err
		}
		return conn.CloseWrite()
	}, func() error { return receiveFile(conn, into) })
}

// receiveFile receives a file until its end. The other direction stays open: nc.traditional would
// not send the rest.
func receiveFile(conn net.Conn, into string) error {
	f, err := os.Create(into)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = io.Copy(f, conn); err != nil {
		return err
	}
	return f.Close()
}

// rcopy's messages begin with 16 bytes: version 0, a command, and in the byte order of the host the
// length of the message (16 bits) and a number (32 bits), which is a mode in the command that opens
// and an error in a response. 8 bytes are zero.
const (
	rcopyHeader = 16
	rcopyOpen   = 1 // then a name, padded with zeros to 8 bytes
	rcopyClose  = 2
	rcopyWrite  = 3 // then the size of the file (64 bits); behind the message comes the file
	rcopyAnswer = 0x80
)

func rcopyMessage(command byte, number int, rest []byte) []byte {
	b := []byte{0, command}
	b = binary.NativeEndian.AppendUint16(b, uint16(rcopyHeader+len(rest)))
	b = binary.NativeEndian.AppendUint32(b, uint32(number))
	return append(append(b, make([]byte, 8)...), rest...)
}

// rcopyRead reads a message of the command.
func rcopyRead(conn net.Conn, command byte) (number int, rest []byte, err error) {
	h := make([]byte, rcopyHeader)
	if _, err := io.ReadFull(conn, h); err != nil {
		return 0, nil, err
	}
	if h[0] != 0 || h[1] != command {
		return 0, nil, fmt.Errorf("rcopy sent % x instead of command %#x", h, command)
	}
	rest = make([]byte, int(binary.NativeEndian.Uint16(h[2:]))-rcopyHeader)
	_, err = io.ReadFull(conn, rest)
	return int(binary.NativeEndian.Uint32(h[4:])), rest, err
}

// rcopyServer receives a file. Its name is the client's; the folder is not.
func rcopyServer(conn net.Conn, place func(name string) string) error {
	_, name, err := rcopyRead(conn, rcopyOpen)
	if err != nil {
		return err
	}
	f, err := os.Create(place(string(bytes.TrimRight(name, "\x00"))))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := conn.Write(rcopyMessage(rcopyOpen|rcopyAnswer, 0, nil)); err != nil {
		return err
	}
	_, size, err := rcopyRead(conn, rcopyWrite)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, conn, int64(binary.NativeEndian.Uint64(size))); err != nil {
		return err
	}
	if _, err := conn.Write(rcopyMessage(rcopyWrite|rcopyAnswer, 0, nil)); err != nil {
		return err
	}
	if _, _, err := rcopyRead(conn, rcopyClose); err != nil {
		return err
	}
	if _, err := conn.Write(rcopyMessage(rcopyClose|rcopyAnswer, 0, nil)); err != nil {
		return err
	}
	if err := expectEnd(conn); err != nil {
		return err
	}
	return f.Close()
}

// rcopyClient sends a file.
func rcopyClient(conn net.Conn, data []byte, name string) error {
	padded := make([]byte, (len(name)+8)/8*8)
	copy(padded, name)
	ask := func(command byte, number int, rest, data []byte) error {
		if _, err := conn.Write(append(rcopyMessage(command, number, rest), data...)); err != nil {
			return err
		}
		code, _, err := rcopyRead(conn, command|rcopyAnswer)
		if err == nil && code != 0 {
			err = fmt.Errorf("rcopy answered command %d with error %d", command, code)
		}
		return err
	}
	if err := ask(rcopyOpen, 0o100644, padded, nil); err != nil {
		return err
	}
	if err := ask(rcopyWrite, 0, binary.NativeEndian.AppendUint64(nil, uint64(len(data))), data); err != nil {
		return err
	}
	return ask(rcopyClose, 0, nil, nil)
}

// sink receives until the end of the data, and counts.
func sink(conn net.Conn) (int64, error) {
	return io.Copy(io.Discard, conn)
}

// iperfClient sends n bytes. The header of iperf's client is 32 bits of flags; none are set.
func iperfClient(conn halfCloser, n int) error {
	zeros := make([]byte, 128<<10)
	for piece := range pieces(n, len(zeros)) {
		if _, err := conn.Write(zeros[:piece]); err != nil {
			return err
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	_, err := sink(conn) // iperf's server may answer
	return err
}

// memcache is a client of memcached, by the text protocol.
type memcache struct {
	conn net.Conn
	in   *bufio.Reader
}

func newMemcache(conn net.Conn) *memcache { return &memcache{conn, bufio.NewReader(conn)} }

// exchange sets a value, and gets it back.
func (m *memcache) exchange(key string, value []byte) error {
	if _, err := fmt.Fprintf(m.conn, "set %s 0 0 %d\r\n%s\r\n", key, len(value), value); err != nil {
		return err
	}
	if err := m.line("STORED"); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(m.conn, "get %s\r\n", key); err != nil {
		return err
	}
	if err := m.line(fmt.Sprintf("VALUE %s 0 %d", key, len(value))); err != nil {
		return err
	}
	got := make([]byte, len(value))
	if _, err := io.ReadFull(m.in, got); err != nil {
		return err
	}
	if !bytes.Equal(got, value) {
		return fmt.Errorf("the value of %s, of %d bytes, came back changed", key, len(value))
	}
	if err := m.line(""); err != nil {
		return err
	}
	return m.line("END")
}

func (m *memcache) line(want string) error {
	got, err := m.in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("%q, instead of %q: %w", got, want, err)
	}
	if got = strings.TrimSuffix(got, "\r\n"); got != want {
		return fmt.Errorf("memcached answered %q instead of %q", got, want)
	}
	return nil
}

// quit makes memcached close the connection.
func (m *memcache) quit() error {
	if _, err := io.WriteString(m.conn, "quit\r\n"); err != nil {
		return err
	}
	return expectEnd(m.in)
}
