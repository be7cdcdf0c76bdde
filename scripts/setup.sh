#!/usr/bin/env bash
# Installs what the tests need besides Go, on Debian and its derivatives, as root. On other
# systems it lists what is missing, and which tests are skipped for that. With CI=true anything
# missing is an error. "setup.sh full" also installs what only make full needs, and "setup.sh scp"
# what make bench-scp needs, and nothing else.
set -euo pipefail

# program, header or file | Debian packages | what is skipped without it
needs='gcc|gcc libc6-dev|the race detector
pkg-config|pkg-config|the driver for adapters
infiniband/verbs.h|libibverbs-dev|the driver for adapters
rdma/rdma_cma.h|librdmacm-dev|the driver for adapters
/usr/lib/python3/dist-packages/pyverbs|python3-pyverbs rdma-core|the tests of rdma-core on the library for other languages
ibv_rc_pingpong|ibverbs-utils|these programs on the library for other languages
rping|rdmacm-utils|these programs on the library for other languages
ib_write_bw|perftest|these programs on the library for other languages
tshark|tshark|decoding captures with tshark
dumpcap|tshark|capturing between network namespaces
ip|iproute2|the tests between network namespaces
zsh|zsh|completion in zsh
fish|fish|completion in fish
groff|groff|manual pages as groff shows them
ucx_perftest|ucx-utils|bench peers with UCX
fi_pingpong|libfabric-bin|bench peers with libfabric'

if [ "${1:-}" = full ]; then
	needs+='
qperf|qperf|this program on the library for other languages
fio|fio|this program on the library for other languages
tgtd|tgt|iSER on the library for other languages
iscsi-inq|libiscsi-bin|iSER on the library for other languages
dtest|dapl2-utils|uDAPL on the library for other languages
qemu-system-x86_64|qemu-system-x86|migration by QEMU on the library for other languages
valgrind|valgrind|programs under valgrind on the library for other languages
mpicc|openmpi-bin libopenmpi-dev|MPI on the library for other languages
aarch64-linux-gnu-gcc|gcc-aarch64-linux-gnu libc6-dev-arm64-cross|the library for other languages on arm64
qemu-aarch64|qemu-user|the library for other languages on arm64'
	for programs in 'bookworm arm64' 'trixie amd64'; do
		"$(dirname "$0")/programs-setup.sh" $programs || [ "${CI:-}" != true ]
	done
fi

if [ "${1:-}" = scp ]; then
	needs='scp|openssh-client|the comparison with scp
sshd|openssh-server|the comparison with scp'
fi

have() {
	case $1 in
	*.h) [ -e "/usr/include/$1" ] ;;
	/*) [ -e "$1" ] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

missing() {
	while IFS='|' read -r program packages skipped; do
		have "$program" || echo "$program|$packages|$skipped"
	done <<<"$needs"
}

# ip is in /usr/sbin, which is not on every user's path.
PATH=$PATH:/usr/sbin:/sbin

lacking=$(missing)
[ -n "$lacking" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	mapfile -t packages < <(cut -d'|' -f2 <<<"$lacking" | tr ' ' '\n' | sort -u)
	echo "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	# An sshd that is installed here must not start: the measurement starts its own.
	policy=/usr/sbin/policy-rc.d quiet=false
	case " ${packages[*]} " in *" openssh-server "*) quiet=true ;; esac
	if $quiet && [ ! -e $policy ]; then
		trap 'rm -f $policy' EXIT
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
	fi
	if { apt-get update && apt-get install -y --no-install-recommends "${packages[@]}"; } >/dev/null; then
		lacking=$(missing)
	fi
	if $quiet && command -v systemctl >/dev/null; then
		systemctl disable ssh.service ssh.socket >/dev/null 2>&1 || true # also not at the next boot
	fi
fi

[ -n "$lacking" ] || exit 0
while IFS='|' read -r program packages skipped; do
	echo "missing: $program (Debian packages: $packages); skipped without it: $skipped" >&2
done <<<"$lacking"
[ "${CI:-}" != true ] || exit 1
