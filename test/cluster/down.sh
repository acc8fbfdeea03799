#!/bin/bash
# Ends the cluster. Programs, images and logs stay in CLUSTER_DIR.
. "$(dirname "$0")/env.sh"
for f in "$run"/*.pid; do
	[ -e "$f" ] || continue
	kill "$(cat "$f")" 2>/dev/null
	rm -f "$f"
done
# All processes of the namespace are the cluster's.
pids() { ip netns pids "$CLUSTER_NS" 2>/dev/null; }
for _ in $(seq 50); do [ -n "$(pids)" ] || break; sleep 0.2; done
for p in $(pids); do kill -9 "$p"; done
ip netns del "$CLUSTER_NS" 2>/dev/null
rm -rf "$CLUSTER_DIR/etcd" "$CLUSTER_DIR/lab" "$CLUSTER_DIR/lab.ext4" "$run"/*
