package valkey

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/soft"
)

// line reads a line of RESP, the protocol of Redis, without its end.
func line(r *bufio.Reader) (string, error) {
	s, err := r.ReadString('\n')
	return strings.TrimSuffix(s, "\r\n"), err
}

// reply reads a reply as it came.
func reply(r *bufio.Reader) (string, error) {
	s, err := line(r)
	if err != nil || s == "" {
		return s, err
	}
	n, _ := strconv.Atoi(s[1:])
	switch {
	case s[0] == '$' && n >= 0:
		b := make([]byte, n+2)
		_, err = io.ReadFull(r, b)
		return s + " " + string(b[:n]), err
	case s[0] == '*':
		for range n {
			var part string
			if part, err = reply(r); err != nil {
				return s, err
			}
			s += " " + part
		}
	}
	return s, err
}

// request writes a command.
func request(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

// small is a small server of RESP.
type small struct {
	mu      sync.Mutex
	values  map[string]string
	lists   map[string][]string
	pushed  chan struct{} // closed when a list grows
	readers map[string][]*smallConn
	conns   map[net.Conn]bool
	stopped bool
	done    chan struct{}
	all     sync.WaitGroup
}

// smallConn is a connection of small.
type smallConn struct {
	net.Conn
	mu            sync.Mutex
	out           *bufio.Writer
	subscriptions int
}

// serve serves RESP at an address, by TCP and by RDMA, until the process is asked to end.
func serve(addr string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dev, err := soft.Open(soft.Config{})
	if err != nil {
		return err
	}
	stack, err := New(Config{Device: dev})
	if err != nil {
		return err
	}
	byRDMA, err := stack.Listen(addr)
	if err != nil {
		return err
	}
	byTCP, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s := newSmall()
	s.serve(byTCP)
	s.serve(byRDMA)
	fmt.Println("ready")
	<-ctx.Done()
	err = errors.Join(byTCP.Close(), byRDMA.Close())
	s.stop()
	return errors.Join(err, stack.Close(), dev.Close())
}

func newSmall() *small {
	return &small{
		values: map[string]string{}, lists: map[string][]string{}, pushed: make(chan struct{}),
		readers: map[string][]*smallConn{}, conns: map[net.Conn]bool{}, done: make(chan struct{}),
	}
}

// serve serves a listener until it is closed.
func (s *small) serve(l net.Listener) {
	s.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = true
			stopped := s.stopped
			s.mu.Unlock()
			if stopped {
				_ = c.Close()
				continue
			}
			s.all.Go(func() { s.talk(&smallConn{Conn: c, out: bufio.NewWriterSize(c, 64<<10)}) })
		}
	})
}

// stop ends all connections. The listeners have been closed.
func (s *small) stop() {
	close(s.done)
	s.mu.Lock()
	s.stopped = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.all.Wait()
}

func (s *small) talk(c *smallConn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReaderSize(c, 64<<10)
	for {
		head, err := line(in)
		if err != nil || !strings.HasPrefix(head, "*") {
			return
		}
		n, _ := strconv.Atoi(head[1:])
		var args []string
		for range n {
			size, err := line(in)
			if err != nil || !strings.HasPrefix(size, "$") {
				return
			}
			n, _ := strconv.Atoi(size[1:])
			b := make([]byte, n+2)
			if _, err := io.ReadFull(in, b); err != nil {
				return
			}
			args = append(args, string(b[:n]))
		}
		if err := s.answer(c, args, in.Buffered() == 0); err != nil {
			return
		}
	}
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// answer answers a command.
func (s *small) answer(c *smallConn, args []string, flush bool) error {
	switch command := strings.ToUpper(args[0]); {
	case command == "PING" && len(args) == 1:
		return c.say("+PONG\r\n", flush)
	case command == "BGSAVE":
		return c.say("+Background saving started\r\n", flush)
	case command == "SET" && len(args) == 3:
		s.mu.Lock()
		s.values[args[1]] = args[2]
		s.mu.Unlock()
		return c.say("+OK\r\n", flush)
	case command == "GET" && len(args) == 2:
		s.mu.Lock()
		v, ok := s.values[args[1]]
		s.mu.Unlock()
		if !ok {
			return c.say("$-1\r\n", flush)
		}
		return c.say(bulk(v), flush)
	case command == "RPUSH" && len(args) == 3:
		s.mu.Lock()
		s.lists[args[1]] = append(s.lists[args[1]], args[2])
		n := len(s.lists[args[1]])
		close(s.pushed)
		s.pushed = make(chan struct{})
		s.mu.Unlock()
		return c.say(fmt.Sprintf(":%d\r\n", n), flush)
	case command == "BLPOP" && len(args) == 3:
		seconds, _ := strconv.ParseFloat(args[2], 64)
		return c.say(s.pop(args[1], time.Duration(seconds*float64(time.Second))), true)
	case command == "SUBSCRIBE" && len(args) == 2:
		s.mu.Lock()
		s.readers[args[1]] = append(s.readers[args[1]], c)
		c.subscriptions++
		s.mu.Unlock()
		return c.say("*3\r\n"+bulk("subscribe")+bulk(args[1])+":1\r\n", true)
	case command == "PUBLISH" && len(args) == 3:
		s.mu.Lock()
		readers := s.readers[args[1]]
		s.mu.Unlock()
		n := 0
		for _, r := range readers {
			if r.say("*3\r\n"+bulk("message")+bulk(args[1])+bulk(args[2]), true) == nil {
				n++
			}
		}
		return c.say(fmt.Sprintf(":%d\r\n", n), flush)
	default:
		return c.say("-ERR unknown command '"+args[0]+"'\r\n", flush)
	}
}

// pop waits for an element of a list.
func (s *small) pop(key string, wait time.Duration) string {
	var over <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	for {
		s.mu.Lock()
		pushed, list := s.pushed, s.lists[key]
		if len(list) > 0 {
			s.lists[key] = list[1:]
		}
		s.mu.Unlock()
		if len(list) > 0 {
			return "*2\r\n" + bulk(key) + bulk(list[0])
		}
		select {
		case <-pushed:
		case <-over:
			return "*-1\r\n"
		case <-s.done:
			return ""
		}
	}
}

func (c *smallConn) say(s string, flush bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.out.WriteString(s)
	if flush {
		err = errors.Join(err, c.out.Flush())
	}
	return err
}
