#!/bin/sh
# agent.sh DIR PROGRAMS OPTION...: runs the Cilium agent with its state in DIR. It expects
# the network namespace of the node, and a cgroup that stands for the root of the
# hierarchy. In a mount and a cgroup namespace of its own, the agent cannot change the
# host: it sees that cgroup as the root, and it writes copies of the host's sysctls.
set -eu
if [ -z "${AGENT_NAMESPACES:-}" ]; then
	AGENT_NAMESPACES=1 exec unshare --mount --cgroup --propagation private "$0" "$@"
fi
dir=$1 programs=$2
shift 2
mount -t tmpfs none /run
mkdir -p /run/cilium/cgroupv2 "$dir/lib" "$dir/tools"
mount -t cgroup2 none /run/cilium/cgroupv2
for f in unprivileged_bpf_disabled timer_migration; do
	cat "/proc/sys/kernel/$f" >"$dir/$f"
	mount --bind "$dir/$f" "/proc/sys/kernel/$f"
done
for tool in clang llc; do ln -sf "/usr/bin/$tool-19" "$dir/tools/$tool"; done
ln -sfn "$programs/module/bpf" "$dir/lib/bpf"
export PATH="$dir/tools:$PATH"
exec "$programs/daemon" --lib-dir="$dir/lib" --socket-path="$dir/cilium.sock" --cgroup-root=/run/cilium/cgroupv2 "$@"
