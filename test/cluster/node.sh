#!/bin/bash
# Starts the nodes: emulated machines with Debian's kernel and userland, on the bridge
# of the control plane. They discard what they write when they end, not when they boot.
set -eu
. "$(dirname "$0")/env.sh"
disk=$CLUSTER_DIR/node.ext4 lab=$CLUSTER_DIR/lab
if [ ! -e "$disk" ] || [ "$rootfs/done" -nt "$disk" ]; then
	mkdir -p "$rootfs/lab"
	install -m 755 /dev/stdin "$rootfs/sbin/lab-init" <<-'END'
	#!/bin/bash
	mount /dev/vdb /lab
	exec /lab/init
	END
	rm -f "$disk" "$disk.new"
	mke2fs -q -t ext4 -d "$rootfs" -E lazy_itable_init=1 "$disk.new" 6G
	mv "$disk.new" "$disk"
fi
rm -rf "$lab" "$lab.ext4"
mkdir -p "$lab/bin"
ln -L "$bin/kube" "$lab/bin/kube"
for p in kubectl kubelet; do ln -s kube "$lab/bin/$p"; done
cp "$here"/node/{containerd.toml,cni.conflist,init} "$lab/"
sed "s/@CLUSTER_DNS@/$CLUSTER_DNS/" "$here/node/kubelet.yaml" >"$lab/kubelet.yaml"
cp "$pki/ca.crt" "$pki"/{node?,proxy,flannel}.conf "$lab/"
[ "$GVISOR" != yes ] || cp "$bin/runsc" "$bin/shim" "$here/node/containerd-shim-runsc-v1" "$lab/bin/"
[ "$CNI" = bridge ] || ln -L "$bin/flanneld" "$lab/bin/flanneld"
printf '{"Network": "%s", "EnableNFTables": %s, "Backend": {"Type": "%s"}}' "$PODS" \
	"$([ "$PROXY_MODE" = nftables ] && echo true || echo false)" "$CNI" >"$lab/flannel.json"
declare -p WORLD UPSTREAM BITS PODS POD_RANGE ANYWHERE IPTABLES PROXY_MODE CNI NODE_SEARCH >"$lab/env"
# Importing the images here is much faster than on the emulated nodes.
export lab rootfs images log
unshare --mount --propagation private bash -eu <<'END'
mkdir -p "$lab/images"
mount --bind "$lab" "$rootfs/lab"
mount --bind "$images" "$rootfs/lab/images"
mount -t proc proc "$rootfs/proc"
mount -t tmpfs run "$rootfs/run"
chroot "$rootfs" containerd --root /lab/containerd --state /run/containerd >"$log/import.log" 2>&1 &
trap 'kill $!; wait $! || true' EXIT
ctr() { chroot "$rootfs" ctr -n k8s.io "$@"; }
until ctr version >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
for i in "$images"/*.tar; do ctr images import "/lab/images/$(basename "$i")" >/dev/null; done
END
mke2fs -q -t ext4 -d "$lab" "$lab.ext4" 4G
kernel=$(ls "$rootfs/boot/vmlinuz-$KERNEL."*) initrd=$(ls "$rootfs/boot/initrd.img-$KERNEL."*)
for n in $NODES; do
	TMPDIR=$run setsid nohup ip netns exec "$CLUSTER_NS" qemu-system-x86_64 -accel tcg,thread=multi -cpu Westmere \
		-smp "$VM_CPUS" -m "$VM_MEMORY" -nographic -kernel "$kernel" -initrd "$initrd" \
		-append "console=ttyS0 quiet root=/dev/vda rw panic=-1 net.ifnames=0 mitigations=off init=/sbin/lab-init node=$n" \
		-drive "file=$disk,format=raw,if=virtio,snapshot=on" -drive "file=$lab.ext4,format=raw,if=virtio,snapshot=on" \
		-netdev "tap,id=n,ifname=tap$n,script=no,downscript=no" -device "virtio-net-pci,netdev=n,mac=52:54:00:00:77:1$n" \
		-device virtio-rng-pci >"$log/node$n.log" 2>&1 </dev/null 9>&- &
	echo $! >"$run/node$n.pid"
done
