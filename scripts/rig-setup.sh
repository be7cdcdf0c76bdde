#!/usr/bin/env bash
# Installs what the virtual machine for tests needs (on Debian and its derivatives, as root),
# fetches its kernel and builds its image. On other systems it lists what is missing. With
# CI=true anything missing is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

machine=$(uname -sm)
if [ "$machine" != "Linux x86_64" ]; then
	echo "skipped on $machine: the tests in the virtual machine, which need Linux on x86_64" >&2
	[ "${CI:-}" != true ] || exit 1
	exit 0
fi

lacking=$(scripts/rig -missing)
if [ -n "$lacking" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "installing" $lacking
	export DEBIAN_FRONTEND=noninteractive
	# A memcached that is installed here must not start, now or at the next boot.
	policy=/usr/sbin/policy-rc.d quiet=false
	case " $(tr '\n' ' ' <<<"$lacking")" in *" memcached "*) quiet=true ;; esac
	if $quiet && [ ! -e $policy ]; then
		trap 'rm -f $policy' EXIT
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
	fi
	if { apt-get update && apt-get install -y --no-install-recommends $lacking; } >/dev/null; then
		lacking=$(scripts/rig -missing)
	fi
	if $quiet && command -v systemctl >/dev/null; then
		systemctl disable memcached.service >/dev/null 2>&1 || true
	fi
fi
if [ -n "$lacking" ]; then
	echo "missing Debian packages:" $lacking >&2
	echo "skipped without them: the tests in the virtual machine" >&2
elif scripts/rig -prepare; then
	exit 0
else
	echo "skipped without the kernel: the tests in the virtual machine" >&2
fi
[ "${CI:-}" != true ] || exit 1
