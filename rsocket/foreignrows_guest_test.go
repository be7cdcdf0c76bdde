//go:build linux && cgo && verbs

package rsocket_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/rsocket"
)

// foreignRows are the rows of the table.
func foreignRows() []foreignRow {
	rows := rstreamRows()
	rows = append(rows, rcopyRow())
	rows = append(rows, echoRows()...)
	rows = append(rows, ncRows()...)
	rows = append(rows, iperfRow(1), iperfRow(3))
	return append(rows, memcachedRows()...)
}

// With -T a, C's client can fail with exit status 16 (POLLHUP): it takes a hangup for an error even if
// there is data to be read. C's server hangs up after its last message; Go's server waits for the client.
func rstreamRows() (rows []foreignRow) {
	for _, r := range []struct {
		rstream
		options string
	}{
		{rstream{1, 50, 20, true}, "-T v"},
		{rstream{1000, 100, 10, true}, "-T v"},
		{rstream{65536, 10, 3, true}, "-T v"},
		{rstream{4096, 50, 5, false}, "-T b"},
		{rstream{4096, 50, 5, false}, "-T n"},
		{rstream{4096, 50, 5, false}, "-T a"},
		{rstream{4096, 50, 5, false}, "-T r"},
		{rstream{1000000, 3, 1, true}, "-T v -T b"},
		{rstream{1000000, 3, 1, true}, "-T v -T n"},
		{rstream{1000000, 3, 1, true}, "-T v -T a"},
		{rstream{1000, 100, 10, true}, "-T v -B 4096"},
		{rstream{1000, 100, 10, true}, "-T v -i 0"},
		{rstream{1000, 100, 10, true}, "-T v -k 1"},
		{rstream{1000, 100, 10, true}, "-T v -f ipv6"},
	} {
		options := fmt.Sprintf("-S %d -C %d -I %d %s", r.size, r.transfers, r.iterations, r.options)
		rows = append(rows, foreignRow{
			name:   fmt.Sprintf("rstream -S %d %s", r.size, r.options),
			short:  r.size == 65536,
			ipv6:   strings.Contains(r.options, "ipv6"),
			server: &command{words: "rstream -b ADDR -p PORT " + options},
			client: &command{words: "rstream -s ADDR -p PORT " + options},
			serve:  func(_ *trial, c *rsocket.Conn) error { return r.server(c) },
			dial:   func(_ *trial, c *rsocket.Conn) error { return r.client(c) },
		})
	}
	return rows
}

func rcopyRow() foreignRow {
	return foreignRow{
		name:   "rcopy",
		short:  true,
		server: &command{words: "rcopy -p PORT", stays: true},
		client: &command{words: "rcopy " + clientFile + " ADDR:" + atServer + " -p PORT"},
		serve: func(tr *trial, c *rsocket.Conn) error {
			return rcopyServer(c, tr.file)
		},
		dial: func(tr *trial, c *rsocket.Conn) error {
			data, err := os.ReadFile(tr.file(clientFile))
			if err != nil {
				return err
			}
			return rcopyClient(c, data, atServer)
		},
		files: [][2]string{{clientFile, atServer}},
	}
}

func echoRows() (rows []foreignRow) {
	for _, e := range []struct{ bytes, piece, runs int }{{1, 1, 1}, {3_000_000, 7000, 1}, {3_000_000, 200_000, 1}, {100, 100, 10}} {
		name := fmt.Sprintf("echo of %d bytes in pieces of %d", e.bytes, e.piece)
		if e.runs > 1 {
			name = fmt.Sprintf("echo, %d connections in turn", e.runs)
		}
		rows = append(rows, foreignRow{
			name:   name,
			short:  e.runs == 1 && e.piece == 7000,
			runs:   e.runs,
			server: &command{words: fmt.Sprintf("sockecho serve ADDR PORT %d", e.runs), env: under(preload)},
			client: &command{words: fmt.Sprintf("sockecho dial ADDR PORT %d %d", e.bytes, e.piece), env: under(preload)},
			serve:  func(_ *trial, c *rsocket.Conn) error { return echoServer(c) },
			dial:   func(_ *trial, c *rsocket.Conn) error { return echoClient(c, e.bytes, e.piece) },
		})
	}
	return rows
}

func ncRows() []foreignRow {
	forth := [][2]string{{clientFile, atServer}}
	receive := func(tr *trial, c *rsocket.Conn) error { return receiveFile(c, tr.file(atServer)) }
	send := func(tr *trial, c *rsocket.Conn) error { return transfer(c, tr.file(clientFile), tr.file(atClient)) }
	return []foreignRow{
		{
			// librspreload.so takes over neither accept4 nor socket with SOCK_NONBLOCK.
			name:   "nc.openbsd, as it is",
			server: &command{words: "nc.openbsd -l ADDR PORT", env: under(preload), stdout: atServer},
			client: &command{words: "nc.openbsd -v -N ADDR PORT", env: under(preload), stdin: clientFile},
			files:  forth,
		}, {
			name:   "nc.openbsd with newcalls.so",
			server: &command{words: "nc.openbsd -l ADDR PORT", env: under(newCalls, preload), stdout: atServer},
			client: &command{words: "nc.openbsd -v -N ADDR PORT", env: under(newCalls, preload), stdin: clientFile},
			serve:  receive, dial: send, files: forth,
		}, {
			name:   "nc.openbsd with newcalls.so, both ways",
			server: &command{words: "nc.openbsd -N -l ADDR PORT", env: under(newCalls, preload), stdin: serverFile, stdout: atServer},
			client: &command{words: "nc.openbsd -v -N ADDR PORT", env: under(newCalls, preload), stdin: clientFile, stdout: atClient},
			serve: func(tr *trial, c *rsocket.Conn) error {
				return transfer(c, tr.file(serverFile), tr.file(atServer))
			},
			dial:  send,
			files: [][2]string{{clientFile, atServer}, {serverFile, atClient}},
		}, {
			name:   "nc.traditional",
			short:  true,
			server: &command{words: "nc.traditional -n -l -s ADDR -p PORT", env: under(preload), stdout: atServer},
			client: &command{words: "nc.traditional -n -v -q 0 ADDR PORT", env: under(preload), stdin: clientFile},
			serve:  receive, dial: send, files: forth,
		},
	}
}

// iperfRow has at most three connections, for the reason in memcachedRows.
func iperfRow(connections int) foreignRow {
	const each = 4 << 20
	enough := func(n int64) error {
		if n < each-4 || n > each+64 {
			return fmt.Errorf("%d bytes arrived, instead of %d and a header", n, each)
		}
		return nil
	}
	return foreignRow{
		name:        fmt.Sprintf("iperf -P %d", connections),
		short:       connections > 1,
		connections: connections,
		server:      &command{words: fmt.Sprintf("iperf -s -B ADDR -p PORT -P %d -y C", connections), env: under(preload), stdout: report},
		client:      &command{words: fmt.Sprintf("iperf -c ADDR -p PORT -P %d -n %d", connections, each), env: under(preload)},
		serve: func(_ *trial, c *rsocket.Conn) error {
			n, err := sink(c)
			return errors.Join(err, enough(n))
		},
		alone: func(tr *trial, s *rsocket.Stack) error {
			return atOnce(tr, s, connections, func(_ int, c *rsocket.Conn) error { return iperfClient(c, each) })
		},
		check: func(tr *trial) error {
			text, err := os.ReadFile(tr.file(report))
			if err != nil {
				return err
			}
			ids := 0
			for line := range strings.Lines(string(text)) {
				// Date, addresses and ports, number of the connection or -1 for the sum, seconds, bytes, bits a second.
				f := strings.Split(strings.TrimSpace(line), ",")
				if len(f) < 9 || strings.HasPrefix(f[5], "-") {
					continue
				}
				ids++
				n, err := strconv.ParseInt(f[7], 10, 64)
				if err = errors.Join(err, enough(n)); err != nil {
					return err
				}
			}
			if ids != connections {
				return fmt.Errorf("iperf reports %d connections, instead of %d: %s", ids, connections, text)
			}
			return nil
		},
	}
}

func memcachedRows() []foreignRow {
	// librspreload.so does not take over epoll either.
	server := &command{
		words: "memcached -u root -l ADDR -p PORT -U 0 -t 2 -c 200",
		env:   append(under(newCalls, preload), "EVENT_NOEPOLL=1"), stays: true,
	}
	client := &command{words: "nc.openbsd -v ADDR PORT", env: under(newCalls, preload), stdin: requests, stdout: atClient}
	plain := *server
	plain.env = under(preload)
	return []foreignRow{
		{name: "memcached, as it is", server: &plain, client: client},
		{
			name: "memcached with newcalls.so and poll", short: true, server: server, client: client,
			dial: func(_ *trial, c *rsocket.Conn) error {
				m := newMemcache(c)
				for _, size := range []int{1, 100, 4096, 65536, 300_000, 900 << 10} {
					if err := m.exchange(fmt.Sprintf("key%d", size), (&sequence{at: size, period: primes}).next(size)); err != nil {
						return fmt.Errorf("value of %d bytes: %w", size, err)
					}
				}
				return m.quit()
			},
		},
		{
			// librdmacm before rdma-core 53.0 (and 44.7) supports three accepted connections at a time.
			// For the fourth, its thread cm_svc_run goes on with an array of file descriptors that has been
			// freed. It then reads an event that does not come, accept and close wait for the thread, and
			// the server hangs. With that corrected in 44.0 (by commit 24061f015 of rdma-core alone), 50
			// connections pass with C and with Go.
			name: "memcached, 3 connections at once", server: server, client: memcachedClient(3),
			alone: func(tr *trial, s *rsocket.Stack) error {
				return atOnce(tr, s, 3, func(i int, c *rsocket.Conn) error {
					m := newMemcache(c)
					for j := range 10 {
						if err := m.exchange(fmt.Sprintf("key-%d-%d", i, j), (&sequence{at: i, period: primes}).next(1+i*j*40)); err != nil {
							return fmt.Errorf("connection %d: %w", i, err)
						}
					}
					return m.quit()
				})
			},
		},
		{name: "memcached, 50 connections at once", server: server, client: memcachedClient(50), patience: time.Minute},
	}
}

func memcachedClient(connections int) *command {
	return &command{words: fmt.Sprintf("sockecho memcached ADDR PORT %d", connections), env: under(preload)}
}

// atOnce makes that many connections, and then uses all of them at the same time.
func atOnce(tr *trial, s *rsocket.Stack, connections int, do func(i int, c *rsocket.Conn) error) error {
	var conns []*rsocket.Conn
	for range connections {
		c, err := s.Dial(tr.ctx, tr.addr.String())
		if err != nil {
			for _, c := range conns {
				_ = c.Close()
			}
			return fmt.Errorf("after %d connections: %w", len(conns), err)
		}
		conns = append(conns, c)
	}
	results := make(chan error)
	for i, c := range conns {
		go func() {
			results <- tr.on(c, func(_ *trial, c *rsocket.Conn) error { return do(i, c) })
		}()
	}
	var err error
	for range conns {
		err = errors.Join(err, <-results)
	}
	return err
}
