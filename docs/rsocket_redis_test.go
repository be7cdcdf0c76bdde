package docs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
)

// redisClient speaks RESP, the protocol of Redis, over any net.Conn.
type redisClient struct {
	conn net.Conn
	r    *bufio.Reader
}

func dialRedis(ctx context.Context, addr string) (*redisClient, error) {
	conn, err := rsocket.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &redisClient{conn, bufio.NewReader(conn)}, nil
}

// pipeline sends the commands without waiting for replies, which are strings, numbers (int64),
// errors and nil.
func (c *redisClient) pipeline(commands ...[]string) ([]any, error) {
	sent := make(chan error, 1)
	go func() { // beside reading: else each end could wait for the other to read
		w := bufio.NewWriter(c.conn)
		for _, args := range commands {
			fmt.Fprintf(w, "*%d\r\n", len(args))
			for _, arg := range args {
				fmt.Fprintf(w, "$%d\r\n%s\r\n", len(arg), arg)
			}
		}
		sent <- w.Flush()
	}()
	replies := make([]any, 0, len(commands))
	for range commands {
		reply, err := readReply(c.r)
		if err != nil {
			_ = c.conn.Close() // ends the writing
			return replies, errors.Join(err, <-sent)
		}
		replies = append(replies, reply)
	}
	return replies, <-sent
}

const maxValue = 512 << 20 // bytes, as in Redis

// readReply reads a reply that is not an array.
func readReply(r *bufio.Reader) (any, error) {
	kind, text, err := readLine(r)
	if err != nil {
		return nil, err
	}
	switch kind {
	case '+':
		return text, nil
	case '-':
		return errors.New(text), nil
	case ':':
		return strconv.ParseInt(text, 10, 64)
	case '$':
		if text == "-1" {
			return nil, nil
		}
		return readValue(r, text)
	}
	return nil, fmt.Errorf("reply of unknown type %q", kind)
}

// readLine reads the first line of a value: its type, and the rest.
func readLine(r *bufio.Reader) (kind byte, text string, err error) {
	line, err := r.ReadSlice('\n') // bufio.ErrBufferFull: too long
	if err != nil {
		return 0, "", err
	}
	kind, text = line[0], strings.TrimSuffix(string(line[1:]), "\r\n")
	return kind, text, nil
}

// readValue reads a bulk string behind its line, which has its length.
func readValue(r *bufio.Reader, length string) (string, error) {
	n, err := strconv.ParseUint(length, 10, 32)
	if err != nil || n > maxValue {
		return "", fmt.Errorf("a bulk string has the length %q", length)
	}
	var value strings.Builder
	if _, err := io.CopyN(&value, r, int64(n)+2); err != nil {
		return "", err
	}
	return value.String()[:n], nil
}

// A client sends commands in pipelines, larger than what the buffers of the connection hold.
func TestRedis(t *testing.T) {
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { serveRedis(t, l) })
	defer serving.Wait()
	defer func() { require.NoError(t, l.Close()) }()
	var clients sync.WaitGroup
	defer clients.Wait()
	for i := range 4 {
		clients.Go(func() {
			c, err := dialRedis(context.Background(), l.Addr().String())
			if !assert.NoError(t, err) {
				return
			}
			defer c.conn.Close()
			name, large := fmt.Sprint("counter", i), strings.Repeat("x", 100_000)
			replies, err := c.pipeline([]string{"PING"}, []string{"SET", name, "41"}, []string{"INCR", name}, []string{"GET", name}, []string{"GET", "nothing"}, []string{"FLY"})
			assert.NoError(t, err)
			assert.Equal(t, []any{"PONG", "OK", int64(42), "42", nil, errors.New("ERR unknown command 'FLY'")}, replies)
			var commands [][]string
			for range 50 {
				commands = append(commands, []string{"SET", name, large}, []string{"GET", name})
			}
			replies, err = c.pipeline(commands...)
			assert.NoError(t, err)
			assert.Len(t, replies, len(commands))
			for j := 1; j < len(replies); j += 2 {
				assert.True(t, replies[j] == large)
			}
		})
	}
}

// A server that goes in the middle of a pipeline ends it with an error.
func TestRedisServerGoes(t *testing.T) {
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := l.Accept()
		if assert.NoError(t, err) {
			_, _ = io.CopyN(io.Discard, conn, 1000)
			_, _ = io.WriteString(conn, "+OK\r\n$100\r\nshort")
			_ = conn.Close()
		}
	})
	defer serving.Wait()
	c, err := dialRedis(context.Background(), l.Addr().String())
	require.NoError(t, err)
	commands := make([][]string, 1000)
	for i := range commands {
		commands[i] = []string{"SET", "a", strings.Repeat("x", 10_000)}
	}
	replies, err := c.pipeline(commands...)
	require.Error(t, err)
	require.Equal(t, []any{"OK"}, replies)
}

// serveRedis is a server with a few commands, until its listener is closed and its clients have
// gone.
func serveRedis(t *testing.T, l net.Listener) {
	var mu sync.Mutex
	values := map[string]string{}
	execute := func(args []string) string {
		mu.Lock()
		defer mu.Unlock()
		switch name := strings.ToUpper(args[0]); {
		case name == "PING":
			return "+PONG\r\n"
		case name == "SET" && len(args) == 3:
			values[args[1]] = args[2]
			return "+OK\r\n"
		case name == "GET" && len(args) == 2:
			value, ok := values[args[1]]
			if !ok {
				return "$-1\r\n"
			}
			return fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
		case name == "INCR" && len(args) == 2:
			n, err := strconv.Atoi(values[args[1]])
			if err != nil {
				return "-ERR value is not an integer or out of range\r\n"
			}
			values[args[1]] = strconv.Itoa(n + 1)
			return fmt.Sprintf(":%d\r\n", n+1)
		}
		return fmt.Sprintf("-ERR unknown command '%s'\r\n", args[0])
	}
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			assert.ErrorIs(t, err, net.ErrClosed)
			return
		}
		clients.Go(func() {
			defer conn.Close()
			r, w := bufio.NewReader(conn), bufio.NewWriter(conn)
			for {
				args, err := readCommand(r)
				if err != nil {
					assert.ErrorIs(t, err, io.EOF)
					return
				}
				_, _ = w.WriteString(execute(args))
				if r.Buffered() == 0 { // no further command of the pipeline is here
					_ = w.Flush()
				}
			}
		})
	}
}

// readCommand reads an array of bulk strings.
func readCommand(r *bufio.Reader) ([]string, error) {
	kind, text, err := readLine(r)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(text)
	if kind != '*' || err != nil || n < 1 || n > 1000 {
		return nil, fmt.Errorf("%c%s is no command", kind, text)
	}
	args := make([]string, n)
	for i := range args {
		kind, text, err := readLine(r)
		if err != nil {
			return nil, err
		}
		if kind != '$' {
			return nil, fmt.Errorf("%c%s is no bulk string", kind, text)
		}
		if args[i], err = readValue(r, text); err != nil {
			return nil, err
		}
	}
	return args, nil
}
