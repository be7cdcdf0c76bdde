#!/usr/bin/env bash
# Measures Verbena beside UCX, libfabric and perftest, and writes the tables and the plots of
# docs/performance.md. It takes 6 minutes, and begins anew when it is run again.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
server=
leave() {
	[ -z "$server" ] || kill "$server" 2>/dev/null || true
	rm -rf "$folder"
}
trap leave EXIT
"${GO:-go}" build -tags "${TAGS:-}" -o "$folder/verbena" ./cmd/verbena

"$folder/verbena" perf peers -rounds "${ROUNDS:-5}" -markdown docs/performance.md

# sweep appends the reports of tests between two processes to a file, from which the plots
# have the names of their curves.
sweep() { # DEVICE FILE FLAGS...
	local device=$1 file=$2 port= try
	shift 2
	"$folder/verbena" perf -d "$device" -bind 127.0.0.1 -p 0 -once >"$folder/server" 2>&1 &
	server=$!
	for try in {1..600}; do
		port=$(sed -n 's/^listening 127\.0\.0\.1:\([0-9]*\):.*/\1/p' "$folder/server")
		[ -z "$port" ] || break
		sleep 0.1
	done
	"$folder/verbena" perf -d "$device" "$@" -json - "127.0.0.1:$port" >>"$folder/$file"
	wait "$server"
	server=
}

sizes=64,256,1024,4096,16384,65536,262144,1048576,4194304
mkdir "$folder/latency" "$folder/bandwidth"
for way in "shared memory|soft-lo" "UDP|soft-lo?local=off"; do
	name=${way%|*} device=${way#*|}
	sweep "$device" "latency/$name.json" -test write_lat,read_lat -s 8 -D 1
	sweep "$device" "latency/$name.json" -test send_lat -s 8 -D 1 -e
	sweep "$device" "bandwidth/$name.json" -test write_bw,read_bw,send_bw -s "$sizes" -t 16 -D 0.2 -rounds 3
done
for plot in latency bandwidth; do
	"$folder/verbena" perf plot "$folder/$plot.svg" "$folder/$plot/shared memory.json" "$folder/$plot/UDP.json"
	cp "$folder/$plot.svg" "docs/performance-$plot.svg"
done
