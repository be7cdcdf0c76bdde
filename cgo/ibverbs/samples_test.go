package ibverbs_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/rig"
)

// TestRigSamples runs every pair of sample programs, as two processes, with the
// adapter on both ends and on either.
func TestRigSamples(t *testing.T) {
	rig.Require(t)
	requireHeaders(t)
	bin := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "verbs", "-o", bin, "../../samples/...").CombinedOutput()
	require.NoError(t, err, "%s", out)
	output := rig.Run(t, rig.Job{
		Files:   map[string]string{"/samples": bin},
		Script:  sampleScript,
		MTU:     4500,
		Timeout: 3 * time.Minute,
	})
	assert.Equal(t, 42, strings.Count(output, "both ends agree"))
}

const sampleScript = `
PATH=/samples:$PATH
exec 2>&1
# run REQUESTER DEVICE RESPONDER DEVICE FLAGS...; what they say of the data, in
# parentheses on standard output, is to be the same.
run() {
	local requester=$1 a=$2 responder=$3 b=$4 folder first
	shift 4
	folder=$(mktemp -d)
	on "$a" "$requester" -oob "dir:$folder" -timeout 20s "$@" >"$folder/a" 2>"$folder/a.log" &
	first=$!
	on "$b" "$responder" -oob "dir:$folder" -timeout 20s "$@" >"$folder/b" 2>"$folder/b.log" && wait $first &&
		[ -n "$(said "$folder/a")" ] && [ "$(said "$folder/a")" = "$(said "$folder/b")" ] || {
		echo "$requester $a, $responder $b $*: failed"
		cat "$folder"/*
		return 1
	}
	echo "$requester $a, $responder $b $*: both ends agree"
}
on() {
	local device=$1 program=$2
	shift 2
	case $device in
	soft*) ip netns exec s "$program" -d "$device" "$@" ;;
	*) "$program" -d "$device" "$@" ;;
	esac
}
said() { grep -o '(.*)' "$1" | sort -u; }
for ends in "rxe0 rxe0" "rxe0 soft-v1" "soft-v1 rxe0"; do
	set -- $ends
	for name in rdma_read rdma_write rdma_write_immediate; do
		run ${name}_requester $1 ${name}_responder $2
		run ${name}_requester $1 ${name}_responder $2 -size 65537
	done
	for names in "rdma_send rdma_receive" "rdma_send_immediate rdma_receive_immediate" "rdma_multi_conn_send rdma_multi_conn_receive"; do
		run ${names% *} $1 ${names#* } $2
		run ${names% *} $1 ${names#* } $2 -size 65537
	done
	run rdma_atomic_cmp_swp_requester $1 rdma_atomic_cmp_swp_responder $2
	run rdma_atomic_fetch_add_requester $1 rdma_atomic_fetch_add_responder $2
done
`
