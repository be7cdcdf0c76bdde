#!/usr/bin/env bash
# Builds the library that gives software devices to programs in C: libverbena.so and
# libverbena-device.so, into the folder $1. Further arguments are flags of both compilers, such
# as -trimpath, which is for go, and -fsanitize=address, which is for the C compiler. The race
# detector does not work in shared libraries.
#
# GOARCH=arm64 CC=aarch64-linux-gnu-gcc builds it for arm64 (Debian packages gcc-aarch64-linux-gnu
# and libc6-dev-arm64-cross; the headers are those of libibverbs-dev and librdmacm-dev here too).
set -euo pipefail
unset CDPATH # with which cd prints the folder, and may go to another
folder=$(mkdir -p "$1" && cd -- "$1" && pwd)
shift
cd "$(dirname "$0")/.."
go=${GO:-go}
cflags=() goflags=()
for flag; do
	case $flag in
	-f* | -O* | -g*) cflags+=("$flag") ;;
	*) goflags+=("$flag") ;;
	esac
done
sources=cgo/libverbena/api
# The C half is never unloaded (nodelete), since the Go half calls it.
"${CC:-cc}" -std=gnu11 -O2 -g -fPIC -Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-parentheses \
	-fvisibility=hidden "${cflags[@]}" -Icgo/libverbena/device -shared \
	-Wl,-z,nodelete -Wl,--version-script=$sources/libverbena.map -o "$folder/libverbena.so" $sources/*.c -ldl -lpthread
# Goroutines are not preempted by signals, which would interrupt system calls of the program.
CGO_ENABLED=1 "$go" build -tags verbs -ldflags=-X=runtime.godebugDefault=asyncpreemptoff=1 "${goflags[@]}" -buildmode=c-shared -o "$folder/libverbena-device.so" ./cgo/libverbena/device
rm -f "$folder/libverbena-device.h"
# verbena run adds these folders to LD_LIBRARY_PATH.
for name in libibverbs librdmacm libefa; do
	mkdir -p "$folder/verbena-lib/$name"
	for file in $name.so $name.so.1; do
		ln -sfn ../../libverbena.so "$folder/verbena-lib/$name/$file"
	done
done
