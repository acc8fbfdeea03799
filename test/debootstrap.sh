#!/bin/sh
# usage: test/debootstrap.sh (as root)
# Runs make run of README.md on a fresh Debian, with the example query that nodens
# prints, and ends it with Ctrl-C. The system is made by debootstrap once, and kept in a
# cache; Go and its caches come from this machine.
set -eu
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-/var/cache}/nodens-debian
mirror=${MIRROR:-http://deb.debian.org/debian}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
if [ ! -e "$cache.tar" ]; then
	echo "making a Debian in $cache.tar from $mirror"
	debootstrap --variant=minbase --include=make,bind9-dnsutils,iproute2,ca-certificates bookworm "$root" "$mirror" >"$root.log" 2>&1 ||
		{ tail "$root.log" >&2; exit 1; }
	rm -f "$root.log"
	tar -C "$root" -cf "$cache.tar" .
else
	tar -C "$root" -xf "$cache.tar"
fi
mkdir -p "$root/src" "$root/usr/local/go" "$root/gomod" "$root/gocache"
git ls-files -z | tar --null --files-from=- -cf - | tar -C "$root/src" -xf -
export root
goroot=$(go env GOROOT) gomod=$(go env GOMODCACHE) gocache=$(go env GOCACHE)
export goroot gomod gocache
# shellcheck disable=SC2016 # the inner shells expand these
unshare --net --mount --pid --fork --kill-child sh -eu -c '
mount --make-rprivate /
mount --bind "$goroot" "$root/usr/local/go"
mount --bind "$gomod" "$root/gomod"
mount --bind "$gocache" "$root/gocache"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
exec chroot "$root" env -i HOME=/root PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin GOMODCACHE=/gomod GOCACHE=/gocache GOFLAGS=-buildvcs=false GOPROXY=off GOSUMDB=off sh -eu -c '"'"'
ip link set lo up
cd /src
make run >/tmp/out 2>&1 &
tries=0
until try=$(sed -n "s/.* listens on .*; try: //p" /tmp/out) && [ -n "$try" ]; do
	tries=$((tries + 1))
	[ $tries -lt 1200 ] || { cat /tmp/out; exit 1; }
	sleep 0.25
done
cat /tmp/out
echo "\$ $try"
$try +noall +answer | tee /tmp/answer
grep -q "IN.*A" /tmp/answer
kill -INT "$(pidof nodens)"
wait || true
if ip address | grep 169.254.20.10; then echo "the address is left"; exit 1; fi
echo "README: make run works on a fresh Debian"
'"'"''
