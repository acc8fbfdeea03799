#!/bin/bash
# Builds and starts the cluster, runs the tests, and ends the cluster: make cluster.
# CONFIG names a configuration: the chart's tier, kube-proxy's mode, the CNI, the kernel and
# the way from pods to nodens. The arguments are those of run.sh. With E2E=yes, Kubernetes'
# own tests that are not serial run after them.
set -eu
case ${CONFIG:=full} in
full) options=(--set tier=full --set redirect.mode=on) ;;
resilient)
	export PROXY_MODE=nftables CNI=vxlan
	options=(--set tier=resilient) ;;
minimal) # kube-proxy answers while nodens does not
	export CLUSTER_DNS=10.96.0.10 CNI=host-gw
	options=(--set tier=minimal --set config.dnsServer=10.96.0.10) ;;
ipv6)
	export FAMILY=ipv6 PROXY_MODE=nftables
	options=(--set tier=full --set redirect.mode=on --set config.localDns=fd00:53::10) ;;
kernel) # the kernel answers, and a pod has gVisor
	export KERNEL=6.12 GVISOR=yes PROXY_MODE=nftables
	options=(--set tier=full --set redirect.mode=on --set fastpath.mode=on) ;;
*) echo "no CONFIG $CONFIG" >&2; exit 2 ;;
esac
. "$(dirname "$0")/env.sh"
lock
start=$SECONDS
"$here/build.sh" "$([ "${E2E:-}" != yes ] || echo e2e)"
echo "built after $((SECONDS - start)) s"
"$here/down.sh"
trap '"$here/down.sh"' EXIT
"$here/up.sh" "${options[@]}"
"$here/run.sh" -helm "${options[*]}" "$@"
if [ "${E2E:-}" = yes ]; then
	kubectl delete pods --all >/dev/null # their lookups keep the nodes busy
	WAYS=up SERIAL='' "$here/e2e.sh"
fi
echo "the cluster's tests passed after $((SECONDS - start)) s"
