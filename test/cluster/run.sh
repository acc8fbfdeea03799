#!/bin/bash
# run.sh [OPTION...]: runs the tests in the cluster that up.sh started. The options are
# those of go test's binaries, such as -test.run TestDrills.
set -eu -o pipefail
. "$(dirname "$0")/env.sh"
cd "$here"
CGO_ENABLED=0 go test -c -o "$run/cluster.test" .
CGO_ENABLED=0 go build -o "$run/nodens" "$repo/cmd/nodens"
(cd "$repo/cmd/kubectl-nodens" && CGO_ENABLED=0 go build -o "$run/kubectl-nodens" .)
export CLUSTER_DNS LOCAL_DNS KUBE_DNS STUB WORLD POD_RANGE
rm -f "$run/failed"
for again in $(seq "${RERUNS:-0}") last; do # all tests, after a failure; see .ci/run
	if NODENS_CLUSTER=$CLUSTER_DIR inns "$run/cluster.test" -test.v -test.timeout 60m "$@" | tee "$log/tests"; then
		[ ! -e "$run/failed" ] || { echo "failed before they passed:"; cat "$run/failed"; }
		exit
	fi
	[ "$again" != last ] || exit 1
	grep -e '--- FAIL' "$log/tests" >>"$run/failed" || true
	echo "some tests failed: running all again"
done
