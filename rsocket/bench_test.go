package rsocket

import (
	"fmt"
	"io"
	"net"
	"testing"

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
		m[name] = func() (net.Conn, net.Conn) {
			return connect(b, open(b, dev, Config{}), open(b, dev, Config{}))
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
