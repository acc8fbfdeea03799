#!/bin/bash
# Ends the cluster. Programs, images and logs stay in CLUSTER_DIR.
. "$(dirname "$0")/env.sh"
lock
# All processes of the namespace are the cluster's.
pids() { ip netns pids "$CLUSTER_NS" 2>/dev/null; }
for p in $(pids); do kill "$p" 2>/dev/null; done
for _ in $(seq 50); do [ -n "$(pids)" ] || break; sleep 0.2; done
for p in $(pids); do kill -9 "$p"; done
ip netns del "$CLUSTER_NS" 2>/dev/null
rm -rf "$CLUSTER_DIR/etcd" "$CLUSTER_DIR/lab" "$CLUSTER_DIR/lab.ext4" "$run"/*
