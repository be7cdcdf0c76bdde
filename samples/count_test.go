package samples

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/internal/rig"
)

// fully is a number of steps, or a tenth of it with the race detector, which makes
// the programs that much slower.
func fully(n int) string {
	if raceDetector {
		n /= 10
	}
	return fmt.Sprint(n)
}

// count runs two of the counting programs, which must agree on the number.
func count(t *testing.T, first, second []string, want string, args ...string) {
	t.Helper()
	args = append([]string{"count", "-dir", t.TempDir(), "-timeout", "3m"}, args...)
	command := func(prefix []string, more ...string) []string {
		all := append(append([]string{}, prefix...), args...)
		if len(prefix) > 0 {
			all[len(prefix)] = bin + "/count"
		}
		return append(all, more...)
	}
	a := start(t, command(first, "-first")...)
	b := start(t, command(second)...)
	for _, p := range []*process{a, b} {
		assert.Zero(t, p.code(), "%s", p.stderr.String())
		assert.True(t, strings.HasPrefix(p.stdout.String(), "counted to "+want+" in "), "%q", p.stdout.String())
	}
}

// Two programs count in turns, each adding to the other's event and waiting on its
// own: a step that is lost would stop them, one that comes twice shows.
func TestCountInTurns(t *testing.T) {
	count(t, nil, nil, fully(100_000), "-n", fully(100_000))
	for _, faults := range []string{"loss=0.02", "duplicate=0.2&reorder=0.2"} {
		count(t, nil, nil, fully(2000), "-n", fully(2000), "-d", "soft-lo?"+faults)
	}
}

// Eight writers on one event: over eight connections, and from the event's own
// program at the same time, where processor and device agree on what is atomic.
func TestCountTogether(t *testing.T) {
	count(t, nil, nil, fully(100_000), "-n", fully(100_000), "-writers", "8")
	count(t, nil, nil, fully(4_100_000), "-n", fully(100_000), "-writers", "8", "-local", fully(4_000_000))
	count(t, nil, nil, fully(5000), "-n", fully(4000), "-local", fully(1000), "-writers", "8", "-d", "soft-lo?loss=0.02&duplicate=0.1&reorder=0.1")
}

// countScript runs the pair, and counts, between the two hosts of the rig.
const countScript = `
exec 2>&1
on() { # DEVICE COMMAND...
	local device=$1 program=$2
	shift 2
	case $device in
	soft*) ip netns exec s "$program" -d "$device" "$@" ;;
	*) "$program" -d "$device" "$@" ;;
	esac
}
both() { # TEXT FILE FILE: it is in both
	grep -q "$1" "$2" && grep -q "$1" "$3"
}
run() { # NAME TEXT FIRST-DEVICE FIRST-COMMAND SECOND-DEVICE SECOND-COMMAND
	local name=$1 text=$2 folder
	folder=$(mktemp -d)
	on $3 $4 >"$folder/first.txt" 2>&1 &
	local first=$!
	on $5 $6 >"$folder/second.txt" 2>&1 || true
	wait $first || true
	if both "$text" "$folder/first.txt" "$folder/second.txt"; then
		echo "PASS $name $3 $5 $(sed -n 's/^counted/counted/p' "$folder/first.txt")"
	else
		echo "FAIL $name $3 $5"
		cat "$folder"/*
	fi
}
for ends in "rxe0 rxe0" "rxe0 soft-v1" "soft-v1 rxe0" "soft-v1 soft-v1"; do
	set -- $ends
	d=$(mktemp -d)
	run pair "18446744073709551615 (8 bytes" \
		$1 "rdma_sync_event_requester -timeout 20s -oob dir:$d" $2 "rdma_sync_event_responder -timeout 20s -oob dir:$d"
	d=$(mktemp -d)
	run turns "counted to 400 in" $1 "count -timeout 60s -n 400 -dir $d -first" $2 "count -timeout 60s -n 400 -dir $d"
	d=$(mktemp -d)
	run writers "counted to 4000 in" $1 "count -timeout 60s -n 4000 -writers 8 -dir $d -first" $2 "count -timeout 60s -n 4000 -writers 8 -dir $d"
done
`

// TestRigSyncEvents runs the pair of samples on the kernel's rxe, on the software
// device and on one of each, and counts there.
func TestRigSyncEvents(t *testing.T) {
	rig.Require(t)
	files := map[string]string{}
	for name, folder := range map[string]string{
		"rdma_sync_event_requester": "./rdma_sync_event_requester",
		"rdma_sync_event_responder": "./rdma_sync_event_responder",
		"count":                     "./internal/count",
	} {
		files["/bin/"+name] = rig.Build(t, folder, "-tags", "verbs")
	}
	out := rig.Run(t, rig.Job{Files: files, Script: countScript, MTU: 4500, Timeout: 4 * time.Minute})
	assert.NotContains(t, out, "FAIL")
	assert.Equal(t, 12, strings.Count(out, "PASS"))
}
