#!/bin/bash
# run.sh [OPTION...]: runs the tests in the cluster that up.sh started. The options are
# those of go test's binaries, such as -test.run TestDrills.
set -eu
. "$(dirname "$0")/env.sh"
cd "$here"
CGO_ENABLED=0 go test -c -o "$run/cluster.test" .
CGO_ENABLED=0 go build -o "$run/nodens" "$repo/cmd/nodens"
(cd "$repo/cmd/kubectl-nodens" && CGO_ENABLED=0 go build -o "$run/kubectl-nodens" .)
export CLUSTER_DNS LOCAL_DNS KUBE_DNS STUB WORLD POD_RANGE
for again in $(seq "${RERUNS:-0}") last; do # all tests, after a failure; see .ci/run
	NODENS_CLUSTER=$CLUSTER_DIR inns "$run/cluster.test" -test.v -test.timeout 60m "$@" && exit
	[ "$again" != last ] || exit 1
	echo "some tests failed: running all again"
done
