//go:build linux

package test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// When an end is killed while it works, the other one ends with an error. Its requests fail, or
// the programs' TCP connection ends. A server that only waits for messages is not told, as on
// adapters, and so is not here.
func TestKilled(t *testing.T) {
	needProgram(t, "stdbuf", "coreutils")
	for _, p := range []struct{ name, devices string }{
		{"shared memory", "soft-lo"},
		{"UDP", "soft-lo?local=off"},
	} {
		for _, pair := range []struct{ name, command, running string }{
			{"ib_write_bw", "ib_write_bw -d soft_lo -D 1 --run_infinitely -p ", "65536 "},
			{"ib_send_bw", "ib_send_bw -d soft_lo -D 1 --run_infinitely -p ", "65536 "},
		} {
			for _, victim := range []string{"server", "client"} {
				if pair.name == "ib_send_bw" && victim == "client" {
					continue
				}
				t.Run(p.name+"/"+pair.name+"/"+victim, func(t *testing.T) {
					needProgram(t, pair.name, packageOf(pair.name))
					if testing.Short() && (p.name != "UDP" || victim != "server") {
						t.SkipNow()
					}
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					env := plain.environment(t, "VERBENA_DEVICES="+p.devices)
					var server, client *child
					for range 5 {
						port := freePort(t)
						run := func(more ...string) *child {
							p, err := start(ctx, env, append(append([]string{"stdbuf", "-oL"}, strings.Fields(pair.command+port)...), more...))
							require.NoError(t, err)
							t.Cleanup(p.stop)
							return p
						}
						server = run()
						for !listens(server.PID(), "tcp", port) && !server.ended() && ctx.Err() == nil {
							time.Sleep(20 * time.Millisecond)
						}
						client = run("127.0.0.1")
						for !strings.Contains(client.output.String(), pair.running) && !client.ended() && ctx.Err() == nil {
							time.Sleep(20 * time.Millisecond)
						}
						if !strings.Contains(server.output.String()+client.output.String(), noFrequency) {
							break
						}
						// perftest could not measure the processor's frequency, so it has ended.
						server.stop()
						client.stop()
					}
					killed, other := server, client
					if victim == "client" {
						killed, other = client, server
					}
					require.False(t, client.ended() || server.ended(), "%s\n%s", client.output.String(), server.output.String())
					require.NoError(t, syscall.Kill(killed.PID(), syscall.SIGKILL))
					require.Error(t, other.Wait())
					assert.NoError(t, ctx.Err(), "it does not end")
				})
			}
		}
	}
}
