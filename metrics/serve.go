package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/statsocket"
)

// Serve lets the command verbena stat of the same user, in the same network namespace, see the
// sources, until Close. It opens a Unix socket without a file, checks the user of each peer by
// SO_PEERCRED, and reads nothing. Close waits until its goroutine has ended. On systems other than
// Linux it fails with an error that matches errors.ErrUnsupported.
func Serve(sources ...Source) (io.Closer, error) {
	l, err := statsocket.Listen()
	if err != nil {
		return nil, fmt.Errorf("metrics: listen for verbena stat: %w", err)
	}
	s := &server{listener: l, sources: slices.Clone(sources), closing: make(chan struct{})}
	s.done.Go(s.run)
	return s, nil
}

type server struct {
	listener *net.UnixListener
	sources  []Source
	closing  chan struct{}
	done     sync.WaitGroup

	mu      sync.Mutex
	serving *net.UnixConn // nil: none
	closed  bool
}

// Close implements io.Closer. Closing again does nothing.
func (s *server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.closing)
	if s.serving != nil {
		_ = s.serving.Close()
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.done.Wait()
	return err
}

// run serves one client after the other. One that does not read is dropped after a minute.
func (s *server) run() {
	for {
		c, err := s.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // too many open files, say
			select {
			case <-s.closing:
				return
			case <-time.After(100 * time.Millisecond):
			}
		case s.serve(c):
			_ = statsocket.Send(c, s.write) // a client that has gone, or of another user
			s.serve(nil)
		}
	}
}

// serve notes which client is being served, for Close. It reports false, and closes the connection,
// if the server is closed.
func (s *server) serve(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && c != nil {
		_ = c.Close()
	}
	s.serving = c
	return !s.closed
}

// write writes a snapshot as JSON. Those of many connections come without the texts, which would be
// most of it.
func (s *server) write(w io.Writer) error {
	shot := statsocket.Snapshot[Object]{PID: os.Getpid()}
	if path, err := os.Executable(); err == nil {
		shot.Program = filepath.Base(path)
	}
	for _, source := range s.sources {
		shot.Objects = append(shot.Objects, source.Metrics(true)...)
	}
	for i := range shot.Objects {
		if o := &shot.Objects[i]; o.Kind == "connection" || o.Kind == "stream" {
			for j := range o.Counters {
				o.Counters[j].Help = ""
			}
		}
	}
	return json.NewEncoder(w).Encode(&shot)
}
