#!/bin/bash
# images.sh [IMAGE...]: builds the images of the cluster as archives: pause; client, the
# load and lookup programs with musl, glibc and Go, and busybox; coredns; node-cache, a
# stand-in; nodens; old, the nodens of OLD_COMMIT; and stand-ins for the two images of
# Kubernetes' end-to-end tests, e2e-dnsutils and e2e-agnhost.
set -eu
. "$(dirname "$0")/env.sh"
which=" ${*:-pause client coredns node-cache nodens old} "
tmp=$(mktemp -d)
export BUILDAH="buildah --root $tmp/storage --runroot $tmp/runroot --storage-driver vfs"
trap 'rm -rf "$tmp"' EXIT
root=$tmp/root

archive() { # archive IMAGE FILE
	$BUILDAH push -q "$1" "docker-archive:$tmp/archive:$1"
	mv "$tmp/archive" "$images/$2.tar"
}
image() { # image NAME:TAG ENTRYPOINT [COMMAND]: of $root
	printf 'FROM scratch\nCOPY root /\nENV PATH=/bin\nENTRYPOINT %s\n' "$2" >"$tmp/Dockerfile"
	[ -z "${3:-}" ] || echo "CMD [\"$3\"]" >>"$tmp/Dockerfile"
	$BUILDAH build -q --isolation chroot -t "$1" -f "$tmp/Dockerfile" "$tmp" >/dev/null
	archive "$1" "$(basename "${1%:*}")"
}
libraries() { # of programs
	for p; do ldd "$p" 2>/dev/null || true; done |
		sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' | sort -u |
		while read -r l; do mkdir -p "$root$(dirname "$l")"; cp -L "$l" "$root$l"; done
}
e2e_image() { # e2e_image NAME: the image's name in the tests' list
	sed -n "s/.*configs\[$1\] *= Config{list.PromoterE2eRegistry, \"\(.*\)\", \"\(.*\)\"}.*/registry.k8s.io\/e2e-test-images\/\1:\2/p" \
		"$(go list -m -f '{{.Dir}}' "k8s.io/kubernetes@v$KUBE_VERSION")/test/utils/image/manifest.go"
}
programs() { # programs NAME...: of this machine, and busybox
	for p; do cp "$(readlink -f "$(command -v "$p")")" "$root/bin/$p"; done
	libraries "$root"/bin/*
	cp "$(command -v busybox)" "$root/bin/busybox"
	for a in $(busybox --list); do [ -e "$root/bin/$a" ] || ln -s busybox "$root/bin/$a"; done
	echo root:x:0:0::/:/bin/sh >"$root/etc/passwd"
}
for name in $which; do
	rm -rf "$root"
	mkdir -p "$root/bin" "$root/etc" "$root/tmp"
	case $name in
	pause)
		musl-gcc -static -Os -s -o "$root/pause" "$here/node/pause.c"
		image localhost/pause:1 '["/pause"]' ;;
	coredns)
		cp "$bin/coredns" "$root/coredns"
		image localhost/coredns:1 '["/coredns"]' ;;
	client)
		for p in client lookup; do
			gcc -specs "$musl/specs" -static -pthread -O1 -o "$root/bin/musl-$p" "$repo/internal/lab/testdata/$p.c" -lresolv
			gcc -pthread -O1 -o "$root/bin/glibc-$p" "$repo/internal/lab/testdata/$p.c" -lresolv
		done
		# The test binary is the Go client, see lab.GoClient.
		(cd "$repo" && CGO_ENABLED=0 go test -c -ldflags "-s -w" -o "$root/bin/go-client" ./test/cluster)
		programs
		echo "hosts: files dns" >"$root/etc/nsswitch.conf"
		image localhost/client:1 '["/bin/sleep", "1000000"]' ;;
	node-cache)
		programs iptables ip6tables
		mkdir -p "$root/usr/lib/x86_64-linux-gnu"
		cp -r /usr/lib/x86_64-linux-gnu/xtables "$root/usr/lib/x86_64-linux-gnu/"
		cp "$bin/coredns" "$root/bin/coredns"
		install -m 755 "$here/node/node-cache" "$root/bin/node-cache"
		image registry.k8s.io/dns/k8s-dns-node-cache:1.26.4 '["/bin/node-cache"]'
		mv "$images/k8s-dns-node-cache.tar" "$images/node-cache.tar" ;;
	old)
		[ ! -e "$images/old.tar" ] || continue
		rm -rf "$CLUSTER_DIR/old"
		mkdir "$CLUSTER_DIR/old"
		git -C "$repo" archive "$OLD_COMMIT" | tar -x -C "$CLUSTER_DIR/old"
		make -s -C "$CLUSTER_DIR/old" image IMAGE=localhost/nodens:old VERSION=old
		archive localhost/nodens:old old ;;
	nodens)
		make -s -C "$repo" image IMAGE=localhost/nodens:1
		archive localhost/nodens:1 nodens ;;
	e2e-dnsutils)
		programs bash dig nslookup getent curl hostname nc.openbsd
		ln -sf nc.openbsd "$root/bin/nc"
		ln -sf bash "$root/bin/sh" # busybox's shell prefers its own nc
		echo "hosts: files dns" >"$root/etc/nsswitch.conf"
		image "$(e2e_image JessieDnsutils)" '["/bin/bash"]'
		mv "$images/jessie-dnsutils.tar" "$images/e2e-dnsutils.tar" ;;
	e2e-agnhost)
		programs bash dig nslookup getent curl hostname nc.openbsd
		ln -sf nc.openbsd "$root/bin/nc"
		ln -sf bash "$root/bin/sh"
		echo "hosts: files dns" >"$root/etc/nsswitch.conf"
		mkdir -p "$root/uploads"
		cp "$bin/agnhost" "$root/agnhost"
		ln -s agnhost "$root/agnhost-2"
		cp "$bin/coredns" "$root/coredns"
		image "$(e2e_image Agnhost)" '["/agnhost"]' pause
		mv "$images/agnhost.tar" "$images/e2e-agnhost.tar" ;;
	*) echo "no image $name" >&2; exit 2 ;;
	esac
done
