/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef NODENS_MAPS_H
#define NODENS_MAPS_H

#include "redirect.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct settings);
	__uint(max_entries, 1);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct endpoint); /* VIP and port */
	__type(value, struct service);
	__uint(max_entries, MAX_SERVICES);
} services SEC(".maps");

/* The time of the last heartbeat: CLOCK_MONOTONIC in ns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} heartbeat SEC(".maps");

/* A socket of the daemon. The kernel removes it when the daemon ends in any way.
 * User space reads the socket's cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} canary SEC(".maps");

/* Cookies of network namespaces that are not redirected while the daemon is alive. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
	__uint(max_entries, MAX_EXEMPT);
} exempt SEC(".maps");

/* Ids of cgroups that are never redirected. Values: see optout.go. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
	__uint(max_entries, MAX_OPTED_OUT);
} opted_out SEC(".maps");

/* The VIP of each target and fallback, for getpeername of multipath TCP sockets: their
 * flows are those of a subflow, which cannot be found from them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint);
	__type(value, struct endpoint);
	__uint(max_entries, MAX_ORIGINS);
} origins SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_flows);
} flows SEC(".maps");

/* Indexed by hook * EXIT_COUNT + exit reason. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, HOOK_COUNT * EXIT_COUNT);
} exits SEC(".maps");

#endif
