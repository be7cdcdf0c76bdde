package proxy

import (
	"errors"
	"net"
	"sync"
)

// joint is a listener that has the connections of several listeners.
type joint struct {
	parts    []net.Listener
	accepted chan accepted
	closing  chan struct{}
	once     sync.Once
	work     sync.WaitGroup
	err      error // of Close
}

// accepted is what Accept of a part has returned.
type accepted struct {
	conn net.Conn
	err  error
}

// joinListeners returns a listener whose address is that of the first part. There is one part at
// least.
func joinListeners(parts []net.Listener) net.Listener {
	if len(parts) == 1 {
		return parts[0]
	}
	j := &joint{parts: parts, accepted: make(chan accepted), closing: make(chan struct{})}
	for _, part := range parts {
		j.work.Go(func() { j.serve(part) })
	}
	return j
}

// serve accepts connections of one part until that fails, as it does when it is closed.
func (j *joint) serve(part net.Listener) {
	for {
		conn, err := part.Accept()
		select {
		case j.accepted <- accepted{conn, err}:
		case <-j.closing:
			if err == nil {
				reset(conn.(stream))
			}
			return
		}
		if err != nil && !temporary(err) {
			return
		}
	}
}

// Accept implements net.Listener.
func (j *joint) Accept() (net.Conn, error) {
	select {
	case a := <-j.accepted:
		return a.conn, a.err
	case <-j.closing:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (j *joint) Close() error {
	j.once.Do(func() {
		close(j.closing)
		for _, part := range j.parts {
			j.err = errors.Join(j.err, part.Close())
		}
		j.work.Wait()
	})
	return j.err
}

// Addr implements net.Listener.
func (j *joint) Addr() net.Addr { return j.parts[0].Addr() }
