//go:build linux

package test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Peers of another user, here and in another network namespace, make requests to a listener whose
// program does not read them, and take them back. What waits for the program stays within the
// backlog. The other listener of the program serves meanwhile, and the first one later.
func TestRequestsTakenBack(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: the test runs programs as another user, which needs root")
	}
	needProgram(t, "setpriv", "util-linux")
	readable(t)
	program := plain.compile(t, "requests")
	for _, p := range networkPlaces(t) {
		t.Run(p.name, func(t *testing.T) { takeRequestsBack(t, p, program) })
	}
}

func takeRequestsBack(t *testing.T, p *place, program string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	starting := func(e *end, words ...string) *child {
		program, err := start(ctx, plain.environment(t, "VERBENA_DEVICES="+e.devices), append(append([]string{}, e.prefix...), words...))
		require.NoError(t, err)
		return program
	}
	victim := starting(&p.server, program, "listen", p.host)
	defer victim.stop()
	said := func(pattern string) []string {
		t.Helper()
		for {
			if found := regexp.MustCompile(pattern).FindStringSubmatch(victim.output.String()); found != nil {
				return found[1:]
			}
			require.False(t, victim.ended(), "%s", victim.output.String())
			time.Sleep(10 * time.Millisecond)
		}
	}
	ports := said(`ports (\d+) (\d+)`)
	dial := func(port, data string) {
		t.Helper()
		honest := starting(&p.client, program, "dial", p.host, port, data)
		require.NoError(t, honest.Wait(), "%s", honest.output.String())
	}
	const requests, leastBacklog = 400, 128
	attacker := starting(&p.client, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "take-back", p.host, ports[0], fmt.Sprint(requests))
	dial(ports[1], "meanwhile")
	require.NoError(t, attacker.Wait(), "%s", attacker.output.String())
	dial(ports[1], "count")
	events, err := strconv.Atoi(said(`(\d+) events`)[0])
	require.NoError(t, err)
	assert.LessOrEqual(t, events, leastBacklog+2, "requests that have ended wait to be read")
	dial(ports[0], "later")
}
