#!/bin/sh
# Installs the packages that the tests use. Without root or apt-get it prints the
# missing ones, and the tests that need them skip.
set -eu

missing=
need() { # need COMMAND PACKAGE
	PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need buildah buildah
need catatonit catatonit
need clang-14 clang-14
need curl curl
need dig bind9-dnsutils
need dnsmasq dnsmasq-base
need gcc gcc
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
need ip iproute2
need iptables-nft iptables
need llvm-strip-14 llvm-14
need musl-gcc musl-tools
need nft nftables
need nsenter util-linux
need setpriv util-linux
need podman podman
need qemu-aarch64-static qemu-user-static
need runc runc
need unbound unbound

[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "not installed, tests that need them are skipped:$missing" >&2
	exit 0
fi
echo "installing for the tests, from the package archive:$missing"
log=$(mktemp)
policy=/usr/sbin/policy-rc.d
# Packages must not start servers on this host.
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod +x $policy
	trap 'rm -f "$log" $policy' EXIT
else
	trap 'rm -f "$log"' EXIT
fi
# shellcheck disable=SC2086 # a list of packages
if ! (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing) >"$log" 2>&1; then
	cat "$log" >&2
	exit 1
fi
