package sockets

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// meet opens the stack. Requests connect to the address.
func (c *child) meet(_ context.Context, q request) (r reply, err error) {
	c.peer = q.Address
	c.stack, err = open(c.o, q.Connections)
	return r, err
}

// dial connects to the server, which does something with messages of a size.
func (c *child) dial(ctx context.Context, do byte, size int) (conn, error) {
	nc, err := c.stack.dial(ctx, c.peer)
	if err != nil {
		return nil, err
	}
	if _, err := nc.Write(binary.BigEndian.AppendUint32([]byte{do}, uint32(size))); err != nil {
		_ = nc.Close()
		return nil, err
	}
	return nc.(conn), nil
}

// trip measures round trips. The reply has the median, in seconds.
func (c *child) trip(ctx context.Context, q request) (r reply, err error) {
	nc, err := c.dial(ctx, doEcho, q.Size)
	if err != nil {
		return r, err
	}
	defer nc.Close()
	buf := make([]byte, q.Size)
	var samples []float64
	begin := time.Now()
	for now := begin; now.Sub(begin) < warmUp+q.Time || len(samples) == 0; {
		if _, err := nc.Write(buf); err != nil {
			return r, err
		}
		if _, err := io.ReadFull(nc, buf); err != nil {
			return r, err
		}
		start := now
		if now = time.Now(); start.Sub(begin) >= warmUp {
			samples = append(samples, now.Sub(start).Seconds())
		}
	}
	slices.Sort(samples)
	return reply{Value: samples[len(samples)/2]}, nil
}

// bandwidth measures how fast data arrives. The reply has bytes a second.
func (c *child) bandwidth(ctx context.Context, q request) (r reply, err error) {
	if _, err = c.stream(ctx, q.Size, warmUp); err == nil {
		r.Value, err = c.stream(ctx, q.Size, q.Time)
	}
	return r, err
}

// stream writes for some time, and waits until all has been read.
func (c *child) stream(ctx context.Context, size int, d time.Duration) (float64, error) {
	nc, err := c.dial(ctx, doSink, max(size, readSize))
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	buf := make([]byte, size)
	begin := time.Now()
	for time.Since(begin) < d {
		for range max(1, 4096/size) { // the clock takes time, too
			if _, err := nc.Write(buf); err != nil {
				return 0, err
			}
		}
	}
	if err := nc.CloseWrite(); err != nil {
		return 0, err
	}
	answer := make([]byte, 8)
	if _, err := io.ReadFull(nc, answer); err != nil {
		return 0, fmt.Errorf("wait until all has been read: %w", err)
	}
	return float64(binary.BigEndian.Uint64(answer)) / time.Since(begin).Seconds(), nil
}

// readSize is how much a reader takes at a time, at least.
const readSize = 64 << 10

// requests measures HTTP requests, several at a time. The reply has requests a second.
func (c *child) requests(ctx context.Context, q request) (r reply, err error) {
	transport := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx, doWeb, 0) },
		MaxIdleConnsPerHost: q.Count, DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	url := fmt.Sprintf("http://%s/%d", c.peer, q.Size)
	begin := time.Now()
	counts, errs := make([]int, q.Count), make([]error, q.Count)
	var wait sync.WaitGroup
	for i := range q.Count {
		wait.Go(func() {
			for errs[i] == nil {
				now := time.Since(begin)
				if now > warmUp+q.Time {
					return
				}
				if errs[i] = get(ctx, client, url, q.Size); now > warmUp {
					counts[i]++
				}
			}
		})
	}
	wait.Wait()
	total := 0
	for i, n := range counts {
		if errs[i] != nil {
			return r, errs[i]
		}
		total += n
	}
	return reply{Value: float64(total) / (time.Since(begin) - warmUp).Seconds()}, nil
}

func get(ctx context.Context, client *http.Client, url string, size int) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := client.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	n, err := io.Copy(io.Discard, r.Body)
	if err == nil && (n != int64(size) || r.StatusCode != http.StatusOK) {
		err = fmt.Errorf("GET %s: %s, with %d bytes", url, r.Status, n)
	}
	return err
}

// hold makes connections and keeps them. The server reads from them, or does not if Size is zero.
func (c *child) hold(ctx context.Context, q request) (r reply, err error) {
	do := doSink
	if q.Size == 0 {
		do = doStop
	}
	begin := time.Now()
	var mu sync.Mutex
	var wait sync.WaitGroup
	left := q.Count
	for range min(q.Count, 64) { // dials at a time
		wait.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for left > 0 && err == nil {
				left--
				mu.Unlock()
				nc, e := c.dial(ctx, do, max(q.Size, readSize))
				mu.Lock()
				if e != nil {
					err = e
					return
				}
				c.held = append(c.held, nc)
			}
		})
	}
	wait.Wait()
	return reply{Value: time.Since(begin).Seconds()}, err
}

// write begins to write messages of a size on the connections that are held.
func (c *child) write(_ context.Context, q request) (r reply, err error) {
	buf := make([]byte, q.Size)
	for ; c.written < len(c.held); c.written++ {
		nc := c.held[c.written]
		c.writes.Go(func() {
			for !c.stopping.Load() { // they would leave release no processor time
				if _, err := nc.Write(buf); err != nil {
					return // it is closed
				}
			}
		})
	}
	return r, nil
}

// release closes the newest of the connections that are held, or all of them.
func (c *child) release(_ context.Context, q request) (r reply, err error) {
	left := 0
	if q.Count > 0 {
		left = len(c.held) - q.Count
	}
	c.stopping.Store(left == 0)
	for _, nc := range c.held[left:] {
		_ = nc.Close()
	}
	c.held, c.written = c.held[:left], min(c.written, left)
	return r, nil
}
