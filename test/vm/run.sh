#!/bin/sh
# usage: run.sh [bpf [PACKAGE [SUITE]]]
# Boots Debian's kernel, 6.1 or that of PACKAGE in another SUITE of Debian, which has
# the dummy driver, in an emulated machine, and runs init in it: the daemon on a real dummy link, and the tests of netsetup
# and bpf; with bpf, only the daemon and the tests of bpf. Needs root and Debian;
# installs its packages. Prints the console and exits with 0 if init printed PASS.
set -eu
cd "$(dirname "$0")/../.."
go=${GO:-go}
export PATH="$PATH:/usr/sbin:/sbin"

skip() {
	echo "vm: $1" >&2
	[ "${CI:-}" = true ] && exit 1
	echo "vm: skipped" >&2
	exit 0
}

[ "$(uname -m)" = x86_64 ] || skip "needs an x86_64 host"
[ "$(id -u)" = 0 ] || skip "needs root to install and unpack packages"
command -v apt-get >/dev/null || skip "needs apt-get"

packages=
for want in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod nft:nftables dig:bind9-dnsutils ip:iproute2; do
	command -v "${want%%:*}" >/dev/null || packages="$packages ${want#*:}"
done
if [ -n "$packages" ]; then
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of packages
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin" "$root/sbin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/etc" "$root/t/bin"

# Debian's current kernel and its network modules.
chmod 755 "$work"
meta=${2:-linux-image-cloud-amd64}
apt=
if [ -n "${3:-}" ]; then # from the same mirror, with lists of its own
	mirror=$(apt-get indextargets --format '$(SITE)' | grep -m 1 '/debian/*$') || skip "no mirror of Debian"
	mkdir -p "$work/lists/partial"
	echo "deb $mirror $3 main" >"$work/sources.list"
	apt="-o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=/nonexistent -o Dir::State::lists=$work/lists"
	# shellcheck disable=SC2086 # options
	apt-get $apt update -qq || skip "no lists of Debian $3"
fi
# shellcheck disable=SC2086 # options
fetch() {
	kernel=$(apt-cache $apt depends "$meta" | sed -n 's/.*Depends: *\(linux-image-[^ ]*\).*/\1/p' | head -1)
	[ -n "$kernel" ] && (cd "$work" && apt-get $apt download -qq -o APT::Sandbox::User=root "$kernel")
}
# The package lists may be missing or outdated.
fetch || { apt-get update -qq && fetch; } || skip "no package $meta"
(cd "$work" && dpkg -x "$kernel"_*.deb kernel)
release=$(basename "$work"/kernel/lib/modules/*)
for dir in net/netfilter net/ipv4 net/ipv4/netfilter net/ipv6 net/ipv6/netfilter net/sched net/core net/802 net/llc net/bridge drivers/net drivers/net/vxlan lib crypto arch/x86/crypto; do
	if [ -d "$work/kernel/lib/modules/$release/kernel/$dir" ]; then
		mkdir -p "$root/lib/modules/$release/kernel/$dir"
		find "$work/kernel/lib/modules/$release/kernel/$dir" -maxdepth 1 -name '*.ko*' -exec cp {} "$root/lib/modules/$release/kernel/$dir/" \;
	fi
done
cp "$work"/kernel/lib/modules/"$release"/modules.order "$work"/kernel/lib/modules/"$release"/modules.builtin* "$root/lib/modules/$release/"
depmod -b "$root" "$release"

# Tools: busybox, and dig, nft and ip with their libraries.
cp "$(command -v busybox)" "$root/bin/busybox"
for tool in dig nft ip; do
	path=$(command -v "$tool")
	cp -L "$path" "$root/t/bin/"
	ldd "$path" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' | while read -r lib; do
		mkdir -p "$root$(dirname "$lib")"
		cp -L "$lib" "$root$lib"
	done
done

CGO_ENABLED=0 "$go" build -trimpath -o "$root/t/nodens" ./cmd/nodens
cp test/vm/Corefile "$root/t/"
for package in netsetup netsetup/firewall bpf; do
	mkdir "$root/t/$package"
	CGO_ENABLED=0 "$go" test -c -o "$root/t/$package/test" "./$package"
	[ ! -d "$package/testdata" ] || cp -r "$package/testdata" "$root/t/$package/"
done
mkdir "$root/t/outage"
CGO_ENABLED=0 "$go" test -c -o "$root/t/outage/test" ./test/outage
cp test/vm/init "$root/init"
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"

timeout 1800 qemu-system-x86_64 -accel tcg -m 1024 -smp 1 -nographic -no-reboot -nic none \
	-kernel "$work/kernel/boot/vmlinuz-$release" -initrd "$work/initrd.gz" \
	-append "console=ttyS0 quiet panic=-1 nodens.only=${1:-all}" </dev/null | tr -d '\r' | tee "$work/console"
grep -q '^VM PASS$' "$work/console"
