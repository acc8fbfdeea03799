#!/bin/bash
# What CI runs of the cluster: it starts, the chart installs nodens, pods with musl,
# glibc and Go get the right answers, and no lookup fails during a rollout. It takes 6
# minutes. A machine that cannot do it skips and says why.
set -eu
. "$(dirname "$0")/env.sh"
skip() {
	echo "skipped: $*"
	exit 0
}
[ "$(id -u)" = 0 ] || skip "the cluster needs root"
[ -e "$bin/kube-$KUBE_VERSION" ] && [ -e "$rootfs/done" ] && [ -e "$CLUSTER_DIR/node.ext4" ] ||
	skip "nothing is built in $CLUSTER_DIR, and building takes 20 minutes: run make cluster once"
command -v qemu-system-x86_64 >/dev/null || skip "no qemu-system-x86_64"
[ "$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)" -ge $((6 << 20)) ] || skip "less than 6 GiB of memory are free"
! ip netns pids "$CLUSTER_NS" >/dev/null 2>&1 || skip "a cluster runs in $CLUSTER_NS"
for attempt in $(seq $((1 + ${RERUNS:-0}))); do
	if "$here/test.sh" -test.run '^(TestNames|TestChart|TestDrills)$' -drill 'rollout restart'; then exit 0; fi
	echo "attempt $attempt failed" >&2
done
exit 1
