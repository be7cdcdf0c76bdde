#!/usr/bin/env bash
# Downloads programs of Debian for arm64, with their libraries, into .build/arm64/root. make full
# runs them with the library for other languages, under qemu-user. Nothing of them is installed,
# and apt's own lists stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
root=.build/arm64/root

[ ! -e $root ] || exit 0
packages=(ibverbs-utils rdmacm-utils perftest ibverbs-providers libibverbs1 librdmacm1 libibumad3
	libnl-3-200 libnl-route-3-200 libpci3 libudev1 zlib1g libgcc-s1 libc6)

mkdir -p .build/arm64
work=$(mktemp -d -p "$PWD/.build/arm64")
trap 'rm -rf "$work"' EXIT

download() {
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
	mkdir -p "$work"/state/lists/partial "$work"/cache/archives/partial "$work"/packages
	cat >"$work/apt.conf" <<-END
		APT::Architecture "arm64";
		APT::Architectures { "arm64"; };
		APT::Sandbox::User "";
		Dir::State "$work/state";
		Dir::State::status "/dev/null";
		Dir::Cache "$work/cache";
	END
	export APT_CONFIG=$work/apt.conf
	apt-get update || return 1
	(cd "$work/packages" && apt-get download "${packages[@]}") || return 1
	for package in "$work"/packages/*.deb; do
		dpkg -x "$package" "$work/root" || return 1
	done
	mv "$work/root" $root
}

echo "downloading programs for arm64 into $root"
if ! download >/dev/null 2>"$work/errors"; then
	tail -n 3 "$work/errors" >&2
	echo "missing: programs for arm64 (Debian packages: ${packages[*]}); skipped without them: the library for other languages on arm64" >&2
	exit 1
fi
