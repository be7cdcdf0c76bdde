#!/usr/bin/env bash
# The action's step: builds verbena, installs it below RUNNER_TEMP, and makes DEVICE, with FAULTS, the one that
# "verbena run" gives to programs. With CAPTURE, each process records its packets in that folder.
set -euo pipefail

if ! command -v make >/dev/null || ! command -v gcc >/dev/null || ! pkg-config --exists libibverbs librdmacm; then
	as_root=
	[ "$(id -u)" = 0 ] || as_root=sudo
	$as_root apt-get update
	$as_root apt-get install -y --no-install-recommends gcc libc6-dev libibverbs-dev librdmacm-dev make pkg-config
fi
prefix=$RUNNER_TEMP/verbena
make -C "$(dirname "$0")/.." install PREFIX="$prefix"

device=$DEVICE
add() {
	case $device in
	*\?*) device+="&$1" ;;
	*) device+="?$1" ;;
	esac
}
[ -z "$FAULTS" ] || add "$FAULTS"
if [ -n "$CAPTURE" ]; then
	mkdir -p "$CAPTURE"
	add "capture=$(cd "$CAPTURE" && pwd)/{pid}.pcap"
fi
echo "$prefix/bin" >>"$GITHUB_PATH"
echo "VERBENA_DEVICES=$device" >>"$GITHUB_ENV"
echo "verbena run PROGRAM runs a program on $device"
