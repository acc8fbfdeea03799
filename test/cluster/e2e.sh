#!/bin/bash
# e2e.sh [HELM OPTION...]: runs Kubernetes' own end-to-end tests of DNS through nodens,
# and in a second cluster through CoreDNS as the control. It prints a table of both, and
# fails if a spec fails through nodens and passes through CoreDNS. WAYS has the names of
# the ways to run. FOCUS, SKIP and SERIAL are regular expressions of ginkgo. The specs of
# SERIAL change CoreDNS's Corefile, and for them nodens forwards all names to CoreDNS.
set -eu
. "$(dirname "$0")/env.sh"
: "${FOCUS:=\[sig-network\] DNS|\[sig-network\] Services should be able to change the type}"
: "${SKIP:=Provider:GCE|PerformanceDNS|FeatureGate}"
: "${SERIAL=DNS configMap nameserver}" # empty: none
: "${WAYS:=nodens coredns}"
out=$log/e2e
e2e=$bin/e2e-$KUBE_VERSION.test agnhost=$bin/agnhost-$KUBE_VERSION version=k8s.io/component-base/version
build() {
	(
		cd "$here/e2e"
		export CGO_ENABLED=0
		[ -e "$agnhost" ] || go build -trimpath -ldflags '-s -w' -o "$agnhost" k8s.io/kubernetes/test/images/agnhost
		[ -e "$e2e" ] || go test -trimpath -ldflags "-s -w -X $version.gitVersion=v$KUBE_VERSION -X $version.gitMajor=1 -X $version.gitMinor=$(echo "$KUBE_VERSION" | cut -d. -f2)" -c -o "$e2e" .
	)
	"$here/build.sh"
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends bind9-dnsutils curl hostname netcat-openbsd >/dev/null
	ln -sf "$(basename "$agnhost")" "$bin/agnhost"
	ln -sf kube "$bin/kubectl"
	[ -e "$images/e2e-agnhost.tar" ] || "$here/images.sh" e2e-dnsutils e2e-agnhost
}
specs() { # specs REPORT FOCUS SKIP: ginkgo's exit status is in the report
	mkdir -p "$out/$1"
	inns "$e2e" -test.timeout 0 --provider local --kubeconfig "$KUBECONFIG" --kubectl-path "$bin/kubectl" --num-nodes 2 \
		--report-dir "$out/$1" --disable-log-dump --ginkgo.no-color --ginkgo.timeout 3h \
		--ginkgo.focus "$2" --ginkgo.skip "$3" >"$out/$1/output" 2>&1 || echo "$1: exit status $?"
}
report() { # report WAY: lines of STATUS SECONDS NAME
	sed -n 's/.*<testcase name="\[It\] \([^"]*\)" [^>]*status="\([^"]*\)" time="\([0-9]*\)[^"]*".*/\2 \3 \1/p' "$out/$1"/junit*.xml "$out/$1-serial"/junit*.xml 2>/dev/null |
		grep -v '^skipped' | sed "s/&#39;/'/g"
}
run() { # run WAY [HELM OPTION...]
	local way=$1
	shift
	"$here/down.sh"
	"$here/up.sh" "$@"
	specs "$way" "$FOCUS" "$SKIP|\[Serial\]"
	[ -n "$SERIAL" ] || return 0
	[ "$way" = coredns ] || inns "$bin/helm" upgrade nodens "$repo/deploy/chart" --namespace kube-system --reuse-values \
		--set config.upstreamServers=__PILLAR__CLUSTER__DNS__ --wait --timeout 10m >>"$log/helm.log"
	specs "$way-serial" "$SERIAL" "$SKIP"
}
build
rm -rf "$out"
trap '"$here/down.sh"' EXIT
for way in $WAYS; do
	case $way in
	nodens) run nodens "$@" ;;
	# With the search domain, the control fails: dig stops there for names with four dots.
	coredns) NODENS=no CLUSTER_DNS=$KUBE_DNS NODE_SEARCH='' run coredns ;;
	*) echo "no way $way" >&2; exit 2 ;;
	esac
	report "$way" >"$out/$way.txt"
done
touch "$out/nodens.txt" "$out/coredns.txt"
# A spec that did not run in one of the ways has a dash there.
awk 'FILENAME ~ /nodens.txt$/ { way = 1 } FILENAME ~ /coredns.txt$/ { way = 2 }
	{ status = $1; seconds = $2; $1 = $2 = ""; name[$0]; result[$0, way] = sprintf("%s %4d s", status, seconds); passed[$0, way] = status == "passed" }
	function cell(n, way) { return (n, way) in result ? result[n, way] : "-" }
	END {
		printf "%-15s | %-15s | spec\n", "nodens", "CoreDNS"
		for (n in name) {
			printf "%-15s | %-15s |%s\n", cell(n, 1), cell(n, 2), n | "sort -t\"|\" -k3"
			if (passed[n, 2] && (n, 1) in result && !passed[n, 1]) worse++
			if (!passed[n, 1] && !((n, 2) in result)) worse++
		}
		close("sort -t\"|\" -k3")
		exit worse > 0 || NR == 0
	}' "$out/nodens.txt" "$out/coredns.txt"
