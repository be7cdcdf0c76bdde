#!/usr/bin/env bash
# Installs and builds, in .build/fabric/src, what make fabric runs: on Debian, as root. UCX takes half an hour.
# "fabric.sh ucx" builds that one only. What is there is not built again.
set -euo pipefail
cd "$(dirname "$0")/.."

# Packages for the tests, and for building them.
packages="autoconf automake libtool dpkg-dev g++ git libnuma-dev libfabric-dev python3-mpi4py openmpi-bin"
# shellcheck disable=SC2086
missing=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $packages 2>&1 | grep -v '^installed ' || true)
if [ -n "$missing" ]; then
	apt-get update >/dev/null
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages >/dev/null
fi

sources=$PWD/.build/fabric/src
mkdir -p "$sources"

# debian_source RELEASE PACKAGE... downloads a source package, whose files the checksums on standard input
# pin. PACKAGE is what apt-get source takes. The machine's own list of sources stays as it is.
debian_source() {
	local archive apt=$PWD/.build/fabric/apt
	mkdir -p "$apt/lists/partial"
	# From the same archive as the machine's own packages.
	archive=$(apt-cache policy libc6 | sed -nE 's,.* (https?://[^ ]*/debian/?) [^ ]*/main .*,\1,p' | head -n 1)
	echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $1 main" >"$apt/sources.list"
	cat >"$apt/apt.conf" <<-END
		Dir::Etc::SourceList "$apt/sources.list";
		Dir::Etc::SourceParts "/dev/null";
		Dir::State::Lists "$apt/lists";
		Dir::Cache "$apt";
		APT::Sandbox::User "root";
	END
	APT_CONFIG=$apt/apt.conf apt-get update >/dev/null
	(cd "$sources" && APT_CONFIG=$apt/apt.conf apt-get source --download-only "${@:2}" >/dev/null && sha256sum --check --quiet -)
}

# git_source NAME URL TAG COMMIT clones a repository.
git_source() {
	git clone --quiet --depth 1 --branch "$3" "$2" "$sources/$1" 2>/dev/null
	local is
	is=$(git -C "$sources/$1" rev-parse HEAD)
	if [ "$is" != "$4" ]; then
		echo "$2: the tag $3 is at commit $is and not at $4, so it was moved" >&2
		rm -rf "${sources:?}/$1"
		return 1
	fi
}

# build NAME COMMAND builds a source. It is done when the file done is there.
build() {
	if ! (cd "$sources/$1" && eval "$2") >"$sources/$1.log" 2>&1; then
		tail -n 20 "$sources/$1.log" >&2
		echo "building $1 failed; all output is in $sources/$1.log" >&2
		return 1
	fi
	touch "$sources/$1.done"
}

ucx() {
	[ -d "$sources/ucx" ] || debian_source bookworm ucx=1.13.1-1 <<-END
		bbe0768a0916a18f15de554660cfe5b7667ad5ba13e7e5f04f0662330cfcc664  ucx_1.13.1-1.dsc
		1a88e09ca1b406c046a469c2ae271d2c330050b5664c0bcd9890e26c6ef09f3c  ucx_1.13.1.orig.tar.xz
		e0a407539b44d3aa81e3f11fc43a3ad512550944a59227e2105317446fd2e0ff  ucx_1.13.1-1.debian.tar.xz
	END
	[ -d "$sources/ucx" ] || dpkg-source -x "$sources/ucx_1.13.1-1.dsc" "$sources/ucx" >/dev/null
	# Some of its inline functions need -O2.
	build ucx './autogen.sh && ./configure --enable-gtest --with-verbs --with-rdmacm --without-java --without-go --disable-numa CFLAGS="-O2 -g0 -Wno-error" CXXFLAGS="-O2 -g0 -Wno-error -std=gnu++14" && make -j"$(nproc)"'
}

libfabric() {
	[ -d "$sources/libfabric" ] || git_source libfabric https://github.com/ofiwg/libfabric v1.17.0 4a7d3ad0a4dfbb25bfc37cf91a038edd33f6dbc2
	build libfabric 'cd fabtests && ./autogen.sh && ./configure --prefix="$PWD/install" CFLAGS="-O1 -g0" && make -j"$(nproc)" install'
}

mpi4py() {
	[ -d "$sources/mpi4py" ] || git_source mpi4py https://github.com/mpi4py/mpi4py 3.1.4 a7610e53b78841e1a607005d5b3ace7b9315f45b
	touch "$sources/mpi4py.done"
}

valkey() {
	[ -d "$sources/valkey-8.1.1" ] || debian_source trixie --tar-only valkey <<-END
		d9bbd82eecb82f359e649a0007ad3dc1b47cc15afa626348ca86b73c4ae2c7ee  valkey_8.1.1+dfsg1.orig.tar.xz
	END
	[ -d "$sources/valkey-8.1.1" ] || tar -C "$sources" -xf "$sources/valkey_8.1.1+dfsg1.orig.tar.xz"
	ln -sfn valkey-8.1.1 "$sources/valkey"
	build valkey 'make -j"$(nproc)" BUILD_RDMA=module MALLOC=libc && make -C tests/rdma'
}

# Each in a shell of its own, which ends at its first failure.
failed=0
for name in ${*:-mpi4py libfabric valkey ucx}; do
	[ -e "$sources/$name.done" ] && continue
	set +e
	(
		set -e
		"$name"
	)
	[ $? = 0 ] || failed=1
	set -e
done
exit $failed
