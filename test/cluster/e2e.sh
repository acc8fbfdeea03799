#!/bin/bash
# e2e.sh [HELM OPTION...]: runs Kubernetes' own end-to-end tests of DNS in the cluster,
# and prints a table. Without nodens as the control: NODENS=no. FOCUS and SKIP are
# regular expressions of ginkgo.
set -eu
. "$(dirname "$0")/env.sh"
: "${FOCUS:=\[sig-network\] DNS|\[sig-network\] Services should be able to change the type}"
: "${SKIP:=Provider:GCE|PerformanceDNS|FeatureGate|\[Serial\]}"
: "${NODENS:=yes}"
[ "$NODENS" = yes ] || export CLUSTER_DNS=10.96.0.10
out=$log/e2e
e2e=$bin/e2e-$KUBE_VERSION.test agnhost=$bin/agnhost-$KUBE_VERSION version=k8s.io/component-base/version
cd "$here/e2e"
export CGO_ENABLED=0
[ -e "$agnhost" ] || go build -trimpath -ldflags '-s -w' -o "$agnhost" k8s.io/kubernetes/test/images/agnhost
[ -e "$e2e" ] || go test -trimpath -ldflags "-s -w -X $version.gitVersion=v$KUBE_VERSION -X $version.gitMajor=1 -X $version.gitMinor=$(echo "$KUBE_VERSION" | cut -d. -f2)" -c -o "$e2e" .
"$here/build.sh"
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends bind9-dnsutils curl hostname netcat-openbsd >/dev/null
ln -sf "$(basename "$agnhost")" "$bin/agnhost"
"$here/images.sh" e2e-dnsutils e2e-agnhost
"$here/down.sh"
trap '"$here/down.sh"' EXIT
"$here/up.sh" "$@"
ln -sf kube "$bin/kubectl"
rm -rf "$out"
mkdir -p "$out"
status=0
inns "$e2e" -test.timeout 0 --provider local --kubeconfig "$KUBECONFIG" --kubectl-path "$bin/kubectl" --num-nodes 2 \
	--report-dir "$out" --disable-log-dump --ginkgo.no-color --ginkgo.timeout 3h \
	--ginkgo.focus "$FOCUS" --ginkgo.skip "$SKIP" >"$out/output" 2>&1 || status=$?
sed -n 's/.*<testcase name="\[It\] \([^"]*\)" [^>]*status="\([^"]*\)" time="\([0-9]*\)[^"]*".*/\2 \3 s \1/p' "$out"/junit*.xml |
	grep -v ^skipped | sed "s/&#39;/'/g"
exit $status
