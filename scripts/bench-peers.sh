#!/usr/bin/env bash
# Compares Verbena with UCX, libfabric and perftest. It writes the tables to .build/peers.md,
# and the plots that docs/performance.md shows; the tables have the medians. It takes 6
# minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/perf-pair.sh
"${GO:-go}" build -tags "${TAGS:-}" -o "$folder/verbena" ./cmd/verbena
# One scene runs perftest with libverbena.so. verbena run finds it beside itself.
[ -z "${TAGS:-}" ] || scripts/library.sh "$folder"

(cd bench && "${GO:-go}" build -o "$folder/bench" .)
mkdir -p .build
"$folder/bench" peers -rounds "${ROUNDS:-5}" -verbena "$folder/verbena" -markdown >.build/peers.md

sizes=64,256,1024,4096,16384,65536,262144,1048576,4194304
mkdir "$folder/latency" "$folder/bandwidth"
# The plots take the names of the curves from the names of the report files.
for way in "shared memory|soft-lo" "UDP|soft-lo?local=off"; do
	name=${way%|*} device=${way#*|}
	pair "$device" -- -test write_lat,read_lat -s 8 -D 1 -json - >>"$folder/latency/$name.json"
	pair "$device" -- -test send_lat -s 8 -D 1 -e -json - >>"$folder/latency/$name.json"
	pair "$device" -- -test write_bw,read_bw,send_bw -s "$sizes" -t 16 -D 0.2 -rounds 3 -json - >>"$folder/bandwidth/$name.json"
done
for plot in latency bandwidth; do
	"$folder/bench" plot "$folder/$plot.svg" "$folder/$plot/shared memory.json" "$folder/$plot/UDP.json"
	cp "$folder/$plot.svg" "docs/performance-$plot.svg"
done
