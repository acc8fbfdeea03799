#!/bin/bash
# Builds what the cluster is made of, unless it exists: Kubernetes with etcd as one
# program, CoreDNS, Helm, the file system of the nodes. Then the images. Needs Debian,
# root and Go. With the argument kube it builds Kubernetes only. With e2e it also builds
# Kubernetes' end-to-end tests. Compiling both takes 15 CPU minutes the first time.
set -eu
. "$(dirname "$0")/env.sh"
lock
[ "$(id -u)" = 0 ] || { echo "the cluster needs root" >&2; exit 1; }
export CGO_ENABLED=0
kube=$bin/kube-$KUBE_VERSION version=k8s.io/component-base/version
flags="-s -w -X $version.gitVersion=v$KUBE_VERSION -X $version.gitMajor=1 -X $version.gitMinor=$(echo "$KUBE_VERSION" | cut -d. -f2)"
[ -e "$kube" ] || (cd "$(go_module kube)" && go build -mod=mod -trimpath -ldflags "$flags" -o "$kube" .)
ln -sf "kube-$KUBE_VERSION" "$bin/kube"
case ${1:-} in
kube) exit ;;
e2e)
	[ -e "$bin/ginkgo-$KUBE_VERSION" ] || (
		cd "$(go_module e2e)"
		export GOFLAGS=-mod=mod
		go build -trimpath -ldflags "-s -w" -o "$bin/agnhost-$KUBE_VERSION" k8s.io/kubernetes/test/images/agnhost
		go test -trimpath -ldflags "$flags" -c -o "$bin/e2e-$KUBE_VERSION.test" .
		go build -trimpath -ldflags "-s -w" -o "$bin/ginkgo-$KUBE_VERSION" github.com/onsi/ginkgo/v2/ginkgo
	)
	for p in agnhost ginkgo; do ln -sf "$p-$KUBE_VERSION" "$bin/$p"; done
	ln -sf kube "$bin/kubectl"
	tools="dig:bind9-dnsutils curl:curl hostname:hostname nc.openbsd:netcat-openbsd" ;;
esac
packages=
for want in ${tools:-} buildah:buildah busybox:busybox-static debootstrap:debootstrap mke2fs:e2fsprogs musl-gcc:musl-tools gcc:gcc openssl:openssl sysctl:procps qemu-system-x86_64:qemu-system-x86 socat:socat unbound:unbound ip:iproute2 iptables:iptables; do
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
if [ "$GVISOR" = yes ]; then
	for p in runsc shim; do install -m 755 "$(cd "$repo/test/gvisor" && GOTOOLCHAIN=auto go tool -n $p)" "$bin/$p"; done
fi
if [ ! -e "$rootfs/done" ]; then
	rm -rf "$rootfs"
	debootstrap --variant=minbase --include=containerd,runc,containernetworking-plugins,iptables,nftables,conntrack,iproute2,procps,kmod,bind9-dnsutils,tcpdump,linux-image-cloud-amd64,socat \
		bookworm "$rootfs" >"$log/debootstrap.log" 2>&1 || { tail "$log/debootstrap.log" >&2; exit 1; }
	touch "$rootfs/done"
fi
if ! ls "$rootfs/boot/initrd.img-$KERNEL."* >/dev/null 2>&1; then
	apt-get update -qq
	package=$(apt-cache depends "linux-image-$KERNEL-cloud-amd64" | sed -n 's/.*Depends: *\(linux-image-[^ ]*\).*/\1/p' | head -1)
	(cd "$rootfs/tmp" && apt-get download -qq -o APT::Sandbox::User=root "$package")
	chroot "$rootfs" sh -c 'dpkg -i /tmp/*.deb' >"$log/kernel.log" 2>&1 || { tail "$log/kernel.log" >&2; exit 1; }
	rm "$rootfs"/tmp/*.deb
	touch "$rootfs/done"
fi
if [ ! -e "$musl/specs" ]; then # 1.2.5 of Debian 13: since 1.2.4 musl repeats truncated queries over TCP
	rm -rf "$musl"
	mkdir -p "$musl/lists/partial"
	echo "deb $(apt-get indextargets --format '$(SITE)' | grep -m 1 '/debian/*$') trixie main" >"$musl/sources.list"
	apt="apt-get -qq -o Dir::Etc::sourcelist=$musl/sources.list -o Dir::Etc::sourceparts=/nonexistent -o Dir::State::lists=$musl/lists -o APT::Sandbox::User=root"
	(cd "$musl" && $apt update && $apt download musl-dev && dpkg -x musl-dev*.deb .)
	sed "s|/usr|$musl/usr|g" "$musl/usr/lib/x86_64-linux-musl/musl-gcc.specs" >"$musl/specs"
fi
"$here/images.sh"
if [ "${1:-}" = e2e ] && [ "$(cat "$images/e2e-version" 2>/dev/null)" != "$KUBE_VERSION" ]; then
	"$here/images.sh" e2e-dnsutils e2e-agnhost
	echo "$KUBE_VERSION" >"$images/e2e-version"
fi
