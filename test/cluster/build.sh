#!/bin/bash
# Builds what the cluster is made of, unless it exists: Kubernetes with etcd as one
# program, CoreDNS, Helm, the file system of the nodes. Then the images. Needs Debian,
# root and Go. Takes 20 minutes on two cores the first time. With the argument kube it
# builds Kubernetes only.
set -eu
. "$(dirname "$0")/env.sh"
[ "$(id -u)" = 0 ] || { echo "the cluster needs root" >&2; exit 1; }
export CGO_ENABLED=0
kube=$bin/kube-$KUBE_VERSION version=k8s.io/component-base/version
[ -e "$kube" ] || (cd "$(go_module kube)" && go build -mod=mod -trimpath -o "$kube" \
	-ldflags "-s -w -X $version.gitVersion=v$KUBE_VERSION -X $version.gitMajor=1 -X $version.gitMinor=$(echo "$KUBE_VERSION" | cut -d. -f2)" .)
ln -sf "kube-$KUBE_VERSION" "$bin/kube"
[ "${1:-}" != kube ] || exit 0
packages=
for want in buildah:buildah busybox:busybox-static debootstrap:debootstrap mke2fs:e2fsprogs musl-gcc:musl-tools gcc:gcc openssl:openssl qemu-system-x86_64:qemu-system-x86 socat:socat unbound:unbound ip:iproute2; do
	command -v "${want%%:*}" >/dev/null || packages="$packages ${want#*:}"
done
if [ -n "$packages" ]; then
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of packages
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libc6-dev $packages
fi
coredns=$(sed -n 's/^const coreDNSVersion = "\(.*\)"/\1/p' "$repo/internal/lab/coredns.go")
[ -e "$bin/coredns-$coredns" ] || (cd / && GOBIN=$bin go install -ldflags "-s -w" "github.com/coredns/coredns@$coredns" && mv "$bin/coredns" "$bin/coredns-$coredns")
ln -sf "coredns-$coredns" "$bin/coredns"
flannel=v0.28.10
if [ "$CNI" != bridge ] && [ ! -e "$bin/flanneld-$flannel" ]; then
	source=$(cd / && go mod download -json "github.com/flannel-io/flannel@$flannel" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	tmp=$(mktemp -d)
	cp -r --no-preserve=mode "$source/." "$tmp"
	# Two backends that the cluster does not use: one needs cgo, one a cloud's module.
	sed -i '/backend\/\(udp\|tencentvpc\)"/d' "$tmp/main.go"
	(cd "$tmp" && go build -trimpath -ldflags "-s -w" -o "$bin/flanneld-$flannel" .)
	rm -rf "$tmp"
fi
[ "$CNI" = bridge ] || ln -sf "flanneld-$flannel" "$bin/flanneld"
install -m 755 "$(cd "$repo/test/deploy" && go tool -n helm)" "$bin/helm" # Go may remove what its cache has
if [ ! -e "$rootfs/done" ]; then
	rm -rf "$rootfs"
	debootstrap --variant=minbase --include=containerd,runc,containernetworking-plugins,iptables,nftables,conntrack,iproute2,procps,kmod,bind9-dnsutils,tcpdump,linux-image-cloud-amd64,socat \
		bookworm "$rootfs" >"$log/debootstrap.log" 2>&1 || { tail "$log/debootstrap.log" >&2; exit 1; }
	touch "$rootfs/done"
fi
"$here/images.sh"
