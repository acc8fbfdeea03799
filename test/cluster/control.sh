#!/bin/bash
# control.sh start: the network, the resolver outside of the cluster, and the control
# plane. control.sh apiserver: the API server again, after it was stopped.
set -eu
. "$(dirname "$0")/env.sh"
start() { # start NAME COMMAND...
	local name=$1
	shift
	setsid nohup ip netns exec "$CLUSTER_NS" "$@" >>"$log/$name.log" 2>&1 </dev/null 9>&- &
	echo $! >"$run/$name.pid"
}
apiserver() {
	start apiserver "$bin/kube" kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address=$WORLD \
		--bind-address=$WORLD --secure-port=6443 --service-cluster-ip-range=$services \
		--authorization-mode=Node,RBAC --allow-privileged=true --client-ca-file="$pki/ca.crt" \
		--tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
		--kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
		--kubelet-preferred-address-types=InternalIP \
		--service-account-issuer=https://kubernetes.default.svc.cluster.local \
		--service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key"
	wait_for 300 "API server" kubectl get --raw /readyz
}
if [ "$1" = apiserver ]; then
	apiserver
	exit
fi
"$here/pki.sh"
rm -f "$log"/*.log
ip netns add "$CLUSTER_NS"
inns ip link set lo up
inns sysctl -qw net.ipv6.conf.default.accept_dad=0 # addresses can be used at once
inns ip link add br0 type bridge
for address in $WORLD $UPSTREAM $STUB; do inns ip addr add $address/$BITS dev br0; done
inns ip link set br0 up
for n in $NODES; do
	inns ip tuntap add tap$n mode tap
	inns ip link set tap$n master br0 up
	inns ip route add ${POD_RANGE//@NODE@/$n} via $WORLD$n # so that tests reach pods
done
sed "s/@UPSTREAM@/$UPSTREAM/" "$here/node/unbound.conf" >"$run/unbound.conf"
start unbound unbound -d -c "$run/unbound.conf"
sed "s/@STUB@/$STUB/" "$here/node/stub.corefile" >"$run/stub.corefile"
start stub "$bin/coredns" -conf "$run/stub.corefile"
start etcd "$bin/kube" etcd --data-dir "$CLUSTER_DIR/etcd" --listen-client-urls http://127.0.0.1:2379 \
	--advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
apiserver
# The timeouts are long because the machine may be busy.
start controllers "$bin/kube" kube-controller-manager --kubeconfig="$pki/controllers.conf" --bind-address=127.0.0.1 \
	--authentication-kubeconfig="$pki/controllers.conf" --authorization-kubeconfig="$pki/controllers.conf" \
	--use-service-account-credentials --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
	--cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" --leader-elect=false \
	--node-monitor-grace-period=4m
start scheduler "$bin/kube" kube-scheduler --kubeconfig="$pki/scheduler.conf" --bind-address=127.0.0.1 --leader-elect=false
