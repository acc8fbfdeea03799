#!/bin/bash
# up.sh [HELM OPTION...]: starts the cluster and installs CoreDNS and nodens.
set -eu
. "$(dirname "$0")/env.sh"
start=$SECONDS
"$here/control.sh" start
"$here/node.sh"
if [ "$CNI" != bridge ]; then
	kubectl apply -f "$here/manifests/flannel.yaml" >/dev/null
	for n in $NODES; do # node N gets the same addresses as with the bridge CNI
		wait_for 900 "node $n" kubectl patch node "node$n" -p "{\"spec\": {\"podCIDR\": \"${POD_RANGE//@NODE@/$n}\", \"podCIDRs\": [\"${POD_RANGE//@NODE@/$n}\"]}}"
	done
fi
ready() { kubectl wait --for=condition=Ready "node/node$1" --timeout=5s; }
for n in $NODES; do wait_for 900 "node $n" ready "$n"; done
echo "nodes are ready after $((SECONDS - start)) s"
sed "s/@KUBE_DNS@/$KUBE_DNS/" "$here/manifests/coredns.yaml" | kubectl apply -f - >/dev/null
kubectl -n kube-system rollout status deployment/coredns --timeout=10m
if [ "${NODENS:-yes}" != yes ]; then exit; fi
inns "$bin/helm" upgrade --install nodens "$repo/deploy/chart" --namespace kube-system \
	--values "$here/values.yaml" "$@" >"$log/helm.log"
kubectl -n kube-system rollout status daemonset/nodens --timeout=10m
echo "the cluster is up after $((SECONDS - start)) s; test/cluster/kubectl points at it"
