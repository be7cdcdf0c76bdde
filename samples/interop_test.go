package samples

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/rig"
)

// playScript plays one game after the other between the two hosts of the rig and
// prints a row for each. The server's host is told to the client by its address,
// which is the one that RoCEv2 packets go to as well.
const playScript = `
failures=0

listening() { # HOST
	cat=cat
	[ "$1" = rxe ] || cat="ip netns exec s cat"
	$cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 0*:0000 0A'
}

on() { # HOST COMMAND...
	host=$1
	shift
	if [ "$host" = rxe ]; then timeout 20 "$@"; else ip netns exec s timeout 20 "$@"; fi
}

play() { # SERVER-HOST SERVER CLIENT-HOST CLIENT: commands in one word each
	on "$1" $2 >server.txt 2>&1 &
	server=$!
	for _ in $(seq 200); do
		if listening "$1"; then break; fi
		sleep 0.02
	done
	on "$3" $4 $1 >client.txt 2>&1 && client=0 || client=$?
	wait $server && server=0 || server=$?
	verdict=PASS
	if [ $client != 0 ] || [ $server != 0 ] || grep -q invalid server.txt || ! grep -q usec/iter server.txt || ! grep -q usec/iter client.txt; then verdict=FAIL; fi
	echo "$verdict  $2  <-  $4  $(sed -n 's/.* = \(.* usec\/iter\)/\1/p' client.txt)"
	if [ $verdict = FAIL ]; then
		sed 's/^/    server: /' server.txt
		sed 's/^/    client: /' client.txt
		failures=$((failures + 1))
		if [ $failures = 5 ]; then exit 1; fi
	fi
}
`

// TestInterop plays the ping-pongs against the C programs of the same name, on the
// kernel's rxe, in both roles, and against each other on both drivers.
func TestInterop(t *testing.T) {
	rig.Require(t)
	var script strings.Builder
	script.WriteString(playScript)
	files := make(map[string]string)
	for _, service := range []string{"rc", "uc", "ud"} {
		name := "verbs_" + service + "_pingpong"
		files["/bin/"+name] = rig.Build(t, "./"+name, "-tags", "verbs")
		ours := func(device string) string { return name + " -d " + device }
		theirs := "ibv_" + service + "_pingpong -d rxe0"
		soft, adapter := ours("soft-v1"), ours("rxe0")
		for _, sides := range []struct {
			serverHost, server, clientHost, client string
			games                                  []string
		}{
			{"rxe", theirs, "soft", soft, games(service)},
			{"soft", soft, "rxe", theirs, games(service)},
			{"rxe", theirs, "rxe", adapter, []string{"-c -e -n 20", "-n 5"}},
			{"rxe", adapter, "rxe", theirs, []string{"-c -e -n 20", "-n 5"}},
			{"rxe", adapter, "soft", soft, []string{"-c -e -n 20", "-n 5 -s 0"}},
			{"soft", soft, "rxe", adapter, []string{"-c -e -n 20", "-n 5 -s 0"}},
		} {
			play := func(args string, family int) {
				_, _ = fmt.Fprintf(&script, "play %s '%s %s' %s '%s %s'\n",
					sides.serverHost, withGID(sides.server, family), args, sides.clientHost, withGID(sides.client, family), args)
			}
			for _, args := range sides.games {
				play(args, 4)
			}
			play("-c -n 20", 6)
			play("-c -e -n 20", 6)
		}
	}
	out := rig.Run(t, rig.Job{Files: files, Script: script.String(), MTU: 9000, Timeout: 4 * time.Minute})
	require.NotContains(t, out, "FAIL")
	require.Contains(t, out, "PASS")
}

// withGID gives a program the index of its address of a family. Ours find an IPv4
// one by themselves.
func withGID(command string, family int) string {
	switch theirs := strings.HasPrefix(command, "ibv_"); {
	case family == 6 && strings.HasSuffix(command, "soft-v1"):
		return command + " -g 1"
	case family == 6:
		return command + " -g 2"
	case theirs:
		return command + " -g 1"
	}
	return command
}

// games are the flags of the games that are played. The largest is for RC alone:
// nobody repeats what a busy machine loses of the others.
func games(service string) []string {
	if service == "ud" {
		return []string{"-c -n 20", "-c -e -n 50", "-c -n 5 -s 1", "-c -n 5 -s 1023", "-c -n 5 -s 4096", "-n 5 -s 0"}
	}
	list := []string{"-c -n 20", "-c -e -n 50", "-c -n 5 -s 1", "-c -n 5 -s 255 -m 256", "-c -n 5 -s 1023 -m 512",
		"-c -n 5 -s 65537 -m 4096", "-c -n 1 -s 1048576 -m 2048"}
	if service == "rc" {
		list = append(list, "-c -n 2 -s 16777216 -m 4096")
	}
	return list
}
