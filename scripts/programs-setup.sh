#!/usr/bin/env bash
# Downloads programs of Debian, with their libraries, into .build/SUITE-ARCHITECTURE, for tests of the
# library for other languages: those for arm64 run under qemu-user, and those of a newer release with its
# own C library. Nothing of them is installed, and apt's own lists stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=$1 architecture=$2
root=.build/$suite-$architecture

[ ! -e "$root" ] || exit 0
packages=(ibverbs-utils rdmacm-utils perftest ibverbs-providers libibverbs1 librdmacm1 libibumad3
	libnl-3-200 libnl-route-3-200 libpci3 libudev1 zlib1g libgcc-s1 libc6 libcap2)
[ "$suite" = bookworm ] || packages=("${packages[@]/%librdmacm1/librdmacm1t64}")

mkdir -p .build
work=$(mktemp -d -p "$PWD/.build")
trap 'rm -rf "$work"' EXIT

download() {
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
	mkdir -p "$work"/state/lists/partial "$work"/cache/archives/partial "$work"/packages "$work"/sources
	cat >"$work/apt.conf" <<-END
		APT::Architecture "$architecture";
		APT::Architectures { "$architecture"; };
		APT::Sandbox::User "";
		Dir::State "$work/state";
		Dir::State::status "/dev/null";
		Dir::Cache "$work/cache";
		Dir::Etc::sourcelist "$work/sources.list";
		Dir::Etc::sourceparts "$work/sources";
	END
	# From the same archive as the machine's own packages.
	archive=$(apt-cache policy libc6 | sed -nE 's,.* (https?://[^ ]*/debian/?) [^ ]*/main .*,\1,p' | head -n 1)
	[ -n "$archive" ] || { echo "apt knows no archive of Debian" >&2; return 1; }
	echo "deb $archive $suite main" >"$work/sources.list"
	export APT_CONFIG=$work/apt.conf
	apt-get update || return 1
	(cd "$work/packages" && apt-get download "${packages[@]}") || return 1
	for package in "$work"/packages/*.deb; do
		dpkg -x "$package" "$work/root" || return 1
	done
	mv "$work/root" "$root"
}

echo "downloading programs of Debian $suite for $architecture into $root"
if ! download >/dev/null 2>"$work/errors"; then
	tail -n 3 "$work/errors" >&2
	echo "missing: programs of Debian $suite for $architecture (${packages[*]}); skipped without them: the library for other languages with these" >&2
	exit 1
fi
