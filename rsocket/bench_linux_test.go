package rsocket

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkConnect makes a connection, sends a byte there and back, and closes it. cpu-µs is the time
// of the processors for it.
func BenchmarkConnect(b *testing.B) {
	type dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	networks := map[string]func() (net.Listener, dialer){
		"TCP": func() (net.Listener, dialer) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			return l, new(net.Dialer).DialContext
		},
	}
	for name, dev := range paths {
		networks[name] = func() (net.Listener, dialer) {
			l, err := open(b, dev, Config{}).Listen("127.0.0.1:0")
			require.NoError(b, err)
			return l, open(b, dev, Config{}).DialContext
		}
	}
	for name, network := range networks {
		b.Run(name, func(b *testing.B) {
			l, dial := network()
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					buf := make([]byte, 1)
					if _, err := io.ReadFull(c, buf); err == nil {
						_, _ = c.Write(buf)
					}
					_ = c.Close()
				}
			}()
			buf := make([]byte, 1)
			b.ReportAllocs()
			before := processorTime()
			for b.Loop() {
				c, err := dial(context.Background(), "tcp", l.Addr().String())
				require.NoError(b, err)
				_, err = c.Write(buf)
				require.NoError(b, err)
				_, err = io.ReadFull(c, buf)
				require.NoError(b, err)
				require.NoError(b, c.Close())
			}
			b.ReportMetric(float64(processorTime()-before)/1e3/float64(b.N), "cpu-µs/op")
		})
	}
}

// processorTime is the time that this process has had, user and system, in nanoseconds.
func processorTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}
