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
need chromium chromium
need clang-14 clang-14
[ -x /usr/lib/cni/portmap ] || missing="$missing containernetworking-plugins"
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
need npm npm
need nsenter util-linux
need setpriv util-linux
need podman podman
need qemu-aarch64-static qemu-user-static
need runc runc
need unbound unbound
[ -d /usr/share/fonts/truetype/liberation ] || missing="$missing fonts-liberation"

# packages installs the missing ones.
packages() {
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
		echo "not installed, tests that need them are skipped:$missing" >&2
		return
	fi
	echo "installing for the tests, from the package archive:$missing"
	work=$(mktemp -d)
	trap 'disable; rm -rf "$work" $ours' EXIT
	trap 'exit 1' HUP INT TERM
	# Packages must not start servers on this host, neither now nor at the next boot.
	policy=/usr/sbin/policy-rc.d ours=
	if [ ! -e $policy ]; then
		ours=$policy
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod +x $policy
	fi
	enabled >"$work/list"
	mv "$work/list" "$work/before"
	# shellcheck disable=SC2086 # a list of packages
	if ! (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing) >"$work/log" 2>&1; then
		cat "$work/log" >&2
		exit 1
	fi
}

# enabled lists the links by which systemd starts a unit at boot.
enabled() { find /etc/systemd/system -path '*.wants/*' -type l 2>/dev/null | LC_ALL=C sort; }

# disable removes the links that were made since packages has begun.
disable() { [ ! -e "$work/before" ] || enabled | LC_ALL=C comm -13 "$work/before" - | xargs -r -d '\n' rm -f; }

# axe-core, which tests the accessibility of the status page, is in npm only.
axe() {
	file=${XDG_CACHE_HOME:-$HOME/.cache}/nodens/axe-core-4.14.1.js
	[ ! -e "$file" ] || return 0
	echo "installing for the tests, from npm: axe-core"
	dir=$(mktemp -d)
	mkdir -p "${file%/*}"
	(cd "$dir" && timeout 60 npm pack --silent axe-core@4.14.1 >/dev/null &&
		echo "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745  axe-core-4.14.1.tgz" | sha256sum -c --quiet &&
		tar -xzf axe-core-4.14.1.tgz package/axe.min.js && mv package/axe.min.js "$file") ||
		echo "axe-core is not installed, tests that need it are skipped" >&2
	rm -rf "$dir"
}

[ -z "$missing" ] || packages
axe
