#!/bin/bash
# e2e.sh [HELM OPTION...]: runs Kubernetes' own end-to-end tests of DNS in one cluster for
# each of WAYS: on and off run through nodens with and without redirection, coredns is the
# control. The way up uses the running cluster, which build.sh e2e has built. It prints
# a table of the ways, and fails if a way passes none, or lacks one that CoreDNS does not
# fail. FOCUS, SKIP and SERIAL are regular expressions of ginkgo; an empty FOCUS or
# SERIAL selects none. PROCS specs run at the same time. A failed spec runs RERUNS times
# more. The specs of SERIAL run one by one; they change CoreDNS's Corefile, and for them
# nodens forwards all names to CoreDNS. E2E_OPTIONS are more options of the tests.
set -eu
. "$(dirname "$0")/env.sh"
: "${FOCUS=\[sig-network\] DNS|\[sig-network\] Services should be able to change the type}"
: "${SKIP:=Provider:GCE|PerformanceDNS|FeatureGate}"
: "${SERIAL=DNS configMap nameserver}"
: "${WAYS:=on off coredns}" "${PROCS:=1}"
out=$log/e2e
specs() { # specs REPORT FOCUS SKIP
	mkdir -p "$out/$1"
	# shellcheck disable=SC2086 # options
	inns "$bin/ginkgo" --procs "$PROCS" --flake-attempts $((${RERUNS:-0} + 1)) --no-color --timeout "${E2E_TIMEOUT:-1h}" --focus "$2" --skip "$3" "$bin/e2e-$KUBE_VERSION.test" -- \
		--provider local --kubeconfig "$KUBECONFIG" --kubectl-path "$bin/kubectl" --num-nodes 2 \
		--report-dir "$out/$1" --disable-log-dump ${E2E_OPTIONS:-} >"$out/$1/output" 2>&1 || echo "$way failed 0 exit status of ginkgo" >>"$out/results"
}
report() { # report WAY: lines of WAY STATUS SECONDS NAME
	sed -n 's/.*<testcase name="\[It\] \([^"]*\)" [^>]*status="\([^"]*\)" time="\([0-9]*\)[^"]*".*/'"$1"' \2 \3 \1/p' "$out/$1"/junit*.xml "$out/$1-serial"/junit*.xml 2>/dev/null |
		grep -v '^[^ ]* skipped' | sed "s/&#39;/'/g"
}
run() { # run WAY [HELM OPTION...]
	local way=$1
	shift
	if [ "$way" != up ]; then
		"$here/down.sh"
		"$here/up.sh" "$@"
	fi
	[ -z "$FOCUS" ] || specs "$way" "$FOCUS" "$SKIP|\[Serial\]"
	[ -n "$SERIAL" ] || return 0
	[ "$way" = coredns ] || inns "$bin/helm" upgrade nodens "$repo/deploy/chart" --namespace kube-system --reuse-values \
		--set config.upstreamServers=__PILLAR__CLUSTER__DNS__ --wait --timeout 10m >>"$log/helm.log"
	specs "$way-serial" "$SERIAL" "$SKIP"
}
lock
rm -rf "$out"
mkdir "$out"
if [ "$WAYS" != up ]; then
	"$here/build.sh" e2e
	trap '"$here/down.sh"' EXIT
fi
for way in $WAYS; do
	case $way in
	up) run up ;;
	on | off) run "$way" --set tier=full --set "redirect.mode=$way" "$@" ;;
	# With the search domain, the control fails: dig stops there for names with four dots.
	coredns) NODENS=no CLUSTER_DNS=$KUBE_DNS NODE_SEARCH='' run coredns ;;
	*) echo "no way $way" >&2; exit 2 ;;
	esac
	report "$way" >>"$out/results"
done
# A spec that did not run in one of the ways has a dash there.
awk -v ways="$WAYS" '
	$2 == "passed" { some[$1] = 1 }
	{ result = sprintf("%s %d s", $2, $3); way = $1; $1 = $2 = $3 = ""; specs[$0]; results[way, $0] = result }
	END {
		n = split(ways, columns)
		for (i = 1; i <= n; i++) {
			printf "%-12s | ", columns[i]
			if (!some[columns[i]]) worse++
		}
		print "spec of Kubernetes '"$KUBE_VERSION"'"
		for (s in specs) {
			line = ""
			for (i = 1; i <= n; i++) {
				result = results[columns[i], s]
				line = line sprintf("%-12s | ", result ? result : "-")
				if (result !~ /^passed/ && results["coredns", s] !~ /^failed/) worse++
			}
			print line substr(s, 4) | "sort -t\"|\" -k" n + 1
		}
		close("sort -t\"|\" -k" n + 1)
		exit worse > 0
	}' "$out/results"
