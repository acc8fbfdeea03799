#!/bin/sh
# usage: test/debootstrap.sh (as root)
# Runs the commands of README.md (test/readme.sh) on a fresh Debian, in its own network
# and process namespaces. mmdebstrap makes the system: unlike debootstrap, it resolves
# the alternatives that podman depends on. The system is kept in a cache. Go and its
# caches come from this machine. It skips if it cannot reach the mirror. The lines that need
# a cluster run if make cluster-up has built an API server.
set -eu
cd "$(dirname "$0")/.."
packages=bind9-dnsutils,buildah,ca-certificates,catatonit,curl,docker-registry,iproute2,make,podman,runc,unbound
mirror=${MIRROR:-http://deb.debian.org/debian}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nodens/debian-$(echo "$packages" | cksum | cut -d' ' -f1).tar
mkdir -p "${cache%/*}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export root="$work/root" GO="${GO:-go}"

if [ ! -e "$cache" ]; then
	for tool in curl mmdebstrap; do
		command -v $tool >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends $tool) >"$work/log" 2>&1 ||
			{ cat "$work/log" >&2; echo "skipped: $tool cannot be installed"; exit; }
	done
	if ! curl --silent --fail --retry 3 --max-time 60 --output /dev/null "$mirror/dists/bookworm/InRelease"; then
		echo "skipped: the mirror $mirror does not answer"
		exit
	fi
	echo "making a Debian from $mirror, in $cache"
	timeout 900 mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Retries "3"' --include="$packages" bookworm "$work/debian.tar" "$mirror" >"$work/log" 2>&1 ||
		{ tail "$work/log" >&2; exit 1; }
	mv "$work/debian.tar" "$cache"
fi

for arch in amd64 arm64; do # fills Go's caches
	CGO_ENABLED=0 GOARCH=$arch "$GO" build -trimpath -o "$work/nodens" ./cmd/nodens
done
mkdir -p "$root"
tar -C "$root" -xf "$cache"
mkdir -p "$root/src" "$root/usr/local/go" "$root/gomod" "$root/gocache" "$root/host"
git ls-files -z | tar --null --files-from=- -cf - | tar -C "$root/src" -xf -
kube=${CLUSTER_DIR:-${cache%/*}/cluster}/bin/kube
if [ -e "$kube" ]; then
	cp "$kube" "$root/usr/local/bin/kube"
	cp "$(cd test/deploy && CGO_ENABLED=0 "$GO" tool -n helm)" "$root/usr/local/bin/helm"
	printf '#!/bin/sh\nexec kube kubectl "$@"\n' >"$root/usr/local/bin/kubectl"
	chmod +x "$root/usr/local/bin/kubectl"
fi
# shellcheck disable=SC2016 # the inner shell expands it
timeout --kill-after 10 900 unshare --net --mount --pid --fork --kill-child sh -eu -c '
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$("$GO" env GOROOT)" "$root/usr/local/go"
mount --bind "$("$GO" env GOMODCACHE)" "$root/gomod"
mount --bind "$("$GO" env GOCACHE)" "$root/gocache"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
cd "$root"
pivot_root . host
umount -l /host
exec env -i HOME=/root PATH=/src/bin:/usr/local/go/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	GOMODCACHE=/gomod GOCACHE=/gocache GOFLAGS=-buildvcs=false GOPROXY=off GOSUMDB=off sh -eu /src/test/readme.sh
'
