#!/usr/bin/env bash
# Makes cmd/verbena/default.pgo, with which go build optimizes the hot code of the program: the
# profiles of both ends of verbena perf, through shared memory and by UDP. It takes two
# minutes. A profile that is somewhat older than the code still helps.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/perf-pair.sh
# Without -trimpath the profile would contain folder names of this machine.
"${GO:-go}" build -trimpath -pgo=off -o "$folder/verbena" ./cmd/verbena

runs=0
profile() { # DEVICE FLAGS...
	local device=$1
	shift
	runs=$((runs + 1))
	pair "$device" -cpuprofile "$folder/$runs.server" -- "$@" -D 4 -cpuprofile "$folder/$runs.client"
}

for device in soft-lo 'soft-lo?local=off'; do
	profile "$device" -test write_bw -s 8 -t 512 -l 64 -Q 64
	profile "$device" -test write_bw -s 8 -t 512 -q 100
	profile "$device" -test send_bw -s 64 -t 512 -l 64 -Q 64
	profile "$device" -test write_lat,read_lat,send_lat -s 8
	profile "$device" -test write_bw,read_bw,send_bw -s 65536 -t 16
	profile "$device" -test fetch_add_bw -s 8 -t 16
done
"${GO:-go}" tool pprof -proto -output "$folder/all" "$folder"/*.server "$folder"/*.client
# The profile also names the profiled file. The format contains the lengths of names.
zcat "$folder/all" | perl -pe "s{\Q$folder\E}{'-' x length(\$&)}ge" | gzip -n9 >cmd/verbena/default.pgo
