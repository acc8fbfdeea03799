# Sourced by the other scripts. What they make is below CLUSTER_DIR, and every address
# is in the network namespace CLUSTER_NS or in the machines behind it.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
: "${CLUSTER_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/nodens/cluster}" "${CLUSTER_NS:=nodens-cluster}"
: "${KUBE_VERSION:=1.34.4}" "${OLD_COMMIT:=c003943}" # from which nodens is upgraded
: "${NODES:=1 2}" "${VM_CPUS:=1}" "${VM_MEMORY:=1792}" # MiB
: "${PROXY_MODE:=iptables}"           # of kube-proxy: iptables or nftables
: "${NODE_SEARCH=corp.example}"       # of the nodes' resolv.conf: names there exist, but are empty
: "${CLUSTER_DNS:=169.254.20.10}"     # what kubelet writes into resolv.conf of pods
world=192.168.77.1 upstream=192.168.77.53 stub=192.168.77.54 # node N is 192.168.77.1N
bin=$CLUSTER_DIR/bin pki=$CLUSTER_DIR/pki run=$CLUSTER_DIR/run log=$CLUSTER_DIR/log
images=$CLUSTER_DIR/images rootfs=$CLUSTER_DIR/rootfs
export KUBECONFIG=$pki/admin.conf PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$bin" "$pki" "$run" "$log" "$images"
inns() { ip netns exec "$CLUSTER_NS" "$@"; }
kubectl() { inns "$bin/kube" kubectl "$@"; }
wait_for() { # wait_for SECONDS WHAT COMMAND...
	local seconds=$1 what=$2
	shift 2
	for _ in $(seq "$seconds"); do "$@" >/dev/null 2>&1 && return 0; sleep 1; done
	echo "no $what after $seconds s" >&2
	return 1
}
