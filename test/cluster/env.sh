# Sourced by the other scripts. What they make is below CLUSTER_DIR, and every address
# is in the network namespace CLUSTER_NS or in the machines behind it.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
: "${CLUSTER_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/nodens/cluster}" "${CLUSTER_NS:=nodens-cluster}"
: "${KUBE_VERSION:=1.34.4}"
: "${VM_CPUS:=1}" "${VM_MEMORY:=1792}" # MiB
: "${PROXY_MODE:=iptables}"           # of kube-proxy: iptables or nftables
: "${CNI:=bridge}"                    # of the nodes: bridge, or flannel with the backend vxlan or host-gw
: "${KERNEL:=6.1}"                    # of the nodes: the first two numbers of a version of Debian's kernel
: "${GVISOR:=no}"                     # yes: the nodes have gVisor, as the runtime handler runsc
: "${NODE_SEARCH=corp.example}"       # of the nodes' resolv.conf: names there exist, but are empty
: "${FAMILY:=ipv4}"                   # the cluster's only address family: ipv4 or ipv6
NODES="1 2" OLD_COMMIT=c003943        # from which nodens is upgraded
# Node N has the address ${WORLD}N, and its pods those of ${POD_RANGE//@NODE@/N}.
case $FAMILY in
ipv4)
	WORLD=192.168.77.1 UPSTREAM=192.168.77.53 STUB=192.168.77.54 BITS=24 LOCAL_DNS=169.254.20.10
	PODS=10.244.0.0/16 POD_RANGE=10.244.@NODE@.0/24 ANYWHERE=0.0.0.0/0 IPTABLES=iptables
	services=10.96.0.0/16 kubernetes=10.96.0.1 KUBE_DNS=10.96.0.10 server=$WORLD ;;
ipv6)
	WORLD=fd77::1 UPSTREAM=fd77::53 STUB=fd77::54 BITS=64 LOCAL_DNS=fd00:53::10
	PODS=fd10:244::/32 POD_RANGE=fd10:244:@NODE@::/64 ANYWHERE=::/0 IPTABLES=ip6tables
	services=fd10:96::/112 kubernetes=fd10:96::1 KUBE_DNS=fd10:96::a server=[$WORLD] ;;
*) echo "no FAMILY $FAMILY" >&2; exit 2 ;;
esac
: "${CLUSTER_DNS:=$LOCAL_DNS}"        # what kubelet writes into resolv.conf of pods
bin=$CLUSTER_DIR/bin pki=$CLUSTER_DIR/pki run=$CLUSTER_DIR/run log=$CLUSTER_DIR/log
images=$CLUSTER_DIR/images rootfs=$CLUSTER_DIR/rootfs musl=$CLUSTER_DIR/musl
export KUBECONFIG=$pki/admin.conf PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$bin" "$pki" "$run" "$log" "$images"
inns() { ip netns exec "$CLUSTER_NS" "$@"; }
kubectl() { inns "$bin/kube" kubectl "$@"; }
go_module() { # go_module kube|e2e: its folder, or a copy if go.mod names another version
	local copy=$CLUSTER_DIR/src-$KUBE_VERSION/$1
	if grep -q "k8s.io/kubernetes v$KUBE_VERSION$" "$here/$1/go.mod"; then
		echo "$here/$1"
		return
	fi
	rm -rf "$copy"
	mkdir -p "$copy"
	cp "$here/$1"/{*.go,go.sum} "$copy/"
	# Kubernetes' go.mod says which versions of other modules it needs.
	sed "/\/\/ indirect/d; /go.etcd.io/d; s/\(k8s.io.* v[01]\)\.[1-9][0-9.]*$/\1.${KUBE_VERSION#1.}/" \
		"$here/$1/go.mod" >"$copy/go.mod"
	echo "$copy"
}
wait_for() { # wait_for SECONDS WHAT COMMAND...
	local seconds=$1 what=$2 end=$((SECONDS + $1))
	shift 2
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || { echo "no $what after $seconds s" >&2; return 1; }
		sleep 1
	done
}
lock() { # until this script and those that it calls end
	[ -z "${LOCKED:-}" ] || return 0
	exec 9>"$CLUSTER_DIR/lock"
	flock -n 9 || { echo "another test runs in $CLUSTER_DIR" >&2; exit 1; }
	export LOCKED=yes
}
