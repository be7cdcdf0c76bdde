package perf

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
)

// Both roles of the conversation of perftest, with each other. Tests in the guest have its
// programs at the other end.
func TestPerftestWithItself(t *testing.T) {
	for _, flags := range []string{
		"-test write_bw -s 1000", "-test read_bw -s 70000 -t 4", "-test send_bw -l 5", "-test fetch_add_bw", "-test compare_swap_bw",
		"-test write_lat -s 9000", "-test send_lat", "-test read_lat", "-test fetch_add_lat", "-test compare_swap_lat", "-test send_lat -e",
	} {
		t.Run(flags, func(t *testing.T) {
			args := append(strings.Fields(flags), "-n", "50", "-perftest", "-timeout", "5m", "-wait", "5m")
			out := &output{}
			code, done := -1, make(chan struct{})
			go func() {
				defer close(done)
				code = Main(t.Context(), append(args, "-p", "0", "-bind", "127.0.0.1"), out, out)
			}()
			addr := listeningAt(t, out, done)
			clientCode, text := run(t, append(args, addr)...)
			<-done
			require.Equal(t, exit.OK, clientCode, "%s\n%s", text, out)
			require.Equal(t, exit.OK, code, "%s", out)
			if !strings.Contains(flags, "write_lat") { // which tells one time fewer
				assert.Contains(t, text, " 50 ")
			}
			assert.Contains(t, out.String(), "which measures")
		})
	}
}

func TestPerftestUsage(t *testing.T) {
	for want, flags := range map[string]string{
		"one test":                   "-test write_bw,read_bw",
		"with one size":              "-s 8,16",
		"on one connection":          "-q 2",
		"cannot be used with -b":     "-b",
		"-D":                         "-D 1",
		"multiple of the batch size": "-n 10 -l 3",
		"5 operations":               "-n 4",
		"has no program that writes with immediate": "-test write_imm_bw",
	} {
		code, out := run(t, append(strings.Fields(flags), "-perftest", "host")...)
		assert.Equal(t, exit.Usage, code)
		assert.Contains(t, out, want)
		assert.Equal(t, 1, strings.Count(out, "\n"), "%s", out)
	}
}

// Other ends that are something else end the test, and so does one that goes away.
func TestPerftestWithOthers(t *testing.T) {
	for want, says := range map[string]string{
		"want \"6.06\"":             "SSH-2.0-OpenSSH_9.2\r\n",
		"has closed the connection": "6.06\x00",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(says))
			_, _ = conn.Read(make([]byte, 16))
			_ = conn.Close()
		}()
		code, out := run(t, "-perftest", l.Addr().String())
		<-done
		require.NoError(t, l.Close())
		assert.Equal(t, exit.Failed, code)
		assert.Contains(t, out, want)
	}
}
