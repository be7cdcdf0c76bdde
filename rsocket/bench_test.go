package rsocket

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pairs are the ways to connect two ends on this machine.
func pairs(b *testing.B) map[string]func() (near, far net.Conn) {
	m := map[string]func() (near, far net.Conn){
		"TCP": func() (net.Conn, net.Conn) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			defer l.Close()
			near, err := net.Dial("tcp", l.Addr().String())
			require.NoError(b, err)
			far, err := l.Accept()
			require.NoError(b, err)
			return near, far
		},
	}
	for name, dev := range paths {
		stacks := sync.OnceValues(func() (client, server *Stack) { return open(b, dev, Config{}), open(b, dev, Config{}) })
		m[name] = func() (net.Conn, net.Conn) {
			client, server := stacks()
			return connect(b, client, server)
		}
	}
	return m
}

func BenchmarkRoundTrip(b *testing.B) {
	for name, pair := range pairs(b) {
		for _, size := range sizesOf() {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				near, far := pair()
				defer near.Close()
				defer far.Close()
				go func() {
					buf := make([]byte, size)
					for {
						if _, err := io.ReadFull(far, buf); err != nil {
							return
						}
						if _, err := far.Write(buf); err != nil {
							return
						}
					}
				}()
				buf := make([]byte, size)
				b.ReportAllocs()
				for b.Loop() {
					_, err := near.Write(buf)
					require.NoError(b, err)
					_, err = io.ReadFull(near, buf)
					require.NoError(b, err)
				}
			})
		}
	}
}

// BenchmarkBodies has 16 connections ask for 1 MiB at the same time, again and again. p99/p50 is how much
// longer than usual the slowest answers take: connections are to be served in turn.
func BenchmarkBodies(b *testing.B) {
	const connections, size = 16, 1 << 20
	for name, pair := range pairs(b) {
		b.Run(name, func(b *testing.B) {
			var times [connections][]time.Duration
			var all sync.WaitGroup
			for i := range connections {
				near, far := pair()
				defer near.Close()
				defer far.Close()
				go func() {
					request, body := make([]byte, 100), make([]byte, size)
					for {
						if _, err := io.ReadFull(far, request); err != nil {
							return
						}
						if _, err := far.Write(body); err != nil {
							return
						}
					}
				}()
				all.Go(func() {
					request, body := make([]byte, 100), make([]byte, size)
					for range b.N {
						begin := time.Now()
						_, err := near.Write(request)
						assert.NoError(b, err)
						_, err = io.ReadFull(near, body)
						assert.NoError(b, err)
						times[i] = append(times[i], time.Since(begin))
					}
				})
			}
			all.Wait()
			b.SetBytes(connections * size)
			sorted := slices.Sorted(slices.Values(slices.Concat(times[:]...)))
			p50, p99 := sorted[len(sorted)/2], sorted[len(sorted)*99/100]
			b.ReportMetric(float64(p99)/1e6, "p99-ms")
			b.ReportMetric(float64(p99)/float64(p50), "p99/p50")
		})
	}
}

func sizesOf() []int { return []int{1, 4 << 10, 64 << 10, 1 << 20} }

func BenchmarkStream(b *testing.B) {
	for name, pair := range pairs(b) {
		for _, size := range sizesOf() {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				near, far := pair()
				defer far.Close()
				done := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, far)
					done <- err
				}()
				buf := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					_, err := near.Write(buf)
					require.NoError(b, err)
				}
				near.Close()
				require.NoError(b, <-done)
			})
		}
	}
}
